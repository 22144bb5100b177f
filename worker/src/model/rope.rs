//! Rotary position embeddings (Su et al. 2021, arXiv:2104.09864) in the Hugging Face layout: the two halves of a head's
//! dimensions form the rotated pairs.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use crate::native::training;

/// How the rotation's frequencies are stretched for contexts longer than the pre-training's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// By which frequencies are divided.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by the factor, short ones kept, a smooth transition between.
    Llama3 {
        /// By which low frequencies are divided.
        factor: f64,
        /// Wavelengths above `original_max_positions` over this are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions` over this are kept.
        high_freq_factor: f64,
        /// Context length of the pre-training, tokens.
        original_max_positions: f64,
    },
}

impl RopeScaling {
    /// Base frequency and scaling of a `config.json`, in its old (`rope_theta`, `rope_scaling`) and new
    /// (`rope_parameters`) spelling.
    pub(super) fn from_config(raw: &Map<String, Value>) -> Result<(f64, Self)> {
        let given = |key: &str| raw.get(key).filter(|value| !value.is_null());
        let spelt = |key: &str| given(key).map(|value| Self::of(key, value)).transpose();
        let scaling = match (spelt("rope_parameters")?, spelt("rope_scaling")?) {
            // Added to a file of transformers 5, the old one counts there, with the class' default theta.
            (Some(new), Some(old)) if new != old => {
                bail!("rope_parameters and rope_scaling say different things: leave one, with its rope_theta")
            }
            (new, old) => new.or(old).unwrap_or(Self::None),
        };
        // transformers 5 has both beside the scaling.
        let inside = |name: &str| {
            let mut objects = ["rope_parameters", "rope_scaling"].into_iter();
            objects.find_map(|key| given(key)?.get(name)).or_else(|| given(name))
        };
        let theta = match inside("rope_theta") {
            None => 10_000.0,
            Some(value) => {
                positive(value).with_context(|| format!("rope_theta is {value}: a number above 0 is needed"))?
            }
        };
        if let Some(part) = inside("partial_rotary_factor").and_then(Value::as_f64)
            && part != 1.0
        {
            bail!("partial_rotary_factor is {part}: only rotation of the whole head is supported");
        }
        Ok((theta, scaling))
    }

    /// The scaling that the object at `key` says.
    fn of(key: &str, value: &Value) -> Result<Self> {
        let parameters = value
            .as_object()
            .with_context(|| format!("{key} is {value}: an object is needed"))?;
        let kind = parameters
            .get("rope_type")
            .or_else(|| parameters.get("type"))
            .and_then(Value::as_str);
        let number = |name: &str| {
            parameters
                .get(name)
                .and_then(positive)
                .with_context(|| format!("{key}.{name} is missing or no number above 0"))
        };
        Ok(match kind.unwrap_or("default") {
            "default" => Self::None,
            "linear" => Self::Linear {
                factor: number("factor")?,
            },
            "llama3" => Self::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_positions: number("original_max_position_embeddings")?,
            },
            other => bail!("{key}: rope_type is {other}; supported are default, linear and llama3"),
        })
    }

    /// Angular frequency of each pair of dimensions, radians per position: `head_dim / 2` numbers.
    ///
    /// All is rounded to float32 where transformers rounds it (4.57, `modeling_rope_utils.py`, `_compute_default_rope_parameters`): models were
    /// trained with these numbers, and at far positions even their last bit turns the angle.
    pub fn frequencies(self, theta: f64, head_dim: i64) -> Vec<f32> {
        let theta = f64::from(theta as f32);
        (0..head_dim / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / head_dim as f32;
                // In float64 and then rounded: libtorch's float32 power but for a last bit now and then, and the same on every machine.
                self.scaled((theta.powf(f64::from(exponent)) as f32).recip())
            })
            .collect()
    }

    fn scaled(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            // transformers modeling_rope_utils.py, _compute_linear_scaling_rope_parameters.
            Self::Linear { factor } => frequency / factor as f32,
            // transformers modeling_rope_utils.py, _compute_llama3_parameters: numbers of Python are float64, and float32 beside a tensor. A
            // number over a tensor is the tensor's reciprocal times the number.
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let wavelength = frequency.recip() * (2.0 * std::f64::consts::PI) as f32;
                if wavelength < (original_max_positions / high_freq_factor) as f32 {
                    return frequency;
                }
                let factor = factor as f32;
                if wavelength > (original_max_positions / low_freq_factor) as f32 {
                    return frequency / factor;
                }
                let turns = wavelength.recip() * original_max_positions as f32;
                let kept = (turns - low_freq_factor as f32) / (high_freq_factor - low_freq_factor) as f32;
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

/// Cosine and sine of every token's angles.
#[derive(Debug)]
pub struct Rotation {
    /// `[tokens, head_dim / 2]`, float32.
    cos: Tensor,
    /// `[tokens, head_dim / 2]`, float32; on a GPU that of each half with its sign, `[tokens, 2, head_dim / 2]`: made once for all layers.
    sin: Tensor,
}

impl Rotation {
    /// The rotation of tokens at `positions` (`[tokens]`, int64) under `frequencies` (`[head_dim / 2]`, float32).
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn at(positions: &Tensor, frequencies: &Tensor) -> Result<Self> {
        let angles = positions.f_to_kind(Kind::Float)?.f_unsqueeze(1)?.f_mul(frequencies)?;
        let sin = angles.f_sin()?;
        Ok(Self {
            cos: angles.f_cos()?,
            sin: match sin.device() {
                Device::Cpu => sin,
                _ => Tensor::f_stack(&[sin.f_neg()?, sin], 1)?,
            },
        })
    }

    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            cos: self.cos.shallow_clone(),
            sin: self.sin.shallow_clone(),
        }
    }

    /// `heads` (`[tokens, heads, head_dim]`) rotated, in the precision it came in.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn apply(&self, heads: &Tensor) -> Result<Tensor> {
        training::rotate(heads, &self.cos, &self.sin)
    }
}

