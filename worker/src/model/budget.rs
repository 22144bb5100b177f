//! How many sequences a model that does not learn computes at once: as many as a budget of tokens allows.

/// Sequences times longest sequence of one forward pass of a run's reference and reward model, which `plan` counts with.
pub const PASS_TOKENS: usize = ppo_crds::memory::PASS_TOKENS;

/// Indices of the sequences of each forward, by their lengths: longest first, so that little is padding. A sequence longer than
/// `tokens` comes alone.
pub fn batches(lengths: impl Iterator<Item = usize>, tokens: usize) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = lengths.collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lengths[at]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * lengths[batch[0]] <= tokens => batch.push(at),
            _ => batches.push(vec![at]),
        }
    }
    batches
}

/// The same, each batch in the order of its sequences: what fits into one is one batch as it came.
pub fn batches_in_order(lengths: impl Iterator<Item = usize>, tokens: usize) -> Vec<Vec<usize>> {
    let mut batches = batches(lengths, tokens);
    batches.iter_mut().for_each(|batch| batch.sort_unstable());
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_into_one_pass_is_one_pass_in_the_order_it_came() {
        let lengths = [3, 9, 1, 5];
        assert_eq!(batches_in_order(lengths.into_iter(), 36), [[0, 1, 2, 3]]);
        let split = batches_in_order(lengths.into_iter(), 18);
        assert_eq!(split, [vec![1, 3], vec![0, 2]]);
        assert_eq!(
            batches_in_order(lengths.into_iter(), 1).len(),
            4,
            "a longer one comes alone"
        );
    }
}
