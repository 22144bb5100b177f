//! Which rank computes which samples: as many each, and as many tokens as can be, so that no rank waits for a long one.

/// Deals samples of these lengths to `count` ranks: the indices each gets, in their first order. Every rank gets as many samples,
/// give or take one. The longest go first, each to the rank with the fewest tokens that has room
/// (verl balances by Karmarkar and Karp, verl/utils/seqlen_balancing.py; for as many samples each this does as well).
pub fn deal(lengths: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&sample| (std::cmp::Reverse(lengths[sample]), sample));
    // With a rest the first ranks take one more.
    let room = |rank: usize| lengths.len() / count + usize::from(rank < lengths.len() % count);
    let mut hands = vec![Vec::new(); count];
    let mut tokens = vec![0; count];
    for sample in longest_first {
        let open = (0..count).filter(|&rank| hands[rank].len() < room(rank));
        let Some(rank) = open.min_by_key(|&rank| (tokens[rank], rank)) else {
            break;
        };
        hands[rank].push(sample);
        tokens[rank] += lengths[sample];
    }
    hands.iter_mut().for_each(|hand| hand.sort_unstable());
    hands
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_rank_gets_everything_in_order() {
        assert_eq!(deal(&[5, 1, 9], 1), [[0, 1, 2]]);
    }

    #[test]
    fn a_long_sample_is_made_up_for_by_short_ones() {
        let hands = deal(&[100, 1, 1, 98], 2);
        assert_eq!(hands, [vec![0, 2], vec![1, 3]]);
    }

    proptest! {
        #[test]
        fn every_sample_is_dealt_once_and_hands_differ_by_one_sample_and_by_less_than_two_of_the_longest(
            lengths in prop::collection::vec(1usize..500, 1..80), count in 1usize..9,
        ) {
            let hands = deal(&lengths, count);
            let mut all: Vec<usize> = hands.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            let sizes: Vec<usize> = hands.iter().map(Vec::len).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            if lengths.len().is_multiple_of(count) {
                let tokens: Vec<usize> = hands.iter().map(|hand| hand.iter().map(|&at| lengths[at]).sum()).collect();
                let longest = lengths.iter().max().unwrap();
                prop_assert!(tokens.iter().max().unwrap() - tokens.iter().min().unwrap() <= 2 * longest);
            }
        }
    }
}
