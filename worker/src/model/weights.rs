//! A model's tensors by their Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tch::{Device, Kind, Tensor};

use super::config::ModelConfig;
use super::names::{self, SCORE_WEIGHT};
use super::safetensors::{self, Memory};
use super::target::Target;
use crate::native::random;

/// What of a model folder is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything that the configuration calls for.
    Whole,
    /// The trunk (`model.*`), whatever head is on it.
    Trunk,
    /// The trunk and the weight of a score head.
    TrunkAndScore,
}

impl Part {
    /// Its tensors with their shapes, by name.
    pub fn shapes(self, config: &ModelConfig) -> BTreeMap<String, Vec<i64>> {
        match self {
            Self::Whole => names::expected(config),
            Self::Trunk => names::trunk(config),
            Self::TrunkAndScore => {
                let mut shapes = names::trunk(config);
                shapes.insert(SCORE_WEIGHT.to_owned(), vec![1, config.hidden]);
                shapes
            }
        }
    }

    /// Whether a tensor that a file has is read, if only to be refused.
    fn wants(self, config: &ModelConfig, name: &str) -> bool {
        let is_trunk = name.starts_with("model.");
        let of_this_part = match self {
            Self::Whole => true,
            Self::Trunk => is_trunk,
            Self::TrunkAndScore => is_trunk || names::known(config, name) == SCORE_WEIGHT,
        };
        of_this_part && !names::ignored(config, name)
    }
}

/// Tensors by Hugging Face name.
#[derive(Debug, Default)]
pub struct Weights(pub BTreeMap<String, Tensor>);

impl Weights {
    /// Reads the tensors that `config` calls for from a model folder to `target`.
    ///
    /// # Errors
    /// When a file is missing, truncated or corrupt; when a tensor is of numbers that are not read, as quantised ones are; when tensors
    /// are missing, unexpected or of another shape (one error lists some of each).
    pub fn load(folder: &Path, config: &ModelConfig, target: impl Into<Target>) -> Result<Self> {
        Self::read(folder, config, Part::Whole, (target.into(), Memory::Own))
    }

