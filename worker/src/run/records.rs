//! Records of steps that nobody could make again: a run cuts them back to the checkpoint that it goes on from, and without one all would go.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::guard::Afresh;
use crate::actor::checkpoint::Checkpoints;
use crate::manifest::Invalid;
use crate::telemetry::{EventRecord, RunDir, Stage, StepReport, read_lines};

/// Looks at the records in `dir` before a run begins there that has found no checkpoint in `saved_in`. Those of a run that ended before its
/// first checkpoint may go: it begins again.
///
/// # Errors
/// [`Invalid`], where a checkpoint had been saved; when the records cannot be read.
pub fn refuse_to_lose(dir: &RunDir, saved_in: &Path, anew: Afresh) -> Result<()> {
    let steps = lines::<StepReport>(&dir.metrics())?;
    let Some(last) = steps.iter().map(|report| report.step).max().filter(|step| *step > 0) else {
        return Ok(());
    };
    let events = lines::<EventRecord>(&dir.events())?;
    let cure = match (saved_elsewhere(dir), saved(&steps, &events)) {
        (None, None) => return Ok(()),
        (Some((folder, step)), _) => format!(
            "give spec.checkpoint its place again, {}, which has that of step {step}",
            folder.display()
        ),
        (None, Some(step)) => format!("put that of step {step} back, or name its place in spec.checkpoint"),
    };
    Err(Invalid::new(format!(
        "{} has records up to step {last}, which a run that begins anew would cut off, and no checkpoint is in {}: {cure}; or {}",
        dir.root().display(),
        saved_in.display(),
        anew.words()
    ))
    .into())
}

/// The newest checkpoint in the place that the last run here saved in, and its step, if it learnt anything.
fn saved_elsewhere(dir: &RunDir) -> Option<(PathBuf, u64)> {
    let config: Value = serde_json::from_slice(&std::fs::read(dir.run_config()).ok()?).ok()?;
    let named = config.pointer("/checkpoint/path")?.as_str();
    let folder = named.map_or_else(|| dir.checkpoints(), PathBuf::from);
    // To open them makes the folder.
    let there = folder.is_dir().then(|| Checkpoints::open(folder.clone(), 1, false));
    let (_, state) = there?.ok()?.newest().ok()??;
    (state.step > 0).then_some((folder, state.step))
}

/// The newest step that a checkpoint was saved of, as far as records tell: how long that took is told with what came next.
fn saved(steps: &[StepReport], events: &[EventRecord]) -> Option<u64> {
    let last = steps.iter().map(|report| report.step).max()?;
    let took_time = |report: &&StepReport| report.stages.iter().any(|(stage, _)| *stage == Stage::Checkpoint);
    let next = steps.iter().filter(took_time);
    let before = next.map(|report| report.step.saturating_sub(1));
    // Events are never cut: later ones are of a run that was begun anew since.
    let tells = |event: &&EventRecord| {
        event.step <= last && (event.kind == "resumed" || event.stages.contains_key(Stage::Checkpoint.name()))
    };
    let told = events.iter().filter(tells).map(|event| event.step);
    before.chain(told).filter(|step| *step > 0).max()
}

/// Of a regular file: a pipe or a device has no past.
fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    match path.is_file() {
        true => Ok(read_lines(path)?.records),
        false => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    /// Of the steps 1 to `last`, after a checkpoint before the steps of `saved`.
    fn steps(last: u64, after_checkpoint: &[u64]) -> Vec<StepReport> {
        let report = |step| StepReport {
            step,
            stages: match after_checkpoint.contains(&step) {
                true => vec![(Stage::Checkpoint, Duration::from_secs(1))],
                false => Vec::new(),
            },
            ..StepReport::default()
        };
        (1..=last).map(report).collect()
    }

    fn event(step: u64, kind: &str, saved: bool) -> EventRecord {
        let stages = saved.then(|| (Stage::Checkpoint.name().to_owned(), 1.0));
        EventRecord {
            time: 0.0,
            step,
            kind: kind.into(),
            message: String::new(),
            stages: BTreeMap::from_iter(stages),
        }
    }

    #[test]
    fn records_tell_of_a_checkpoint_by_the_time_it_took_and_of_none_where_the_run_had_saved_none() {
        assert_eq!(saved(&steps(3, &[]), &[]), None);
        assert_eq!(saved(&steps(3, &[]), &[event(3, "failed", false)]), None);
        assert_eq!(saved(&steps(9, &[3, 6]), &[]), Some(5));
        assert_eq!(saved(&steps(9, &[3]), &[event(9, "stopped", true)]), Some(9));
        assert_eq!(saved(&steps(9, &[]), &[event(4, "resumed", false)]), Some(4));
        // Nothing was learnt before step 1.
        assert_eq!(saved(&steps(3, &[]), &[event(0, "stopped", true)]), None);
        // Of a run whose records are gone already.
        assert_eq!(saved(&steps(3, &[]), &[event(9, "stopped", true)]), None);
        assert_eq!(saved(&[], &[event(9, "stopped", true)]), None);
    }

    #[test]
    fn records_are_lost_only_where_no_checkpoint_had_been_saved() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        let saved_in = root.path().join("other");
        let record = |steps: &[StepReport]| {
            let line = |report: &StepReport| serde_json::to_string(report).unwrap() + "\n";
            std::fs::write(dir.metrics(), steps.iter().map(line).collect::<String>()).unwrap();
        };
        let refuse = |anew: Afresh| refuse_to_lose(&dir, &saved_in, anew);
        refuse(Afresh::Here).unwrap();
        record(&steps(3, &[]));
        refuse(Afresh::Here).unwrap();
        record(&steps(3, &[3]));
        let refused = refuse(Afresh::InPod(dir.root())).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        for part in [
            "has records up to step 3",
            "no checkpoint is in",
            "put that of step 2 back",
        ] {
            assert!(words.contains(part), "{words}");
        }
        assert!(
            words.contains(&format!("or move {} away", root.path().display())),
            "{words}"
        );
        assert!(!saved_in.exists());
    }
}
