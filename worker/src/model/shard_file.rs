//! A safetensors file, written in pieces: of a tensor that lies on a GPU no more than a piece is in this machine's memory.
//!
//! The safetensors crate writes whole tensors only, and of a checkpoint one tensor is a rank's part of all moments. The file is the one that
//! it would write: kinds of numbers by falling alignment, then names (`prepare` in safetensors/src/tensor.rs).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, Kind, Tensor};

use crate::native::bytes::{byte_length, bytes_of};

/// Bytes that come from a device at a time.
const PIECE: usize = 32 << 20;

/// Small tensors reach the file together.
const BUFFER: usize = 1 << 20;

/// A tensor, what its numbers are called in the file, and its name there.
struct Named<'a> {
    dtype: Dtype,
    name: &'a String,
    tensor: Tensor,
}

/// Writes `tensors`, of any device, to the file at `path`. Nothing says yet that the disk has it.
///
/// # Errors
/// When the file cannot be written, a tensor cannot be brought here, or is of numbers that are not written.
pub fn write(path: &Path, tensors: &[(&String, &Tensor)]) -> Result<()> {
    write_in_pieces(path, tensors, PIECE)
}

fn write_in_pieces(path: &Path, tensors: &[(&String, &Tensor)], piece: usize) -> Result<()> {
    let named = tensors.iter().map(|(name, tensor)| {
        let tensor = tensor.f_detach()?;
        let dtype = dtype(&tensor).with_context(|| format!("tensor {name}"))?;
        Ok(Named { dtype, name, tensor })
    });
    let mut named = named.collect::<Result<Vec<_>>>()?;
    named.sort_by(|left, right| right.dtype.cmp(&left.dtype).then(left.name.cmp(right.name)));

    let mut file = BufWriter::with_capacity(BUFFER, File::create(path)?);
    let header = header(&named)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for Named { name, tensor, .. } in &named {
        write_numbers(&mut file, tensor, piece).with_context(|| format!("tensor {name}"))?;
    }
    Ok(file.flush()?)
}

/// Which tensors follow, and where; filled up with spaces so that they begin at a multiple of 8 bytes.
fn header(named: &[Named]) -> Result<Vec<u8>> {
    let mut end = 0;
    let placed = named.iter().map(|Named { dtype, name, tensor }| {
        let start = end;
        end += byte_length(tensor);
        let info = TensorInfo {
            dtype: *dtype,
            shape: tensor.size().into_iter().map(|dim| dim as usize).collect(),
            data_offsets: (start, end),
        };
        ((*name).clone(), info)
    });
    // transformers refuses a file that does not say which framework wrote it.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), placed.collect())?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    Ok(header)
}

fn write_numbers(file: &mut impl Write, tensor: &Tensor, piece: usize) -> Result<()> {
    let flat = tensor.f_contiguous()?.f_view([-1])?;
    let count = flat.numel();
    let most = (piece / flat.kind().elt_size_in_bytes()).max(1);
    for start in (0..count).step_by(most) {
        let part = flat.f_narrow(0, start as i64, most.min(count - start) as i64)?;
        file.write_all(bytes_of(&part.f_to_device(Device::Cpu)?)?)?;
    }
    Ok(())
}

fn dtype(tensor: &Tensor) -> Result<Dtype> {
    Ok(match tensor.kind() {
        Kind::Float => Dtype::F32,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Half => Dtype::F16,
        Kind::Double => Dtype::F64,
        Kind::Int16 => Dtype::I16,
        other => bail!("tensors of {other:?} are not written"),
    })
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn the_file_is_the_one_that_the_safetensors_crate_writes_whatever_the_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = Tensor::arange(35, (Kind::Float, Device::Cpu)).view([5, 7]);
        let tensors = [
            ("b.half", numbers.to_kind(Kind::BFloat16)),
            ("a.half", numbers.narrow(0, 0, 0).to_kind(Kind::BFloat16)),
            ("z.transposed", numbers.tr()),
            ("one", Tensor::from(2.5f32)),
            ("rest", numbers.to_kind(Kind::Int16)),
            ("double", numbers.to_kind(Kind::Double).set_requires_grad(true)),
        ];
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));

        let contiguous: Vec<_> = tensors
            .iter()
            .map(|(name, it)| (name, it.detach().contiguous()))
            .collect();
        let view = |tensor| {
            let shape = Tensor::size(tensor).into_iter().map(|dim| dim as usize).collect();
            TensorView::new(dtype(tensor).unwrap(), shape, bytes_of(tensor).unwrap()).unwrap()
        };
        let views = contiguous.iter().map(|(name, tensor)| (*name, view(tensor)));
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let expected = safetensors::serialize(views, Some(format)).unwrap();

        let given: Vec<(&String, &Tensor)> = tensors.iter().map(|(name, tensor)| (name, tensor)).collect();
        let path = folder.path().join("file.safetensors");
        for piece in [1, 12, 64, PIECE] {
            write_in_pieces(&path, &given, piece).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), expected, "in pieces of {piece} bytes");
        }
    }

    #[test]
    fn numbers_that_no_model_has_are_refused_with_the_tensors_name() {
        let folder = tempfile::tempdir().unwrap();
        let (name, tensor) = ("ids".to_owned(), Tensor::from_slice(&[1i64]));
        let refused = write(&folder.path().join("file"), &[(&name, &tensor)]).unwrap_err();
        assert_eq!(format!("{refused:#}"), "tensor ids: tensors of Int64 are not written");
    }
}
