//! Panics of other people's parsers, held in: a damaged file is an error, not the end of the process.
//!
//! A panic anywhere else ends the process at once, as it would with `panic = "abort"`: a thread that is gone must not leave the
//! others waiting for it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use anyhow::{Result, bail};

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic outside [`contained`] ends the process, with its words on standard error.
pub fn abort_on_panic() {
    let report = take_hook();
    set_hook(Box::new(move |panic| {
        if IS_CONTAINED.get() {
            return;
        }
        report(panic);
        std::process::abort();
    }));
}

/// What `parse` returns; its panic as an error. Nothing that `parse` changes may be used after an error.
///
/// # Errors
/// Those of `parse`, and its panics.
pub fn contained<T>(parse: impl FnOnce() -> Result<T>) -> Result<T> {
    let outside = IS_CONTAINED.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(parse));
    IS_CONTAINED.set(outside);
    match ended {
        Ok(parsed) => parsed,
        Err(panic) => bail!("damaged: {}", words(&*panic)),
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("its parser gave up")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use signal_hook::consts::SIGABRT;

    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let error = contained::<u8>(|| panic!("a page without a dictionary")).unwrap_err();
        assert_eq!(error.to_string(), "damaged: a page without a dictionary");
        assert_eq!(contained(|| Ok(3)).unwrap(), 3);
        assert!(!IS_CONTAINED.get());
    }

    #[test]
    fn a_panic_that_nobody_holds_in_ends_the_process_from_any_thread() {
        const ALONE: &str = "PPO_TEST_CONTAINED_ALONE";
        if std::env::var_os(ALONE).is_some() {
            abort_on_panic();
            contained::<u8>(|| panic!("it is held in")).unwrap_err();
            std::thread::spawn(|| -> u8 { panic!("not held in") });
            // It ends meanwhile, and not as it does here.
            std::thread::sleep(Duration::from_secs(60));
            std::process::exit(0);
        }
        let name = std::thread::current().name().unwrap().to_owned();
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.signal(), Some(SIGABRT), "{said}");
        assert!(
            said.contains("not held in") && !said.contains("it is held in"),
            "{said}"
        );
    }
}
