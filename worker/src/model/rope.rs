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
            Some(value) => value
                .as_f64()
                .with_context(|| format!("rope_theta is {value}: a number is needed"))?,
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
                .and_then(Value::as_f64)
                .with_context(|| format!("{key}.{name} is missing or not a number"))
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
    pub fn frequencies(self, theta: f64, head_dim: i64) -> Vec<f64> {
        let pairs = head_dim / 2;
        (0..pairs)
            .map(|pair| self.scaled(theta.powf(-(pair as f64) / pairs as f64)))
            .collect()
    }

    fn scaled(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            // transformers modeling_rope_utils.py, _compute_llama3_parameters.
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                if wavelength < original_max_positions / high_freq_factor {
                    return frequency;
                }
                if wavelength > original_max_positions / low_freq_factor {
                    return frequency / factor;
                }
                let kept =
                    (original_max_positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
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
    let frequencies: Vec<f32> = scaling
        .frequencies(theta, head_dim)
        .into_iter()
        .map(|f| f as f32)
        .collect();
    Ok(Tensor::f_from_slice(&frequencies)?.f_to_device(device)?)
}
