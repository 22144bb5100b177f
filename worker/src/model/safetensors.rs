//! Reading safetensors, one file or shards under an index, tensor by tensor through a memory map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::OFlags;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::target::Target;
use super::unread;
use crate::hub::{foreign, only_a_pointer};
use crate::native::{device, mapped};

/// Name of the single file.
pub const SINGLE: &str = "model.safetensors";
/// Name of the shards' index.
pub const INDEX: &str = "model.safetensors.index.json";

/// Bytes that the disk is asked for while those before them are copied.
const AHEAD: usize = 32 << 20;

/// Where tensors that were read lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Memory {
    /// In their own: each is copied once, and the files may change.
    Own,
    /// In the mapped files, those that are on the CPU and stored in the precision that is asked for: for whoever reads them once and
    /// soon.
    Mapped,
}

/// Reads the wanted tensors of a model folder to `target`.
///
/// # Errors
/// When no weights are there, an index names a file or tensor that is not there, or a file is truncated or corrupt.
pub fn read(
    folder: &Path,
    target: impl Into<Target>,
    memory: Memory,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let target = target.into();
    let mut tensors = BTreeMap::new();
    visit(folder, wanted, |name, stored| {
        tensors.insert(name.to_owned(), take(stored, target, memory)?);
        Ok(())
    })?;
    Ok(tensors)
}

/// Shows `see` the wanted tensors of a model folder, file after file, each where it lies.
///
/// # Errors
/// When no weights are there, an index names a file or tensor that is not there, or a file is truncated or corrupt; those of `see`, with
/// the file and the tensor's name.
pub fn visit(
    folder: &Path,
    wanted: impl Fn(&str) -> bool,
    mut see: impl FnMut(&str, &Stored) -> Result<()>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    let see_wanted = |name: &str, stored: &Stored| match wanted(name) {
        true => {
            seen.insert(name.to_owned());
            see(name, stored)
        }
        false => Ok(()),
    };
    // The whole file first, as transformers does: an index beside it is of an earlier save.
    let single = folder.join(SINGLE);
    let index = folder.join(INDEX);
    if !single.exists() && index.exists() {
        let named = visit_shards(folder, &index, see_wanted)?;
        let lost = named.into_iter().filter(|name| wanted(name) && !seen.contains(name));
        let lost: Vec<String> = lost.collect();
        ensure!(
            lost.is_empty(),
            "{} names tensors that its shards do not hold: {}",
            index.display(),
            lost.join(", ")
        );
        return Ok(());
    }
    if !single.exists() {
        bail!(
            "{} has neither {SINGLE} nor {INDEX}: {}",
            folder.display(),
            foreign::told(folder)
                .unwrap_or("weights must be in safetensors (transformers' save_pretrained writes them)")
        );
    }
    visit_file(&single, see_wanted)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Shows `see` the tensors of all shards: the names of those that the index has.
fn visit_shards(
    folder: &Path,
    path: &Path,
    mut see: impl FnMut(&str, &Stored) -> Result<()>,
) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let index: Index =
        serde_json::from_str(&text).with_context(|| format!("{} is not an index of shards", path.display()))?;
    for file in index.weight_map.values().collect::<BTreeSet<_>>() {
        ensure!(
            Path::new(file).file_name().is_some_and(|name| name == file.as_str()),
            "{} names {file}: shards must lie beside the index",
            path.display()
        );
        let shard = folder.join(file);
        ensure!(
            shard.exists(),
            "{} is missing, but {} names it",
            shard.display(),
            path.display()
        );
        visit_file(&shard, &mut see)?;
    }
    Ok(index.weight_map.into_keys().collect())
}

/// Reads the wanted tensors of one safetensors file to `target`.
///
/// # Errors
/// When the file cannot be read, or its header or length is wrong.
pub fn read_file(
    path: &Path,
    target: impl Into<Target>,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let target = target.into();
    let mut tensors = BTreeMap::new();
    visit_file(path, |name, stored| {
        if wanted(name) {
            tensors.insert(name.to_owned(), take(stored, target, Memory::Own)?);
        }
        Ok(())
    })?;
    Ok(tensors)
}

