//! Reading safetensors, one file or shards under an index, tensor by tensor through a memory map.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use memmap2::{MmapMut, MmapOptions};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::target::Target;
use crate::native::bytes::{byte_length, bytes_of};
use crate::native::{device, mapped};

/// Name of the single file.
pub const SINGLE: &str = "model.safetensors";
/// Name of the shards' index.
pub const INDEX: &str = "model.safetensors.index.json";

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
    // The whole file first, as transformers does: an index beside it is of an earlier save.
    let single = folder.join(SINGLE);
    let index = folder.join(INDEX);
    if !single.exists() && index.exists() {
        return read_shards(folder, &index, (target, memory), wanted);
    }
    if !single.exists() {
        bail!(
            "{} has neither {SINGLE} nor {INDEX}: weights must be in safetensors (transformers' save_pretrained writes them)",
            folder.display()
        );
    }
    take_file(&single, (target, memory), wanted)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_shards(
    folder: &Path,
    path: &Path,
    place: (Target, Memory),
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
        tensors.extend(take_file(&shard, place, &wanted)?);
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

/// Reads the wanted tensors of one safetensors file to `target`.
///
/// # Errors
/// When the file cannot be read, or its header or length is wrong.
pub fn read_file(
    path: &Path,
    target: impl Into<Target>,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    take_file(path, (target.into(), Memory::Own), wanted)
}

fn take_file(
    path: &Path,
    (Target { kind, device }, memory): (Target, Memory),
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Tensor>> {
    let take = |stored: &Stored| -> Result<Tensor> {
        if memory == Memory::Mapped && device == Device::Cpu {
            return Ok(stored.mapped()?.f_to_kind(kind)?);
        }
        let tensor = Tensor::f_empty(stored.size()?, (kind, device))?;
        stored.copy_to(&tensor)?;
        Ok(tensor)
    };
    let mut tensors = BTreeMap::new();
    visit_file(path, |name, stored| {
        if wanted(name) {
            tensors.insert(name.to_owned(), take(stored)?);
        }
        Ok(())
    })?;
    Ok(tensors)
}

/// Shows `visit` the tensors of one safetensors file, where they lie in it.
///
/// # Errors
/// When the file cannot be read, or its header or length is wrong; those of `visit`, with the tensor's name.
pub fn visit_file(path: &Path, mut visit: impl FnMut(&str, &Stored) -> Result<()>) -> Result<()> {
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
    for (name, view) in file.iter() {
        visit(name, &Stored { view, map: &map }).with_context(|| format!("{}: tensor {name}", path.display()))?;
    }
    Ok(())
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
    /// When it is of no floating point type.
    fn mapped(&self) -> Result<Tensor> {
        let start = self.view.data().as_ptr() as usize - self.map.as_ptr() as usize;
        mapped::over(self.map, start, &self.size()?, self.kind()?)
    }

    /// Writes it into `target`, which has as many elements, in any precision and on any device.
    ///
    /// # Errors
    /// When it is of no floating point type, or has another number of elements.
    pub fn copy_to(&self, target: &Tensor) -> Result<()> {
        device::fill(target, self.view.data(), self.kind()?)
    }

    /// Writes the elements `from..` of it into `target`, as many as that has. Whole numbers of 16 bits go where such are wanted.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn copy_part_to(&self, target: &Tensor, from: usize) -> Result<()> {
        let kind = match (self.view.dtype(), target.kind()) {
            (Dtype::I16, Kind::Int16) => Kind::Int16,
            (other, Kind::Int16) => bail!("it is {other:?}; I16 is needed"),
            _ => self.kind()?,
        };
        let size = kind.elt_size_in_bytes();
        let bytes = self.view.data().get(from * size..(from + target.numel()) * size);
        device::fill(target, bytes.context("it is too short")?, kind)
    }

    fn kind(&self) -> Result<Kind> {
        let dtype = self.view.dtype();
        stored_kind(dtype).with_context(|| format!("it is {dtype:?}; floating point is needed"))
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

/// A tensor as the safetensors writer wants it. One of another device comes to this machine's memory when it is written, and leaves it
/// again: no more than one is here at a time.
#[derive(Debug)]
pub(super) struct Written {
    tensor: Tensor,
    dtype: Dtype,
    shape: Vec<usize>,
    /// The writer takes no error.
    failed: OnceCell<anyhow::Error>,
}

impl Written {
    pub(super) fn new(tensor: &Tensor) -> Result<Self> {
        let tensor = tensor.f_detach()?;
        let dtype = match tensor.kind() {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Half => Dtype::F16,
            Kind::Double => Dtype::F64,
            Kind::Int16 => Dtype::I16,
            other => bail!("tensors of {other:?} are not written"),
        };
        let shape = tensor.size().into_iter().map(|dim| dim as usize).collect();
        Ok(Self {
            tensor,
            dtype,
            shape,
            failed: OnceCell::new(),
        })
    }

    /// What went wrong while it was written.
    pub(super) fn into_failure(self) -> Option<anyhow::Error> {
        self.failed.into_inner()
    }

    fn on_host(&self) -> Result<Tensor> {
        Ok(self.tensor.f_to_device(Device::Cpu)?.f_contiguous()?)
    }
}

impl safetensors::View for &Written {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if let Ok(bytes) = bytes_of(&self.tensor) {
            return bytes.into();
        }
        match self.on_host().and_then(|tensor| Ok(bytes_of(&tensor)?.to_vec())) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                // The first one says it all.
                let _ = self.failed.set(error);
                vec![0; self.data_len()].into()
            }
        }
    }

    fn data_len(&self) -> usize {
        byte_length(&self.tensor)
    }
}

/// A shard's file name: `model-00001-of-00003.safetensors`, or the single file's.
pub(super) fn shard_name(shard: usize, shards: usize) -> PathBuf {
    if shards == 1 {
        return SINGLE.into();
    }
    format!("model-{:05}-of-{shards:05}.safetensors", shard + 1).into()
}
