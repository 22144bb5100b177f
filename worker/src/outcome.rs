//! How a process ended, for the operator and for people: its exit code and, in a pod, the termination message, which the operator reads.

mod cause;

use std::path::Path;

use anyhow::Result;
use ppo_crds::report::{Outcome, Reason, exit_code};

pub use self::cause::{BadData, Diverged, OtherFormat, RankLost, Relayed, RewardFailed, ServerFailed};
use crate::manifest::Invalid;
use crate::native::message::without_frames;
use crate::out_of_memory;
use crate::stop::Interrupted;

/// Where a container's last words are read from (`terminationMessagePath`'s default).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// The kubelet keeps the first 4096 bytes.
const LONGEST: usize = 4096;

/// How a run ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps are made.
    Completed,
    /// Asked to stop; what was trained is saved.
    Interrupted,
}

/// To be asked to stop, before there was anything to save, is no failure.
pub fn or_interrupted(ended: Result<Ended>) -> Result<Ended> {
    match ended {
        Err(error) if error.is::<Interrupted>() => Ok(Ended::Interrupted),
        ended => ended,
    }
}

/// The exit code of an error: 2 and 3 say that another try ends the same way.
pub fn code(error: &anyhow::Error) -> i32 {
    if let Some(relayed) = error.downcast_ref::<Relayed>() {
        return relayed.code;
    }
    match reason(error) {
        Reason::Diverged => exit_code::DIVERGED,
        Reason::Interrupted => exit_code::INTERRUPTED,
        _ if error.is::<Invalid>() || error.is::<BadData>() || error.is::<OtherFormat>() => {
            exit_code::BAD_CONFIGURATION
        }
        _ => 1,
    }
}

/// How a run ended, in words.
pub fn outcome(ended: &Result<Ended>) -> Outcome {
    let (reason, message) = match ended {
        Ok(Ended::Completed) => (Reason::Completed, "all steps are made"),
        Ok(Ended::Interrupted) => (
            Reason::Interrupted,
            "asked to stop; the next attempt goes on from the newest checkpoint",
        ),
        Err(error) => return failure(error),
    };
    Outcome {
        reason,
        message: message.to_owned(),
        progress: None,
    }
}

/// An error in words for people: its causes, and what would have helped where memory ran out.
pub fn words(error: &anyhow::Error) -> String {
    let causes = without_frames(&format!("{error:#}"));
    // No field of the run changes what a server elsewhere takes, and rank 0 has said what helps.
    let is_told = error.is::<ServerFailed>() || error.is::<Relayed>();
    match out_of_memory::advice(&causes).filter(|_| !is_told) {
        Some(advice) => format!("{}. {advice}", causes.trim_end_matches('.')),
        None => causes,
    }
}

/// An error as the way in which a run ended.
pub fn failure(error: &anyhow::Error) -> Outcome {
    Outcome {
        reason: reason(error),
        message: words(error),
        progress: None,
    }
}

fn reason(error: &anyhow::Error) -> Reason {
    if let Some(relayed) = error.downcast_ref::<Relayed>() {
        relayed.outcome.reason
    } else if error.is::<Diverged>() {
        Reason::Diverged
    } else if error.is::<Interrupted>() {
        Reason::Interrupted
    } else if error.is::<RewardFailed>() {
        Reason::RewardFailed
    } else if error.is::<BadData>() {
        Reason::DataError
    } else if error.is::<RankLost>() {
        Reason::RankLost
    } else {
        Reason::InternalError
    }
}

/// Leaves the outcome where the kubelet looks for a container's last words. Outside a container there is no such file, and
/// nothing is written.
pub fn leave_word(outcome: &Outcome) {
    let log = Path::new(TERMINATION_LOG);
    if !log.exists() {
        return;
    }
    let written = last_words(outcome).and_then(|words| Ok(std::fs::write(log, words)?));
    if let Err(error) = written {
        tracing::warn!("the outcome could not be left in {TERMINATION_LOG}: {error:#}");
    }
}

