//! What the kernels compute does not depend on the processor, but for rounding.

#[test]
fn every_instruction_set_draws_as_the_reference_in_any_batch_and_learns_as_libtorch_does() {
    const CHOICE: &str = "PPO_CPU_INSTRUCTIONS";
    if std::env::var_os(CHOICE).is_some() {
        return; // inside one of the runs below
    }
    for instructions in ["portable", "avx2", "avx512"] {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "engine::native_runner::tests",
                "engine::sampler::tests",
                "native::training::tests",
            ])
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
