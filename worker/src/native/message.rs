//! Error messages from C++ (`native/guarded.h`): text, freed by the side that allocated it.

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use anyhow::{Result, anyhow};

unsafe extern "C" {
    fn ppo_training_free_error(message: *mut c_char);
}

/// Of what a shim of `native/` answers: null, or a message that is ours to free.
pub(super) fn checked(error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a zero-terminated string that the C++ side allocated for us to free.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    unsafe { ppo_training_free_error(error) };
    Err(anyhow!("libtorch: {}", message.lines().next().unwrap_or_default()))
}

/// Without the C++ functions that libtorch adds to its errors: dozens of lines of which none says what to do.
pub fn without_frames(words: &str) -> String {
    let is_frame = |line: &str| line.starts_with("Exception raised from ") || line.starts_with("frame #");
    let lines: Vec<&str> = words.lines().filter(|line| !is_frame(line)).collect();
    lines.join("\n").trim_end().to_owned()
}

/// What a function of ours answers to C++: null, or a message that [`free_message`] gets back.
pub(super) fn answer(result: Result<()>) -> *mut c_char {
    let Err(error) = result else {
        return null_mut();
    };
    let words = format!("{error:#}").replace('\0', " ");
    CString::new(words).unwrap_or_default().into_raw()
}

/// Takes a message of [`answer`] back, once.
pub(super) unsafe extern "C" fn free_message(message: *mut c_char) {
    // SAFETY: `answer` made it, and the other side gives it back once.
    drop(unsafe { CString::from_raw(message) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_goes_to_the_other_side_in_words_and_success_in_none() {
        assert!(answer(Ok(())).is_null());
        let message = answer(Err(anyhow!("no room\0 left").context("a layer")));
        // SAFETY: it was just made.
        let words = unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned();
        unsafe { free_message(message) };
        assert_eq!(words, "a layer: no room  left");
        assert!(checked(null_mut()).is_ok());
    }
}
