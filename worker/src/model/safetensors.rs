//! Reading safetensors, one file or shards under an index, tensor by tensor through a memory map.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use memmap2::{MmapMut, MmapOptions};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::native::mapped;

/// Name of the single file.
pub const SINGLE: &str = "model.safetensors";
/// Name of the shards' index.
pub const INDEX: &str = "model.safetensors.index.json";

/// Where tensors that were read lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Memory {
    /// In their own: each is copied once, and the files may change.
    Own,
    /// In the mapped files, where they are stored in the precision that is asked for: for whoever reads them once and soon.
    Mapped,
}

/// Reads the wanted tensors of a model folder, converted to `kind`.
///
/// # Errors
/// When no weights are there, an index names a file or tensor that is not there, or a file is truncated or corrupt.
pub fn read(
    folder: &Path,
    kind: Kind,
    memory: Memory,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let index = folder.join(INDEX);
    if index.exists() {
        return read_shards(folder, &index, kind, memory, wanted);
    }
    let single = folder.join(SINGLE);
    if !single.exists() {
        bail!(
            "{} has neither {SINGLE} nor {INDEX}: weights must be in safetensors (transformers' save_pretrained writes them)",
            folder.display()
        );
    }
    take_file(&single, kind, memory, wanted)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_shards(
    folder: &Path,
    path: &Path,
    kind: Kind,
    memory: Memory,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let index: Index =
        serde_json::from_str(&text).with_context(|| format!("{} is not an index of shards", path.display()))?;
    let mut tensors = BTreeMap::new();
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
        tensors.extend(take_file(&shard, kind, memory, &wanted)?);
    }
    let lost: Vec<&str> = index
        .weight_map
        .keys()
        .filter(|name| wanted(name) && !tensors.contains_key(*name))
        .map(String::as_str)
        .collect();
    ensure!(
        lost.is_empty(),
        "{} names tensors that its shards do not hold: {}",
        path.display(),
        lost.join(", ")
    );
    Ok(tensors)
}

/// Reads the wanted tensors of one safetensors file, converted to `kind`, into memory of their own.
///
/// # Errors
/// When the file cannot be read, or its header or length is wrong.
pub fn read_file(path: &Path, kind: Kind, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Tensor>> {
    take_file(path, kind, Memory::Own, wanted)
}

fn take_file(
    path: &Path,
    kind: Kind,
    memory: Memory,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let open = || -> Result<Arc<MmapMut>> {
        let file = File::open(path)?;
        // SAFETY: the map is private: what is written to a tensor stays here. A file that shrinks under it would fault: model folders
        // are replaced by rename, never rewritten in place (as `save` does).
        Ok(Arc::new(unsafe { MmapOptions::new().map_copy(&file)? }))
    };
    let map = open().with_context(|| format!("reading {}", path.display()))?;
    let file = SafeTensors::deserialize(&map).with_context(|| {
        format!(
            "{} is not a whole safetensors file (truncated or corrupt)",
            path.display()
        )
    })?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        if !wanted(name) {
            continue;
        }
        let stored = stored_kind(view.dtype()).with_context(|| {
            format!(
                "{}: tensor {name} is {:?}; floating point is needed",
                path.display(),
                view.dtype()
            )
        })?;
        let size: Vec<i64> = view.shape().iter().map(|dim| *dim as i64).collect();
        let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
        let take = || -> Result<Tensor> {
            let mapped = mapped::over(&map, start, &size, stored)?;
            if memory == Memory::Mapped || stored != kind {
                return Ok(mapped.f_to_kind(kind)?);
            }
            let mut own = mapped.f_empty_like()?;
            own.f_copy_(&mapped)?;
            Ok(own)
        };
        let tensor = take().with_context(|| format!("{}: tensor {name}", path.display()))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(tensors)
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

/// Borrowed bytes of a contiguous tensor in memory, as the safetensors writer wants them.
#[derive(Debug)]
pub(super) struct Bytes {
    tensor: Tensor,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Bytes {
    pub(super) fn of(tensor: &Tensor) -> Result<Self> {
        let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
        let dtype = match tensor.kind() {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Half => Dtype::F16,
            Kind::Double => Dtype::F64,
            other => bail!("tensors of {other:?} are not written"),
        };
        let shape = tensor.size().into_iter().map(|dim| dim as usize).collect();
        Ok(Self { tensor, dtype, shape })
    }
}

impl safetensors::View for &Bytes {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        // SAFETY: the tensor is contiguous, in memory, of `data_len` bytes and lives as long as the slice.
        unsafe { std::slice::from_raw_parts(self.tensor.data_ptr().cast::<u8>(), self.data_len()) }.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * self.tensor.kind().elt_size_in_bytes()
    }
}

/// A shard's file name: `model-00001-of-00003.safetensors`, or the single file's.
pub(super) fn shard_name(shard: usize, shards: usize) -> PathBuf {
    if shards == 1 {
        return SINGLE.into();
    }
    format!("model-{:05}-of-{shards:05}.safetensors", shard + 1).into()
}
