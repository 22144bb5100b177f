use super::*;
use crate::engine::conformance::{Subject, conforms};

impl Subject for NativeRunner {
    /// To the bit.
    const ROUNDING: (f32, f32) = (0.0, 0.0);
    const ERROR: (f32, f32) = (1e-5, 0.01);
    const CASES: u32 = 24;

    fn make(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        Self::new(shape, num_blocks, threads)
    }

    fn rows(&self) -> Vec<f32> {
        self.logits()
    }
}

conforms!(NativeRunner);

#[test]
fn every_instruction_set_agrees_with_the_reference_and_is_batch_invariant() {
    const CHOICE: &str = "PPO_CPU_INSTRUCTIONS";
    if std::env::var_os(CHOICE).is_some() {
        return; // inside one of the runs below
    }
    for instructions in ["portable", "avx2", "avx512"] {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["engine::native_runner::tests", "engine::sampler::tests"])
            .env(CHOICE, instructions)
            .output()
            .unwrap();
        assert!(
            run.status.success(),
            "{instructions}: {}",
            String::from_utf8_lossy(&run.stdout)
        );
    }
}
