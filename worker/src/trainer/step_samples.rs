//! The samples of a step as the engines gave them. A checkpoint keeps those of its next step when they are older than its
//! weights: nobody could draw them again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ppo_crds::spec::Overlap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::engine::{Completion, FinishReason};

/// Their file in a checkpoint.
const FILE: &str = "samples-ahead.safetensors";

/// The samples of a step as the engines gave them.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSamples {
    /// The step that learns from them: steps completed when it begins.
    pub step: u64,
    /// Of each of its prompts, in their order.
    pub completions: Vec<Vec<Completion>>,
    /// From asking for them until the last was there.
    pub took: Duration,
}

/// A sample of a version that this step must not learn from.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sample for step {} has tokens of policy version {drawn}; with overlap: {} that step learns from versions {oldest} to {step} \
     only: an engine drew with weights that it was not given for it",
    step + 1, overlap.word()
)]
pub struct Stale {
    step: u64,
    drawn: u64,
    oldest: u64,
    overlap: Overlap,
}

impl StepSamples {
    /// The version fence: no token is of a newer policy than the step's, or of an older one than `overlap` allows.
    ///
    /// # Errors
    /// [`Stale`], for the first that is.
    pub fn check(&self, overlap: Overlap) -> Result<(), Stale> {
        let step = self.step;
        let oldest = step.saturating_sub(overlap.staleness());
        let mut versions = self.completions.iter().flatten().flat_map(|sample| &sample.versions);
        match versions.find(|drawn| !(oldest..=step).contains(drawn)) {
            None => Ok(()),
            Some(&drawn) => Err(Stale {
                step,
                drawn,
                oldest,
                overlap,
            }),
        }
    }

    /// Writes them into a checkpoint's folder: every number to the bit.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let samples = || self.completions.iter().flatten();
        let columns = [
            Column::of("step", Dtype::U64, [self.step], u64::to_le_bytes),
            Column::of("seconds", Dtype::F64, [self.took.as_secs_f64()], f64::to_le_bytes),
            Column::of(
                "samples",
                Dtype::U64,
                self.completions.iter().map(|group| group.len() as u64),
                u64::to_le_bytes,
            ),
            Column::of(
                "lengths",
                Dtype::U64,
                samples().map(|sample| sample.tokens.len() as u64),
                u64::to_le_bytes,
            ),
            Column::of(
                "finish_reasons",
                Dtype::U8,
                samples().map(|sample| code(sample.finish_reason)),
                u8::to_le_bytes,
            ),
            Column::of(
                "tokens",
                Dtype::U32,
                samples().flat_map(|sample| sample.tokens.iter().copied()),
                u32::to_le_bytes,
            ),
            Column::of(
                "logprobs",
                Dtype::F32,
                samples().flat_map(|sample| sample.logprobs.iter().copied()),
                f32::to_le_bytes,
            ),
            Column::of(
                "versions",
                Dtype::U64,
                samples().flat_map(|sample| sample.versions.iter().copied()),
                u64::to_le_bytes,
            ),
        ];
        let views = columns.iter().map(Column::view).collect::<Result<Vec<_>>>()?;
        let path = folder.join(FILE);
        // The checkpoint makes its files durable, and knows their hashes.
        let bytes = safetensors::serialize(views, None)?;
        std::fs::write(&path, &bytes)
            .with_context(|| format!("cannot write {} bytes to {}", bytes.len(), path.display()))
    }

    /// Those of a checkpoint; None when it has none.
    ///
    /// # Errors
    /// When the file cannot be read or is no whole one.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let samples = parse(&bytes).with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(samples))
    }
}

/// Numbers of one kind, as safetensors have them.
struct Column {
    name: &'static str,
    dtype: Dtype,
    count: usize,
    bytes: Vec<u8>,
}

impl Column {
    fn of<T, const N: usize>(
        name: &'static str,
        dtype: Dtype,
        values: impl IntoIterator<Item = T>,
        bytes: fn(T) -> [u8; N],
    ) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(bytes).collect();
        let count = bytes.len() / N;
        Self {
            name,
            dtype,
            count,
            bytes,
        }
    }

    fn view(&self) -> Result<(&'static str, TensorView<'_>)> {
        Ok((self.name, TensorView::new(self.dtype, vec![self.count], &self.bytes)?))
    }
}

