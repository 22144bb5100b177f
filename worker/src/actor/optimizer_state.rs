//! The optimizer's state on disk: a file for each rank that wrote it, `<model>-optimizer-<rank>-of-<count>.safetensors`, with its
//! part of the flat tensors. It is read on any number of ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tch::Tensor;

use crate::model::safetensors::visit_file;
use crate::model::save::write_shard;
use crate::shard::Shard;

/// A part of the flat tensors, [own] each, on any device.
#[derive(Debug)]
pub struct State<'a> {
    /// First moment, float32.
    pub m: &'a Tensor,
    /// Second moment, float32.
    pub v: &'a Tensor,
    /// Of the master weights what is not in the model, int16; None where they are the model's own.
    pub rest: Option<&'a Tensor>,
}

impl<'a> State<'a> {
    fn named(&self) -> impl Iterator<Item = (&'static str, &'a Tensor)> {
        let rest = self.rest.map(|rest| ("rest", rest));
        [("m", self.m), ("v", self.v)].into_iter().chain(rest)
    }
}

/// Writes the part of `rank` of `count`: the file.
///
/// # Errors
/// When the file cannot be written.
pub fn write(folder: &Path, model: &str, (rank, count): (usize, usize), state: &State) -> Result<PathBuf> {
    let named = state.named().map(|(name, tensor)| (name.to_owned(), tensor));
    let tensors: Vec<(String, &Tensor)> = named.collect();
    let tensors: Vec<(&String, &Tensor)> = tensors.iter().map(|(name, tensor)| (name, *tensor)).collect();
    let file = file(folder, model, rank, count);
    write_shard(&file, &tensors)?;
    Ok(file)
}

/// Reads the part `own` from the files of `folder`, however many ranks wrote them, into `state`: from the file to where it stays, through
/// no copy of it.
///
/// # Errors
/// When a file is missing or of another model.
pub fn read(folder: &Path, model: &str, own: Shard, state: &State) -> Result<()> {
    let count = writers(folder, model)?;
    for rank in 0..count {
        let written = Shard::of(own.elements, count, rank);
        let Some((start, length)) = own.overlap(written.start, written.end()) else {
            continue;
        };
        let file = file(folder, model, rank, count);
        let mut missing: BTreeMap<&str, &Tensor> = state.named().collect();
        visit_file(&file, |name, stored| {
            let Some(target) = missing.remove(name) else {
                return Ok(());
            };
            ensure!(
                stored.size()? == [written.length],
                "it has {:?} elements, the model's part {}: it is of another model",
                stored.size()?,
                written.length
            );
            let part = target.f_narrow(0, start - own.start, length)?;
            stored.copy_part_to(&part, usize::try_from(start - written.start)?)
        })?;
        ensure!(
            missing.is_empty(),
            "{}: tensors are missing: {:?}",
            file.display(),
            missing.keys()
        );
    }
    Ok(())
}

