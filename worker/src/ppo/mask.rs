//! Response masks: which slots of a row are the policy's own tokens.

use ppo_crds::spec::Profile;
use tch::{Kind, Tensor};

use super::Error;
use super::grid::Grid;

/// The mask as booleans.
pub fn booleans(mask: &Tensor) -> Tensor {
    if mask.kind() == Kind::Bool {
        mask.shallow_clone()
    } else {
        mask.ne(0.0)
    }
}

/// `values` where the mask is 1, else 0; a NaN under the mask's 0 does not get through, nor does a gradient.
pub fn keep(values: &Tensor, mask: &Tensor) -> Tensor {
    values.where_self(&booleans(mask), &values.zeros_like().detach())
}

/// The slots where the critic is trained. TRL's critic is also trained on the first slot after the response when the row
/// has one, because its R is placed there (`padding_mask_p1` in TRL 0.24's ppo_trainer.py); elsewhere it is the mask.
pub fn value_mask(profile: Profile, mask: &Tensor) -> Result<Tensor, Error> {
    let mask = booleans(mask);
    if profile != Profile::Trl {
        return Ok(mask);
    }
    let grid = trl_value_mask(&Grid::read_mask(&mask)?);
    Ok(Tensor::from_slice(&grid.cells)
        .view(grid.shape())
        .to_device(mask.device()))
}

pub(crate) fn trl_value_mask(mask: &Grid<bool>) -> Grid<bool> {
    let mut longer = mask.clone();
    for sample in 0..mask.batch {
        let after = length(mask.row(sample));
        if after < mask.time {
            longer.row_mut(sample)[after] = true;
        }
    }
    longer
}

/// None in a row without a 1. Padding may be on either side, or inside.
pub(crate) fn last_index(row: &[bool]) -> Option<usize> {
    row.iter().rposition(|&on| on)
}

/// Slots up to and with the last 1.
pub(crate) fn length(row: &[bool]) -> usize {
    last_index(row).map_or(0, |t| t + 1)
}