/// The outcome as JSON that the kubelet keeps whole: what is too long is cut from the message.
fn last_words(outcome: &Outcome) -> Result<Vec<u8>> {
    let mut short = outcome.clone();
    loop {
        let words = serde_json::to_vec(&short)?;
        if words.len() <= LONGEST || short.message.is_empty() {
            return Ok(words);
        }
        // A character takes up to six bytes of JSON.
        let beyond = (words.len() - LONGEST).div_ceil(6);
        let end = short.message.len().saturating_sub(beyond);
        short.message.truncate(short.message.floor_char_boundary(end));
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};
    use ppo_crds::status::Progress;

    use super::*;
    use crate::telemetry::Stage;

    #[test]
    fn what_helps_is_said_once_and_not_of_the_memory_of_a_server_elsewhere() {
        let scoring = Stage::Score.of_step(3);
        let here = anyhow!("CUDA out of memory")
            .context(RewardFailed)
            .context(scoring.clone());
        assert!(words(&here).contains("microRolloutBatchSize"), "{}", words(&here));
        let relayed = anyhow::Error::new(Relayed {
            outcome: failure(&here),
            code: 1,
        });
        assert_eq!(words(&relayed).matches("plan -f").count(), 1, "{}", words(&relayed));
        let there = ServerFailed("remote reward http://r/ failed: 500: CUDA out of memory".into());
        let there = anyhow::Error::new(there).context(RewardFailed).context(scoring);
        assert!(words(&there).ends_with("500: CUDA out of memory"), "{}", words(&there));
        assert_eq!(reason(&there), Reason::RewardFailed);
    }

    #[test]
    fn the_reason_is_found_below_what_was_said_on_the_way_up() {
        let diverged = Diverged {
            step: 3,
            what: "the loss is NaN".into(),
        };
        let error = anyhow::Error::new(diverged).context(Stage::UpdateActor.of_step(3));
        assert_eq!(code(&error), exit_code::DIVERGED);
        let outcome = outcome(&Err(error));
        assert_eq!(outcome.reason, Reason::Diverged);
        assert!(outcome.message.contains("update_actor of step 3: diverged in step 3"));

        let error = Err::<(), _>(anyhow!("503")).context(RewardFailed).context("step 1");
        assert_eq!(reason(&error.unwrap_err()), Reason::RewardFailed);
        let error = anyhow!("connection reset").context(RankLost("rank 1 is lost".into()));
        assert_eq!((code(&error), reason(&error)), (1, Reason::RankLost));
        assert_eq!(words(&error), "rank 1 is lost: connection reset");
        let invalid = anyhow::Error::from(Invalid::new("x".into())).context("y");
        assert_eq!(code(&invalid), exit_code::BAD_CONFIGURATION);
        assert_eq!(code(&anyhow!("else")), 1);
    }

    #[test]
    fn libtorchs_errors_come_without_its_functions_and_with_advice_where_memory_ran_out() {
        let frames = "Exception raised from malloc at CUDACachingAllocator.cpp:1 (most recent call first):\nframe #0: c10::Error";
        let torch = anyhow!("Internal torch error: CUDA out of memory. Tried to allocate 2.00 GiB.\n{frames}\n\n");
        let said = words(&torch.context(Stage::UpdateActor.of_step(2)));
        let begin =
            "update_actor of step 2: Internal torch error: CUDA out of memory. Tried to allocate 2.00 GiB. Less memory";
        assert!(said.starts_with(begin) && !said.contains("frame"), "{said}");
        assert_eq!(words(&anyhow!("a\nb").context("c")), "c: a\nb");
    }

    #[test]
    fn last_words_are_json_that_the_kubelet_keeps_whole() {
        for (message, kept) in [("short", 5), (&"\u{1}\"ä".repeat(3000), 1000)] {
            let outcome = Outcome {
                progress: Some(Progress::at(3, 4)),
                ..failure(&anyhow!("{message}"))
            };
            let written = last_words(&outcome).unwrap();
            assert!(written.len() <= LONGEST);
            let read: Outcome = serde_json::from_slice(&written).unwrap();
            assert!(message.starts_with(&read.message) && read.message.len() >= kept);
            assert_eq!(read.progress, outcome.progress);
        }
    }
}
