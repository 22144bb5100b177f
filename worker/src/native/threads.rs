//! OpenMP's teams of threads.

unsafe extern "C" {
    fn ppo_release_team();
}

/// Ends the team of threads that the calling thread's parallel work made; the next such work makes a new one (50 us). A thread
/// that is about to wait calls it: while teams of several threads together have more threads than the machine has cores, GNU's
/// OpenMP puts every waiting thread of every team to sleep at once, and waking them took a tenth of a small model's PPO step.
pub fn release_team() {
    // SAFETY: it is outside of any parallel region.
    unsafe { ppo_release_team() };
}
