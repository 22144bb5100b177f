//! Which of a processor's instructions the kernels may use.

use anyhow::Result;

use crate::manifest::Invalid;

/// Narrows them, to test what narrower processors do; `native/instructions.cpp` reads it.
const CHOICE: &str = "PPO_CPU_INSTRUCTIONS";
/// What it may say, from the narrowest. Without it: the widest that the processor has.
pub const NAMES: [&str; 4] = ["portable", "avx2", "avx512", "avx512_bf16"];

/// Looks at what the environment says.
///
/// # Errors
/// [`Invalid`] when no kernels have such a name.
pub fn check() -> Result<()> {
    match std::env::var_os(CHOICE) {
        Some(asked) => known(&asked.to_string_lossy()),
        None => Ok(()),
    }
}

fn known(asked: &str) -> Result<()> {
    if asked.is_empty() || NAMES.contains(&asked) {
        return Ok(());
    }
    let names = NAMES.join(", ");
    let words = format!(
        "{CHOICE}={asked:?} names no kernels; give one of {names}, or leave it out for the widest of this processor"
    );
    Err(Invalid::new(words).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spelling that nothing reads would run the widest kernels, and nobody would know that nothing was narrowed.
    #[test]
    fn a_name_that_no_kernels_have_is_refused_with_those_that_some_have() {
        assert!(NAMES.iter().chain(&[""]).all(|name| known(name).is_ok()));
        let error = known("avx-512").unwrap_err();
        assert!(error.is::<Invalid>());
        assert_eq!(
            error.to_string(),
            "PPO_CPU_INSTRUCTIONS=\"avx-512\" names no kernels; give one of portable, avx2, avx512, avx512_bf16, or leave it out for the widest of this processor"
        );
    }
}