    /// The same in the mapped files where they are stored in `kind`, for an engine that packs them into memory of its own and is
    /// done with them.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn map(folder: &Path, config: &ModelConfig, kind: Kind) -> Result<Self> {
        Self::read(folder, config, Part::Whole, (kind.into(), Memory::Mapped))
    }

    /// Reads only the trunk (`model.*`) of a model folder, whatever head is on it, to `target`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_trunk(folder: &Path, config: &ModelConfig, target: impl Into<Target>) -> Result<Self> {
        Self::read(folder, config, Part::Trunk, (target.into(), Memory::Own))
    }

    fn read(folder: &Path, config: &ModelConfig, part: Part, (target, memory): (Target, Memory)) -> Result<Self> {
        let read = safetensors::read(folder, target, memory, |name| part.wants(config, name))?;
        let named = |(name, tensor): (String, Tensor)| (names::known(config, &name).to_owned(), tensor);
        let weights = Self(read.into_iter().map(named).collect());
        check(&weights.shapes(), &part.shapes(config)).with_context(|| misfit(folder))?;
        Ok(weights)
    }

    /// Zeros of these shapes, by name.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn zeros(shapes: &BTreeMap<String, Vec<i64>>, target: Target) -> Result<Self> {
        let zeros = |dims: &[i64]| Tensor::f_zeros(dims, (target.kind, target.device));
        let named = shapes.iter().map(|(name, dims)| Ok((name.clone(), zeros(dims)?)));
        Ok(Self(named.collect::<Result<_>>()?))
    }

    /// Reads `part` of a model folder into these tensors, through no copy of it. What the part does not have stays as it is.
    ///
    /// # Errors
    /// As [`load`](Self::load); when these lack a tensor of the part.
    pub fn fill(&self, folder: &Path, config: &ModelConfig, part: Part) -> Result<()> {
        let expected = part.shapes(config);
        let mut found = BTreeMap::new();
        let wanted = |name: &str| part.wants(config, name);
        safetensors::visit(folder, wanted, |name, stored| {
            // Of what nobody reads, too: which numbers it has says more than that it is unexpected.
            stored.kind()?;
            let (name, size) = (names::known(config, name), stored.size()?);
            if expected.get(name) == Some(&size) {
                stored.copy_to(self.get(name)?)?;
            }
            found.insert(name.to_owned(), size);
            Ok(())
        })?;
        check(&found, &expected).with_context(|| misfit(folder))
    }

    /// Shapes by name.
    pub fn shapes(&self) -> BTreeMap<String, Vec<i64>> {
        self.0
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.size()))
            .collect()
    }

    /// Random weights for `config`: normal with the configuration's `initializer_range`, norms 1, biases 0, as
    /// transformers initialises (not the same draws). The same seed gives the same weights, whatever device they go
    /// [`on`](Self::on); libtorch's generator is seeded by this.
    ///
    /// # Errors
    /// When libtorch fails, as when memory runs out.
    pub fn random(config: &ModelConfig, kind: Kind, seed: u64) -> Result<Self> {
        random::seeded(seed, || Self::draw(config, kind))
    }

    fn draw(config: &ModelConfig, kind: Kind) -> Result<Self> {
        let _no_grad = tch::no_grad_guard();
        let mut weights = BTreeMap::new();
        for (name, dims) in names::expected(config) {
            let mut tensor = Tensor::f_empty(&dims, (Kind::Float, Device::Cpu))?;
            let filled = if name.ends_with("norm.weight") {
                tensor.f_fill_(1.0)?
            } else if name.ends_with(".bias") {
                tensor.f_fill_(0.0)?
            } else {
                tensor.f_normal_(0.0, config.initializer_range)?
            };
            weights.insert(name, filled.f_to_kind(kind)?);
        }
        Ok(Self(weights))
    }

    /// The same values on a device. Each tensor here goes when it is there.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn on(self, device: Device) -> Result<Self> {
        let there = |(name, tensor): (String, Tensor)| {
            let tensor = tensor.f_to_device(device);
            tensor.map(|tensor| (name.clone(), tensor)).with_context(|| name)
        };
        Ok(Self(self.0.into_iter().map(there).collect::<Result<_>>()?))
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.0.get(name).with_context(|| format!("tensor {name} is missing"))
    }

    /// The same tensors under the same names: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
                .collect(),
        )
    }

    /// Own copies of all tensors, without gradients.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn deep_clone(&self) -> Result<Self> {
        let _no_grad = tch::no_grad_guard();
        let copy = |tensor: &Tensor| -> Result<Tensor> {
            let mut copy = tensor.f_empty_like()?;
            copy.f_copy_(tensor)?;
            Ok(copy)
        };
        let copies = self.0.iter().map(|(name, tensor)| Ok((name.clone(), copy(tensor)?)));
        Ok(Self(copies.collect::<Result<_>>()?))
    }

    /// Writes the values of `from` into these tensors.
    ///
    /// # Errors
    /// When `from` lacks one of them, or has it in another shape.
    pub fn overwrite(&self, from: &Self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (name, tensor) in &self.0 {
            let values = from.get(name)?;
            tensor
                .shallow_clone()
                .f_copy_(values)
                .with_context(|| format!("tensor {name}"))?;
        }
        Ok(())
    }

    /// Lets every tensor collect gradients (as leaves).
    ///
    /// # Errors
    /// When libtorch refuses, as for integer tensors.
    pub fn require_gradients(&self) -> Result<()> {
        for tensor in self.0.values() {
            let _ = tensor.f_set_requires_grad(true)?;
        }
        Ok(())
    }
}

fn misfit(folder: &Path) -> String {
    format!("the weights in {} do not fit its config.json", folder.display())
}

/// Names of a list that an error shows: Kubernetes keeps 4096 bytes of the message of a container that ended.
const SHOWN: usize = 5;

