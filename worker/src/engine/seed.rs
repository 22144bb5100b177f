//! Seeds of samples. A sample's random stream depends on its seed alone, so the seed must name the sample and nothing else.

/// Seed of one sample of a run: a fixed function of where the sample stands in the run, so that a resumed run, another batch
/// split or another replica count draws the same tokens.
///
/// Each coordinate is added to a mixed seed and mixed again, so neighbouring steps, prompts and samples get unrelated streams.
pub fn sample_seed(run_seed: u64, step: u64, prompt_index: u64, sample_index: u64) -> u64 {
    [step, prompt_index, sample_index]
        .into_iter()
        .fold(mix(run_seed), |seed, coordinate| mix(seed.wrapping_add(coordinate)))
}

/// One output of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 19): a bijection
/// of 64 bits in which every input bit reaches every output bit.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_mixer_is_splitmix64() {
        // First three outputs for seed 1234567, as published with the reference implementation.
        let outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        for (n, output) in (0u64..).zip(outputs) {
            assert_eq!(
                mix(1234567u64.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
                output
            );
        }
    }

    #[test]
    fn every_sample_of_a_run_has_a_seed_of_its_own() {
        let mut seen = HashSet::new();
        for run in 0..4 {
            for step in 0..16 {
                for prompt in 0..32 {
                    for sample in 0..16 {
                        assert!(seen.insert(sample_seed(run, step, prompt, sample)));
                    }
                }
            }
        }
    }

    #[test]
    fn coordinates_are_not_interchangeable() {
        assert_ne!(sample_seed(0, 1, 2, 3), sample_seed(0, 3, 2, 1));
        assert_ne!(sample_seed(1, 0, 0, 0), sample_seed(0, 1, 0, 0));
    }
}