fn take(stored: &Stored, Target { kind, device }: Target, memory: Memory) -> Result<Tensor> {
    if memory == Memory::Mapped && device == Device::Cpu {
        return Ok(stored.mapped()?.f_to_kind(kind)?);
    }
    let tensor = Tensor::f_empty(stored.size()?, (kind, device))?;
    stored.copy_to(&tensor)?;
    Ok(tensor)
}

/// Shows `visit` the tensors of one safetensors file, where they lie in it and in that order: what comes next is read ahead.
///
/// # Errors
/// When the file cannot be read, or its header or length is wrong; those of `visit`, with the tensor's name.
pub fn visit_file(path: &Path, mut visit: impl FnMut(&str, &Stored) -> Result<()>) -> Result<()> {
    let map = map(path).with_context(|| format!("reading {}", path.display()))?;
    let file = SafeTensors::deserialize(&map).with_context(|| {
        let why = only_a_pointer(&map).unwrap_or("not a whole safetensors file (truncated or corrupt)");
        format!("{} is {why}", path.display())
    })?;
    let mut views: Vec<_> = file.iter().collect();
    views.sort_by_key(|(_, view)| view.data().as_ptr() as usize);
    for (name, view) in views {
        visit(name, &Stored { view, map: &map }).with_context(|| format!("{}: tensor {name}", path.display()))?;
    }
    Ok(())
}

fn map(path: &Path) -> Result<Arc<MmapMut>> {
    // A pipe of that name, which nobody may ever write to, is opened without waiting, and refused.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path)?;
    ensure!(file.metadata()?.is_file(), "it is no regular file");
    // SAFETY: the map is private: what is written to a tensor stays here. A file that shrinks under it would fault: model folders
    // are replaced by rename, never rewritten in place (as `save` does).
    let map = unsafe { MmapOptions::new().map_copy(&file)? };
    if let Err(error) = map.advise(Advice::Sequential) {
        tracing::debug!("{} is read as the system likes: {error}", path.display());
    }
    Ok(Arc::new(map))
}

/// A tensor in a file.
#[derive(Debug)]
pub struct Stored<'a> {
    view: TensorView<'a>,
    map: &'a Arc<MmapMut>,
}

impl Stored<'_> {
    /// Its dimensions.
    ///
    /// # Errors
    /// When they are no number of elements.
    pub fn size(&self) -> Result<Vec<i64>> {
        let shape = self.view.shape().iter();
        shape.map(|dim| Ok(i64::try_from(*dim)?)).collect()
    }

    /// It where it lies in the file.
    ///
    /// # Errors
    /// As [`kind`](Self::kind).
    fn mapped(&self) -> Result<Tensor> {
        let start = self.view.data().as_ptr() as usize - self.map.as_ptr() as usize;
        mapped::over(self.map, start, &self.size()?, self.kind()?)
    }

    /// Writes it into `target`, which has as many elements, in any precision and on any device.
    ///
    /// # Errors
    /// As [`kind`](Self::kind); when it has another number of elements.
    pub fn copy_to(&self, target: &Tensor) -> Result<()> {
        self.copy(target, self.view.data(), self.kind()?)
    }

    /// Writes the elements `from..` of it into `target`, as many as that has. Whole numbers of 16 bits go where such are wanted.
    ///
    /// # Errors
    /// When it is of no floating point type, or too short.
    pub fn copy_part_to(&self, target: &Tensor, from: usize) -> Result<()> {
        let kind = match (self.view.dtype(), target.kind()) {
            (Dtype::I16, Kind::Int16) => Kind::Int16,
            (other, Kind::Int16) => bail!("it is {other:?}; I16 is needed"),
            (other, _) => stored_kind(other).with_context(|| format!("it is {other:?}; floating point is needed"))?,
        };
        let size = kind.elt_size_in_bytes();
        let bytes = self.view.data().get(from * size..(from + target.numel()) * size);
        self.copy(target, bytes.context("it is too short")?, kind)
    }

    /// Writes `bytes` of it into `target`. A network's disk answers many requests in the time of one, so the next piece is asked for
    /// before this one is copied; more than that would push out of memory what is not copied yet.
    fn copy(&self, target: &Tensor, bytes: &[u8], kind: Kind) -> Result<()> {
        let size = kind.elt_size_in_bytes();
        ensure!(
            bytes.len() == target.numel() * size,
            "it has {} bytes, and {} numbers of {size} bytes are wanted",
            bytes.len(),
            target.numel()
        );
        let flat = target.f_view([-1])?;
        let mut start = 0;
        for piece in bytes.chunks(AHEAD) {
            self.ask_for(piece);
            let after = (start + AHEAD).min(bytes.len());
            self.ask_for(&bytes[after..(after + AHEAD).min(bytes.len())]);
            let part = flat.f_narrow(0, (start / size) as i64, (piece.len() / size) as i64)?;
            device::fill(&part, piece, kind)?;
            start = after;
        }
        Ok(())
    }

    /// Begins to read `bytes` of the file. It is a wish: where the system does not grant it, they are read when they are touched.
    fn ask_for(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = bytes.as_ptr() as usize - self.map.as_ptr() as usize;
        let _ = self.map.advise_range(Advice::WillNeed, start, bytes.len());
    }

    /// What its numbers are.
    ///
    /// # Errors
    /// When no weights of such numbers are read, with what to do.
    pub fn kind(&self) -> Result<Kind> {
        let dtype = self.view.dtype();
        stored_kind(dtype).with_context(|| unread::by_numbers(dtype))
    }
}

