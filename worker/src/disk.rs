//! Advice for errors of a full disk.

use std::io;

use anyhow::Error;

/// Something of a run had no room. What failed, and below it the file and where it is known the size, are the causes.
#[derive(Debug, thiserror::Error)]
#[error(
    "a disk is full, or a quota is used up: make room where the file named next lies, or keep fewer checkpoints \
     (checkpoint.keep, checkpoint.keepBest: false); on a cluster also make the claim itself larger (`kubectl edit pvc`), for \
     checkpoint.volumeClaim.storage changes none that is there"
)]
pub struct Full;

/// An error of a run, with what helps where it comes of a [full](Full) disk.
pub fn explain(error: Error) -> Error {
    let has_no_room =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let is_full = error.chain().filter_map(|cause| cause.downcast_ref()).any(has_no_room);
    match is_full && !error.is::<Full>() {
        true => error.context(Full),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    /// What a write of a file in a checkpoint says that cannot be made.
    fn written(cause: io::Error) -> Error {
        let written = Err::<(), _>(cause).context("writing /run/model.safetensors (257 MiB)");
        written.context("cannot write the checkpoint of step 4").unwrap_err()
    }

    #[test]
    fn a_full_disk_or_quota_says_what_helps_once_and_then_what_failed() {
        // What Linux says to every write there.
        let full = std::fs::write("/dev/full", "x").unwrap_err();
        for cause in [full, io::ErrorKind::QuotaExceeded.into()] {
            let error = explain(explain(written(cause)).context("step 4"));
            let words = format!("{error:#}");
            for part in [
                "make room",
                "checkpoint.keep,",
                // Another size in the manifest leaves the claim that is full as it is.
                "make the claim itself larger",
                "step 4: writing /run/model.safetensors (257 MiB): ",
            ] {
                assert_eq!(words.matches(part).count(), 1, "{words} wants {part} once");
            }
        }
    }

    #[test]
    fn what_a_full_disk_has_no_part_in_stays_as_it_is() {
        for error in [
            written(io::ErrorKind::PermissionDenied.into()),
            anyhow!("out of memory"),
        ] {
            let words = format!("{error:#}");
            assert_eq!(format!("{:#}", explain(error)), words);
        }
    }
}
