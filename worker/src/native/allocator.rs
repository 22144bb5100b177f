//! How the C library's allocator treats the memory of tensors.

unsafe extern "C" {
    fn ppo_training_keep_memory() -> bool;
}

/// Training allocates and frees the same large tensors in every layer. By default glibc maps and unmaps each of them, and the
/// kernel's page faults were 5 to 10 % of a PPO step of a 135M float32 model. After this call freed memory is kept for
/// the next tensor, as an engine's is for the weights of the next step. Call it before any thread is started; where the allocator is not glibc's it does nothing.
/// <https://www.gnu.org/software/libc/manual/html_node/Malloc-Tunable-Parameters.html>
pub fn keep_memory() {
    // SAFETY: it sets parameters of malloc and touches no memory of ours.
    if !unsafe { ppo_training_keep_memory() } {
        tracing::debug!("the allocator keeps its defaults");
    }
}
