use super::*;
use crate::engine::conformance::{Subject, chunk, conforms, draw, load, loaded, random_weights, tiny, tokens};

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
fn a_runner_that_slept_draws_the_same_once_it_has_weights_again() {
    for (kind, tied) in [(Kind::Float, true), (Kind::BFloat16, false)] {
        let shape = DecoderShape { tied, ..tiny(kind) };
        let mut runner: NativeRunner = loaded(&shape, 10, 2);
        let batch = ForwardBatch {
            chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(7, 0)])],
        };
        let before = runner.forward(&batch).unwrap();
        runner.sleep();
        let error = runner.forward(&batch).unwrap_err().to_string();
        assert!(error.contains("no weights"), "{error}");
        load(&mut runner, &random_weights(&shape)).unwrap();
        assert_eq!(runner.forward(&batch).unwrap(), before);
    }
}

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