fn parse(bytes: &[u8]) -> Result<StepSamples> {
    let file = SafeTensors::deserialize(bytes)?;
    let sizes = |name: &str| -> Result<Vec<usize>> {
        let numbers = column(&file, name, Dtype::U64, u64::from_le_bytes)?;
        Ok(numbers.into_iter().map(usize::try_from).collect::<Result<_, _>>()?)
    };
    let step = column(&file, "step", Dtype::U64, u64::from_le_bytes)?;
    let seconds = column(&file, "seconds", Dtype::F64, f64::from_le_bytes)?;
    let (groups, lengths) = (sizes("samples")?, sizes("lengths")?);
    let reasons = column(&file, "finish_reasons", Dtype::U8, u8::from_le_bytes)?;
    let tokens = column(&file, "tokens", Dtype::U32, u32::from_le_bytes)?;
    let logprobs = column(&file, "logprobs", Dtype::F32, f32::from_le_bytes)?;
    let versions = column(&file, "versions", Dtype::U64, u64::from_le_bytes)?;
    let sum = |sizes: &[usize]| sizes.iter().try_fold(0, |sum: usize, size| sum.checked_add(*size));
    ensure!(
        sum(&groups) == Some(lengths.len()) && reasons.len() == lengths.len(),
        "its samples do not add up"
    );
    ensure!(
        sum(&lengths) == Some(tokens.len()) && logprobs.len() == tokens.len() && versions.len() == tokens.len(),
        "its tokens do not add up"
    );
    let mut cells = tokens.into_iter().zip(logprobs).zip(versions);
    let completion = |(length, reason): (usize, u8)| -> Result<Completion> {
        let cells = cells.by_ref().take(length);
        let ((tokens, logprobs), versions) = cells.unzip();
        Ok(Completion {
            tokens,
            logprobs,
            finish_reason: reason_of(reason)?,
            versions,
            top_logprobs: Vec::new(),
            prompt_logprobs: None,
        })
    };
    let samples: Vec<Completion> = lengths
        .into_iter()
        .zip(reasons)
        .map(completion)
        .collect::<Result<_>>()?;
    let mut samples = samples.into_iter();
    Ok(StepSamples {
        step: *step.first().context("it has no step")?,
        took: Duration::try_from_secs_f64(*seconds.first().context("it has no seconds")?)?,
        completions: groups
            .into_iter()
            .map(|size| samples.by_ref().take(size).collect())
            .collect(),
    })
}

fn column<T, const N: usize>(file: &SafeTensors, name: &str, dtype: Dtype, read: fn([u8; N]) -> T) -> Result<Vec<T>> {
    let view = file.tensor(name)?;
    ensure!(
        view.dtype() == dtype,
        "{name} are {:?} instead of {dtype:?}",
        view.dtype()
    );
    let (cells, _) = view.data().as_chunks::<N>();
    Ok(cells.iter().map(|cell| read(*cell)).collect())
}

fn code(reason: FinishReason) -> u8 {
    match reason {
        FinishReason::Stop => 0,
        FinishReason::Length => 1,
        FinishReason::Abort => 2,
    }
}

fn reason_of(code: u8) -> Result<FinishReason> {
    Ok(match code {
        0 => FinishReason::Stop,
        1 => FinishReason::Length,
        2 => FinishReason::Abort,
        other => bail!("{other} is no finish reason"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(versions: &[u64], finish_reason: FinishReason) -> Completion {
        let count = versions.len() as u32;
        Completion {
            tokens: (7..7 + count).collect(),
            logprobs: (0..count).map(|token| -1e-7 / (token as f32 + 3.0)).collect(),
            finish_reason,
            versions: versions.to_vec(),
            top_logprobs: Vec::new(),
            prompt_logprobs: None,
        }
    }

    fn of_versions(step: u64, versions: &[u64]) -> StepSamples {
        StepSamples {
            step,
            completions: vec![
                vec![sample(&[step], FinishReason::Stop)],
                vec![sample(versions, FinishReason::Length)],
            ],
            took: Duration::from_millis(1500),
        }
    }

    #[test]
    fn a_sample_that_is_older_than_the_run_allows_is_refused_and_so_is_one_of_a_newer_policy() {
        let ages = |overlap, step, versions: &[u64]| of_versions(step, versions).check(overlap).is_ok();
        assert!(ages(Overlap::None, 5, &[5, 5]));
        assert!(!ages(Overlap::None, 5, &[4, 5]) && !ages(Overlap::None, 5, &[5, 6]));
        assert!(ages(Overlap::OneStep, 5, &[4, 5]) && ages(Overlap::OneStep, 0, &[0]));
        assert!(!ages(Overlap::OneStep, 5, &[4, 3]) && !ages(Overlap::OneStep, 5, &[6, 4]));
        let words = of_versions(5, &[5, 3]).check(Overlap::OneStep).unwrap_err().to_string();
        assert!(
            words.contains("step 6 has tokens of policy version 3") && words.contains("versions 4 to 5 only"),
            "{words}"
        );
    }

    #[test]
    fn what_a_checkpoint_keeps_is_what_the_engines_gave() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(StepSamples::load(folder.path()).unwrap(), None);
        let samples = of_versions(3, &[2, 2, 2]);
        samples.save(folder.path()).unwrap();
        assert_eq!(StepSamples::load(folder.path()).unwrap(), Some(samples));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        of_versions(3, &[2, 2]).save(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = format!("{:#}", StepSamples::load(folder.path()).unwrap_err());
        assert!(error.contains(FILE) && error.contains("is damaged"), "{error}");
    }

    #[test]
    fn samples_that_cannot_be_read_are_not_drawn_again_by_another_policy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        // A link to itself: what the system says to it is not that the file is missing.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let error = StepSamples::load(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains(FILE), "{error}");
    }
}