/// Waits until the folder lists the parts of all `count` ranks of each model: what is not listed is not committed, and a shared file
/// system may show late what another machine wrote.
///
/// # Errors
/// When parts are still missing after `patience`, naming them; when the folder cannot be listed.
pub fn listed(folder: &Path, models: &[&str], count: usize, patience: Duration) -> Result<()> {
    let began = Instant::now();
    let of_model = |model: &&str| {
        (0..count)
            .map(|rank| file(folder, model, rank, count))
            .collect::<Vec<_>>()
    };
    let wanted: BTreeSet<PathBuf> = models.iter().flat_map(of_model).collect();
    loop {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let there = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<BTreeSet<_>>>()?;
        let missing: Vec<_> = wanted.difference(&there).filter_map(|file| file.file_name()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        ensure!(
            began.elapsed() < patience,
            "{} lacks {missing:?}: the ranks that wrote them may see another folder under this name",
            folder.display()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn file(folder: &Path, model: &str, rank: usize, count: usize) -> PathBuf {
    folder.join(format!("{model}-optimizer-{rank:05}-of-{count:05}.safetensors"))
}

/// How many ranks wrote the state.
fn writers(folder: &Path, model: &str) -> Result<usize> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        let count = name.to_str().and_then(|name| {
            let rest = name.strip_prefix(model)?.strip_prefix("-optimizer-00000-of-")?;
            rest.strip_suffix(".safetensors")?.parse().ok()
        });
        match count {
            None => {}
            Some(0) => bail!("{} has {name:?}, which no rank writes", folder.display()),
            Some(count) => return Ok(count),
        }
    }
    bail!("{} has no optimizer state of the {model}", folder.display())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn written(folder: &Path, part: (usize, usize), m: &[f32], v: &[f32]) {
        let (m, v) = (Tensor::from_slice(m), Tensor::from_slice(v));
        let state = State {
            m: &m,
            v: &v,
            rest: None,
        };
        write(folder, "actor", part, &state).unwrap();
    }

    fn read_back(folder: &Path, model: &str, own: Shard) -> Result<[Tensor; 2]> {
        let [m, v] = [(); 2].map(|()| Tensor::zeros([own.length], (Kind::Float, Device::Cpu)));
        let state = State {
            m: &m,
            v: &v,
            rest: None,
        };
        read(folder, model, own, &state)?;
        Ok([m, v])
    }

    #[test]
    fn what_two_ranks_wrote_three_and_one_read() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), (0, 2), &[0., 1., 2.], &[5., 6., 7.]);
        written(folder.path(), (1, 2), &[3., 4.], &[8., 9.]);
        let of = |rank: usize, count: usize| read_back(folder.path(), "actor", Shard::of(5, count, rank)).unwrap();
        let [m, v] = of(0, 1);
        assert_eq!(m, Tensor::from_slice(&[0f32, 1., 2., 3., 4.]));
        assert_eq!(v, Tensor::from_slice(&[5f32, 6., 7., 8., 9.]));
        assert_eq!(of(1, 3)[0], Tensor::from_slice(&[2f32, 3.]));
        assert_eq!(of(2, 3)[1], Tensor::from_slice(&[9f32]));
    }

    #[test]
    fn what_rounding_took_from_bfloat16_weights_is_read_on_another_number_of_ranks_too() {
        let folder = tempfile::tempdir().unwrap();
        for (rank, rest) in [&[-3i16, 2, 7][..], &[32767, -32768]].into_iter().enumerate() {
            let moment = Tensor::zeros([rest.len() as i64], (Kind::Float, Device::Cpu));
            let rest = Tensor::from_slice(rest);
            let (m, v, rest) = (&moment, &moment, Some(&rest));
            write(folder.path(), "actor", (rank, 2), &State { m, v, rest }).unwrap();
        }
        for (rank, wanted) in [&[-3i16, 2][..], &[7, 32767], &[-32768]].into_iter().enumerate() {
            let own = Shard::of(5, 3, rank);
            let moment = Tensor::zeros([own.length], (Kind::Float, Device::Cpu));
            let rest = Tensor::zeros([own.length], (Kind::Int16, Device::Cpu));
            let (m, v) = (&moment, &moment);
            let rest_of = State {
                m,
                v,
                rest: Some(&rest),
            };
            read(folder.path(), "actor", own, &rest_of).unwrap();
            assert_eq!(rest, Tensor::from_slice(wanted), "rank {rank}");
        }
    }

    #[test]
    fn a_part_that_another_machine_wrote_is_waited_for_and_named_where_it_never_shows() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), (0, 2), &[0.; 3], &[0.; 3]);
        let models = ["actor"];
        let missing = listed(folder.path(), &models, 2, Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("actor-optimizer-00001-of-00002") && !missing.contains("00000-of"),
            "{missing}"
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listed(folder.path(), &models, 2, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(50));
            written(folder.path(), (1, 2), &[0.; 2], &[0.; 2]);
            waiting.join().unwrap().unwrap();
        });
        let critic = listed(folder.path(), &["actor", "critic"], 2, Duration::ZERO).unwrap_err();
        assert!(
            critic.to_string().contains("critic-optimizer-00000-of-00002"),
            "{critic}"
        );
    }

    #[test]
    fn state_of_another_model_and_a_part_that_is_missing_are_told_by_file() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), (0, 2), &[0.; 3], &[0.; 3]);
        let words = |elements| {
            let read = read_back(folder.path(), "actor", Shard::of(elements, 1, 0));
            format!("{:#}", read.unwrap_err())
        };
        assert!(words(9).contains("another model"), "{}", words(9));
        assert!(words(5).contains("actor-optimizer-00001-of-00002"), "{}", words(5));
        let none = read_back(folder.path(), "critic", Shard::of(5, 1, 0)).unwrap_err();
        assert!(none.to_string().contains("no optimizer state of the critic"));
    }
}