fn stored_kind(dtype: Dtype) -> Option<Kind> {
    match dtype {
        Dtype::F64 => Some(Kind::Double),
        Dtype::F32 => Some(Kind::Float),
        Dtype::F16 => Some(Kind::Half),
        Dtype::BF16 => Some(Kind::BFloat16),
        _ => None,
    }
}

/// A shard's file name: `model-00001-of-00003.safetensors`, or the single file's.
pub(super) fn shard_name(shard: usize, shards: usize) -> PathBuf {
    if shards == 1 {
        return SINGLE.into();
    }
    format!("model-{:05}-of-{shards:05}.safetensors", shard + 1).into()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;
    use crate::model::save::write_shard;

    #[test]
    fn a_pipe_in_the_place_of_weights_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        mkfifoat(CWD, folder.path().join(SINGLE), Mode::RUSR).unwrap();
        let error = visit(folder.path(), |_| true, |_, _| Ok(())).unwrap_err();
        let words = format!("{error:#}");
        assert!(words.ends_with("model.safetensors: it is no regular file"), "{words}");
    }

    #[test]
    fn a_clone_without_git_lfs_is_told_to_bring_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SINGLE);
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
        std::fs::write(&file, pointer).unwrap();
        let words = format!("{:#}", visit_file(&file, |_, _| Ok(())).unwrap_err());
        assert!(words.contains("model.safetensors is a pointer of Git LFS"), "{words}");
    }

    #[test]
    fn tensors_are_seen_in_the_order_of_the_file_and_copied_whole_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(SINGLE);
        // More than a piece, and no whole number of them.
        let count = (AHEAD / 4) as i64 + 5;
        let large = Tensor::arange(count, (Kind::Float, Device::Cpu));
        let small = Tensor::from_slice(&[2.5f32]);
        let names: Vec<String> = (0..20).map(|number| format!("small.{number:02}")).collect();
        let mut tensors: Vec<(&String, &Tensor)> = names.iter().map(|name| (name, &small)).collect();
        let name = "large".to_owned();
        tensors.push((&name, &large));
        write_shard(&file, &tensors).unwrap();

        let (mut seen, mut ends) = (Vec::new(), 0);
        visit_file(&file, |name, stored| {
            let start = stored.view.data().as_ptr() as usize;
            assert!(start >= ends, "{name} begins before the end of the one before it");
            ends = start + stored.view.data().len();
            seen.push(name.to_owned());
            if name == "large" {
                let copy = Tensor::zeros([count], (Kind::Float, Device::Cpu));
                stored.copy_to(&copy)?;
                assert!(copy.equal(&large));
                let part = Tensor::zeros([3], (Kind::Float, Device::Cpu));
                stored.copy_part_to(&part, count as usize - 4)?;
                assert!(part.equal(&large.narrow(0, count - 4, 3)));
                let other = Tensor::zeros([4], (Kind::Float, Device::Cpu));
                let words = stored.copy_to(&other).unwrap_err().to_string();
                assert!(words.contains("4 numbers of 4 bytes are wanted"), "{words}");
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.len(), 21);
    }
}