/// Fails with the missing, unexpected and misshapen tensors at once, the first few of each.
pub(super) fn check(found: &BTreeMap<String, Vec<i64>>, expected: &BTreeMap<String, Vec<i64>>) -> Result<()> {
    let lacking = |of: &BTreeMap<String, Vec<i64>>, names: &BTreeMap<String, Vec<i64>>| -> Vec<String> {
        names.keys().filter(|name| !of.contains_key(*name)).cloned().collect()
    };
    let (missing, unexpected) = (lacking(found, expected), lacking(expected, found));
    let misshapen: Vec<String> = expected
        .iter()
        .filter_map(|(name, dims)| Some((name, dims, found.get(name)?)))
        .filter(|(_, dims, size)| dims != size)
        .map(|(name, dims, size)| format!("{name} is {size:?}, not {dims:?}{}", labels(name)))
        .collect();
    if missing.is_empty() && unexpected.is_empty() && misshapen.is_empty() {
        return Ok(());
    }
    let list = |names: &[String]| match names.len() {
        0 => "none".to_owned(),
        count if count <= SHOWN => names.join(", "),
        count => format!("{} and {} more", names[..SHOWN].join(", "), count - SHOWN),
    };
    let of_trunk = |name: &String| expected.contains_key(&format!("model.{name}"));
    let hint = match !unexpected.is_empty() && unexpected.iter().all(of_trunk) {
        true => {
            "; the unexpected ones are expected with \"model.\" before their names, as AutoModel leaves it out: save the model again from \
             the class that config.json names"
        }
        false => "",
    };
    bail!(
        "missing: {}; unexpected: {}; of another shape: {}{hint}",
        list(&missing),
        list(&unexpected),
        list(&misshapen)
    )
}

/// The rows of a head are labels, whatever config.json says of them.
fn labels(name: &str) -> &'static str {
    match name == SCORE_WEIGHT {
        true => " (a reward model or critic has exactly one label)",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why the tensors of a model of so many layers, each under a name of `named`'s, do not fit it.
    fn misfit_of(layers: usize, named: impl Fn(&str) -> String) -> String {
        let layer = |layer: usize| {
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| format!("model.layers.{layer}.self_attn.{part}.weight"))
        };
        let names = (0..layers)
            .flat_map(layer)
            .chain(["model.embed_tokens.weight".to_owned()]);
        let expected: BTreeMap<String, Vec<i64>> = names.map(|name| (name, vec![8, 8])).collect();
        let found = expected
            .iter()
            .map(|(name, size)| (named(name), size.clone()))
            .collect();
        check(&found, &expected).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_is_shown_in_part_and_counted_however_many_layers_there_are() {
        let said = misfit_of(64, |name| format!("transformer.{name}"));
        assert!(said.len() < 2000, "{said}");
        let missing = "missing: model.embed_tokens.weight, model.layers.0.self_attn.k_proj.weight, ";
        assert!(said.starts_with(missing), "{said}");
        assert_eq!(said.matches(" and 252 more").count(), 2, "{said}");
        assert!(
            said.contains("; unexpected: transformer.model.embed_tokens.weight, ")
                && said.ends_with("another shape: none"),
            "{said}"
        );
        let expected: BTreeMap<String, Vec<i64>> = (0..500).map(|at| (format!("a{at:03}"), vec![2])).collect();
        let found = expected.keys().map(|name| (name.clone(), vec![3])).collect();
        let said = check(&found, &expected).unwrap_err().to_string();
        assert!(
            said.ends_with("a004 is [3], not [2] and 495 more") && said.len() < 2000,
            "{said}"
        );
        check(&expected, &expected).unwrap();
    }

    #[test]
    fn a_trunk_that_was_saved_without_its_prefix_is_told() {
        let hint = "are expected with \"model.\" before their names";
        assert!(misfit_of(2, |name| name.trim_start_matches("model.").to_owned()).contains(hint));
        assert!(!misfit_of(2, |name| name.replace("model.layers", "layer")).contains(hint));
    }
}
