//! What the kernels compute does not depend on the processor, but for rounding.

#[test]
fn every_instruction_set_draws_as_the_reference_in_any_batch_and_learns_as_libtorch_does() {
    const CHOICE: &str = "PPO_CPU_INSTRUCTIONS";
    const MODULES: [&str; 3] = [
        "engine::native_runner::tests",
        "engine::sampler::tests",
        "native::training::tests",
    ];
    if std::env::var_os(CHOICE).is_some() {
        return; // inside one of the runs below
    }
    for instructions in super::instructions::NAMES {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(MODULES)
            .env(CHOICE, instructions)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{instructions}: {said}");
        // A run of no tests succeeds too.
        for module in MODULES {
            let passed = |line: &str| line.starts_with(&format!("test {module}::")) && line.ends_with(" ... ok");
            assert!(
                said.lines().any(passed),
                "{instructions}: no test of {module} ran: {said}"
            );
        }
    }
}
