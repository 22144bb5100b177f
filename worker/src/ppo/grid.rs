//! Rows of numbers on the host. Advantages and token rewards are recursions over time without a gradient: in float64 on
//! the host they are exact for every dtype and device, and read like the formulas.

use tch::{Device, Kind, Tensor};

use super::Error;

/// A [batch, time] array in row order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid<T> {
    pub batch: usize,
    pub time: usize,
    pub cells: Vec<T>,
}

impl<T: Copy> Grid<T> {
    /// The same value everywhere, in this grid's shape.
    pub fn filled<U: Copy>(&self, value: U) -> Grid<U> {
        Grid {
            batch: self.batch,
            time: self.time,
            cells: vec![value; self.cells.len()],
        }
    }

    pub fn row(&self, sample: usize) -> &[T] {
        &self.cells[sample * self.time..(sample + 1) * self.time]
    }

    pub fn row_mut(&mut self, sample: usize) -> &mut [T] {
        &mut self.cells[sample * self.time..(sample + 1) * self.time]
    }

    pub fn rows(&self) -> impl Iterator<Item = &[T]> {
        (0..self.batch).map(|sample| self.row(sample))
    }

    pub fn shape(&self) -> [i64; 2] {
        [self.batch as i64, self.time as i64]
    }
}

impl Grid<f64> {
    pub fn read(name: &'static str, tensor: &Tensor) -> Result<Self, Error> {
        let [batch, time] = two_dimensions(name, tensor)?;
        Ok(Self {
            batch,
            time,
            cells: host_numbers(tensor)?,
        })
    }

    /// Like [`Grid::read`], of a shape that must be `shape`.
    pub fn read_as(name: &'static str, tensor: &Tensor, shape: [i64; 2]) -> Result<Self, Error> {
        Error::unless_shape(name, &tensor.size(), &shape)?;
        Self::read(name, tensor)
    }

    /// A tensor of `like`'s kind (float32 at least) on `like`'s device.
    pub fn tensor_like(&self, like: &Tensor) -> Tensor {
        Tensor::from_slice(&self.cells)
            .view(self.shape())
            .to_kind(wide_kind(like.kind()))
            .to_device(like.device())
    }

    /// 0 wherever the mask is.
    pub fn keep(&mut self, mask: &Grid<bool>) {
        for (cell, &on) in self.cells.iter_mut().zip(&mask.cells) {
            if !on {
                *cell = 0.0;
            }
        }
    }
}

impl Grid<bool> {
    pub fn read_mask(mask: &Tensor) -> Result<Self, Error> {
        let [batch, time] = two_dimensions("mask", mask)?;
        let cells = host_numbers(mask)?.into_iter().map(|m| m != 0.0).collect();
        Ok(Self { batch, time, cells })
    }
}

/// float32 at least: half kinds become float32.
pub(crate) fn wide_kind(kind: Kind) -> Kind {
    if kind == Kind::Double {
        Kind::Double
    } else {
        Kind::Float
    }
}

/// A [batch] tensor as float64 numbers.
pub(crate) fn read_column(name: &'static str, tensor: &Tensor, batch: usize) -> Result<Vec<f64>, Error> {
    Error::unless_shape(name, &tensor.size(), &[batch as i64])?;
    host_numbers(tensor)
}

fn two_dimensions(name: &'static str, tensor: &Tensor) -> Result<[usize; 2], Error> {
    match tensor.size()[..] {
        [batch, time] => Ok([batch as usize, time as usize]),
        _ => Err(Error::Shape {
            name,
            found: tensor.size(),
            expected: vec![-1, -1],
        }),
    }
}

fn host_numbers(tensor: &Tensor) -> Result<Vec<f64>, Error> {
    let flat = tensor
        .detach()
        .f_to_device(Device::Cpu)?
        .f_to_kind(Kind::Double)?
        .f_contiguous()?
        .f_view(-1)?;
    Ok(Vec::<f64>::try_from(&flat)?)
}
