//! The optimizer's state on disk: a file for each rank that wrote it, `<model>-optimizer-<rank>-of-<count>.safetensors`, with its
//! part of the flat tensors. It is read on any number of ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tch::{Kind, Tensor};

use super::adamw::AdamW;
use crate::model::safetensors::read_file;
use crate::model::save::write_shard;
use crate::ranks::shard::Shard;

/// A part of the flat tensors, [own] float32 each.
#[derive(Debug)]
pub struct Saved {
    /// First moment.
    pub m: Tensor,
    /// Second moment.
    pub v: Tensor,
    /// Master weights; None where they are the model's own.
    pub master: Option<Tensor>,
}

/// Writes the part of `rank` of `count`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(
    folder: &Path,
    model: &str,
    (rank, count): (usize, usize),
    optimizer: &AdamW,
    master: Option<&Tensor>,
) -> Result<()> {
    let mut tensors = BTreeMap::from([
        ("m".to_owned(), optimizer.m.shallow_clone()),
        ("v".to_owned(), optimizer.v.shallow_clone()),
    ]);
    if let Some(master) = master {
        tensors.insert("master".to_owned(), master.shallow_clone());
    }
    write_shard(&file(folder, model, rank, count), &tensors.iter().collect::<Vec<_>>())
}

/// Reads the part `own` from the files of `folder`, however many ranks wrote them.
///
/// # Errors
/// When a file is missing or of another model.
pub fn read(folder: &Path, model: &str, own: Shard, wants_master: bool) -> Result<Saved> {
    let count = writers(folder, model)?;
    let empty =
        || Tensor::f_zeros([own.length], (Kind::Float, tch::Device::Cpu)).context("no memory for optimizer state");
    let saved = Saved {
        m: empty()?,
        v: empty()?,
        master: wants_master.then(empty).transpose()?,
    };
    for rank in 0..count {
        let written = Shard::of(own.elements, count, rank);
        let Some((start, length)) = own.overlap(written.start, written.end()) else {
            continue;
        };
        let file = file(folder, model, rank, count);
        let tensors = read_file(&file, Kind::Float, |_| true)?;
        let targets = [
            ("m", Some(&saved.m)),
            ("v", Some(&saved.v)),
            ("master", saved.master.as_ref()),
        ];
        for (name, target) in targets {
            let Some(target) = target else { continue };
            let tensor = tensors.get(name);
            let tensor = tensor.with_context(|| format!("{}: no tensor {name:?}", file.display()))?;
            ensure!(
                tensor.size() == [written.length],
                "{}: {name} has {:?} elements, the model's part {}: it is of another model",
                file.display(),
                tensor.size(),
                written.length
            );
            let part = tensor.f_narrow(0, start - written.start, length)?;
            target.f_narrow(0, start - own.start, length)?.f_copy_(&part)?;
        }
    }
    Ok(saved)
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
    use super::*;

    fn state(m: &[f32], v: &[f32]) -> AdamW {
        AdamW {
            m: Tensor::from_slice(m),
            v: Tensor::from_slice(v),
            updates: 0,
        }
    }

    #[test]
    fn what_two_ranks_wrote_three_and_one_read() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            "actor",
            (0, 2),
            &state(&[0., 1., 2.], &[5., 6., 7.]),
            None,
        )
        .unwrap();
        write(folder.path(), "actor", (1, 2), &state(&[3., 4.], &[8., 9.]), None).unwrap();
        let whole = read(folder.path(), "actor", Shard::of(5, 1, 0), false).unwrap();
        assert_eq!(whole.m, Tensor::from_slice(&[0f32, 1., 2., 3., 4.]));
        assert_eq!(whole.v, Tensor::from_slice(&[5f32, 6., 7., 8., 9.]));
        let middle = read(folder.path(), "actor", Shard::of(5, 3, 1), false).unwrap();
        assert_eq!(middle.m, Tensor::from_slice(&[2f32, 3.]));
        let last = read(folder.path(), "actor", Shard::of(5, 3, 2), false).unwrap();
        assert_eq!(last.v, Tensor::from_slice(&[9f32]));
    }

    #[test]
    fn state_of_another_model_and_a_part_that_is_missing_are_told_by_file() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "actor", (0, 2), &state(&[0.; 3], &[0.; 3]), None).unwrap();
        let read = |elements| {
            format!(
                "{:#}",
                read(folder.path(), "actor", Shard::of(elements, 1, 0), false).unwrap_err()
            )
        };
        assert!(read(9).contains("another model"), "{}", read(9));
        assert!(read(5).contains("actor-optimizer-00001-of-00002"), "{}", read(5));
        let none = super::read(folder.path(), "critic", Shard::of(5, 1, 0), false).unwrap_err();
        assert!(none.to_string().contains("no optimizer state of the critic"));
    }
}