/// [`RopeScaling::frequencies`] as a float32 tensor.
///
/// # Errors
/// When libtorch fails.
pub fn frequency_tensor(scaling: RopeScaling, theta: f64, head_dim: i64, device: Device) -> Result<Tensor> {
    let frequencies = scaling.frequencies(theta, head_dim);
    Ok(Tensor::f_from_slice(&frequencies)?.f_to_device(device)?)
}

/// A number above 0: with any other, angles would not be numbers.
fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the frequencies of heads of 64 dimensions have these bits in transformers 4.57.6 on torch 2.11, on a CPU.
    fn check(scaling: RopeScaling, theta: f64, bits: [u32; 32]) {
        let ours: Vec<u32> = scaling.frequencies(theta, 64).into_iter().map(f32::to_bits).collect();
        assert_eq!(ours, bits, "{scaling:?}");
    }

    #[test]
    fn frequencies_without_a_scaling_are_those_of_transformers_to_the_bit() {
        let qwen2 = [
            0x3f800000, 0x3f263de0, 0x3ed7e89b, 0x3e8c3504, 0x3e361887, 0x3dec7fd6, 0x3d99940d, 0x3d47763f, 0x3d0186e3,
            0x3ca8398b, 0x3c5a7bf2, 0x3c0de12d, 0x3bb8449c, 0x3b6f520e, 0x3b1b690d, 0x3ac9d75c, 0x3a83126f, 0x3a2a3b44,
            0x39dd1725, 0x398f9272, 0x393a7753, 0x38f22ce2, 0x389d43a4, 0x384c3fbe, 0x3804a2b2, 0x37ac431d, 0x375fba4f,
            0x371148e3, 0x36bcb0c1, 0x36751070, 0x361f23e4, 0x35ceaf79,
        ];
        check(RopeScaling::None, 1e6, qwen2);
    }

    #[test]
    fn frequencies_under_a_linear_scaling_are_those_of_transformers_to_the_bit() {
        let thirds = [
            0x3eaaaaab, 0x3e7ff6c1, 0x3e3ff223, 0x3e0ff067, 0x3dd7e0cf, 0x3da1e2c2, 0x3d72cb5f, 0x3d3611f4, 0x3d088889,
            0x3cccc567, 0x3c998e81, 0x3c664d71, 0x3c2cb3d9, 0x3c018235, 0x3bc23c4c, 0x3b91a7f7, 0x3b5a740d, 0x3b23d120,
            0x3af5b0d0, 0x3ab83df4, 0x3a8a297b, 0x3a4f36bc, 0x3a1b6370, 0x39e90cbd, 0x39aec33f, 0x39830db3, 0x39448d73,
            0x391364c3, 0x38dd0f2b, 0x38a5c563, 0x38789f19, 0x383a7098,
        ];
        check(RopeScaling::Linear { factor: 3.0 }, 1e4, thirds);
    }

    #[test]
    fn frequencies_of_llama_3_are_those_of_transformers_to_the_bit() {
        let llama = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192.0,
        };
        let stretched = [
            0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad, 0x3d681e67, 0x3d1a08c8,
            0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402, 0x3b527720, 0x3aa9279b, 0x39e13620, 0x38cb98f7,
            0x37a3418d, 0x3758ac81, 0x370fc8f8, 0x36bed4f4, 0x367d45c3, 0x3628126b, 0x35df10c4, 0x359406cb, 0x35447610,
            0x35025f34, 0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0,
        ];
        check(llama, 5e5, stretched);
    }
}
