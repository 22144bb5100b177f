//! Adapters on the models of `fixtures/`: what PEFT computes with one (made by `fixtures/make_fixtures.py`), we compute, and what
//! must hold whatever the numbers.

// clippy.toml allows these in #[test] functions; the helpers beside them are test code too.
#![allow(clippy::unwrap_used)]

mod models;

use std::collections::BTreeMap;

use ppo_crds::spec::{AdapterSpec, OptimizerSpec};
use ppo_worker::actor::learner::Learner;
use ppo_worker::model::adapter::{LORA_B, peft};
use ppo_worker::model::{Adapter, Decoder, MergedWeights, ModelConfig, TokenBatch, Weights, save};
use tch::{Kind, Tensor};

use models::{POLICIES, distance, expected, fixture, loss};

/// What PEFT's adapter is on.
const BASE: &str = "qwen2";

fn sequences() -> Vec<Vec<u32>> {
    vec![
        vec![5, 9, 33, 7, 2],
        (3..14).collect(),
        vec![90, 4, 4, 61, 17, 8, 23, 40],
    ]
}

/// A base as it was read, and adapters on it: PEFT's sizes.
struct Bench {
    config: ModelConfig,
    base: Weights,
}

impl Bench {
    fn new(name: &str, kind: Kind) -> Self {
        // The test harness already runs a thread per core; tiny products gain nothing from more.
        tch::set_num_threads(1);
        let config = ModelConfig::read(&fixture(name)).unwrap();
        let base = Weights::load(&fixture(name), &config, kind).unwrap();
        Self { config, base }
    }

    fn plain(&self) -> Decoder {
        Decoder::new(&self.config, &self.base).unwrap()
    }

    fn with(&self, adapter: &Adapter) -> Decoder {
        let mut decoder = self.plain();
        decoder.attach(adapter).unwrap();
        decoder
    }

    /// With a B that is not zero, as after some updates, in `kind`.
    fn trained(&self, kind: Kind) -> Adapter {
        let mut adapter = Adapter::new(&self.config, &spec(), 1).unwrap();
        for (index, (name, tensor)) in adapter.weights.0.iter_mut().enumerate() {
            if name.ends_with(LORA_B) {
                let numbers = (0..tensor.numel()).map(|i| ((i * 37 + index * 11) % 101) as f32 / 500.0 - 0.1);
                *tensor = Tensor::from_slice(&numbers.collect::<Vec<f32>>()).view(tensor.size().as_slice());
            }
            *tensor = tensor.to_kind(kind);
        }
        adapter
    }
}

fn spec() -> AdapterSpec {
    AdapterSpec {
        rank: 4,
        alpha: 12.0,
        ..AdapterSpec::default()
    }
}

fn logits(decoder: &Decoder, sequences: &[Vec<u32>]) -> Tensor {
    models::logits(decoder, &TokenBatch::new(sequences).unwrap())
}

fn gradients(
    bench: &Bench,
    adapter: &Adapter,
    sequences: &[Vec<u32>],
    checkpointing: bool,
) -> BTreeMap<String, Tensor> {
    let weights = adapter.weights.deep_clone().unwrap();
    weights.require_gradients().unwrap();
    let mut decoder = bench.with(&Adapter {
        spec: adapter.spec.clone(),
        weights: weights.shallow_clone(),
    });
    decoder.set_activation_checkpointing(checkpointing);
    loss(&decoder, sequences).backward();
    weights
        .0
        .into_iter()
        .map(|(name, tensor)| (name, tensor.grad()))
        .collect()
}

#[test]
fn an_adapter_made_by_peft_gives_the_logits_and_gradients_that_peft_computes() {
    let theirs = expected("adapter", "");
    let sequences: Vec<Vec<u32>> = (0..3)
        .map(|row| {
            let ids = Vec::<f32>::try_from(&theirs[&format!("ids.{row}")]).unwrap();
            ids.into_iter().map(|id| id as u32).collect()
        })
        .collect();
    let bench = Bench::new(BASE, Kind::Float);
    let (adapter, _) = peft::load(&fixture("adapter"), &bench.config, &spec()).unwrap();
    let ours = logits(&bench.with(&adapter), &sequences);
    assert!(distance(&ours, &theirs["logits.f32"]) < 1e-4);
    assert!(distance(&logits(&bench.plain(), &sequences), &theirs["logits.base"]) < 1e-4);
    assert!(
        distance(&theirs["logits.f32"], &theirs["logits.base"]) > 0.1,
        "the adapter does nothing"
    );
    let ours = gradients(&bench, &adapter, &sequences, false);
    let known: Vec<_> = theirs.iter().filter(|(name, _)| name.starts_with("grad.")).collect();
    assert_eq!(known.len(), ours.len());
    for (name, gradient) in known {
        let name = &name["grad.".len()..];
        let far = distance(&ours[name], gradient);
        assert!(far < 1e-5, "{name}: {far}");
    }
    // Both round at other places: the distance to float32 is what they have in common.
    let rounded = Bench::new(BASE, Kind::BFloat16);
    let ours = distance(&logits(&rounded.with(&adapter), &sequences), &theirs["logits.f32"]);
    let peft = distance(&theirs["logits.bf16"], &theirs["logits.f32"]);
    assert!(ours < 1.5 * peft, "{ours} from float32, PEFT {peft}");
}

#[test]
fn an_adapter_that_starts_changes_no_bit() {
    for name in POLICIES {
        for kind in [Kind::Float, Kind::BFloat16] {
            let bench = Bench::new(name, kind);
            let adapter = Adapter::new(&bench.config, &spec(), 5).unwrap();
            let adapted = logits(&bench.with(&adapter), &sequences());
            assert!(adapted.equal(&logits(&bench.plain(), &sequences())), "{name} {kind:?}");
            let merged = MergedWeights::new(bench.base.shallow_clone(), &adapter);
            for (name, tensor) in merged.iter() {
                assert!(tensor.merge().unwrap().equal(tensor.weight), "{name}");
            }
        }
    }
}

#[test]
fn merged_weights_compute_what_the_adapter_computes() {
    let scratch = tempfile::tempdir().unwrap();
    for name in POLICIES {
        let target = scratch.path().join(name);
        let mut distances = Vec::new();
        let exact = Bench::new(name, Kind::Float);
        let exact = logits(&exact.with(&exact.trained(Kind::Float)), &sequences());
        for kind in [Kind::Float, Kind::BFloat16] {
            let bench = Bench::new(name, kind);
            let adapter = bench.trained(Kind::Float);
            let adapted = logits(&bench.with(&adapter), &sequences());
            let weights = MergedWeights::new(bench.base.shallow_clone(), &adapter);
            save(&target, &fixture(name), &bench.config, weights, 1 << 30).unwrap();
            let merged = Weights::load(&target, &ModelConfig::read(&target).unwrap(), kind).unwrap();
            let merged = logits(&Decoder::new(&bench.config, &merged).unwrap(), &sequences());
            distances.push([distance(&adapted, &exact), distance(&merged, &exact)]);
        }
        let [[_, float], [unmerged, merged]] = [distances[0], distances[1]];
        assert!(float < 1e-4, "{name}: {float}");
        // In bfloat16 the merge rounds the weights again: about as far from the truth as rounding them was.
        assert!(
            merged < 3.0 * unmerged.max(0.05),
            "{name}: {merged}, unmerged {unmerged}"
        );
    }
}

#[test]
fn the_gradients_of_an_adapter_are_those_of_its_formula_in_float64() {
    // float64 is not the kernels' business: stock operators compute it, and autograd differentiates them.
    for name in POLICIES {
        let (kernels, stock) = (Bench::new(name, Kind::Float), Bench::new(name, Kind::Double));
        let ours = gradients(&kernels, &kernels.trained(Kind::Float), &sequences(), false);
        let theirs = gradients(&stock, &stock.trained(Kind::Double), &sequences(), false);
        for (parameter, gradient) in &ours {
            let far = distance(gradient, &theirs[parameter]);
            assert!(far < 1e-5, "{name}, {parameter}: {far}");
        }
        // B of the first layer moves the loss as its gradient says.
        let parameter = "model.layers.0.self_attn.q_proj.lora_B.weight";
        let moved = |by: f64| {
            let mut adapter = stock.trained(Kind::Double);
            let number = adapter.weights.0.get_mut(parameter).unwrap();
            let _ = number.narrow(0, 3, 1).narrow(1, 2, 1).g_add_scalar_(by);
            // The loss is a mean in float32; the difference of two is not, over a step this wide.
            loss(&stock.with(&adapter), &sequences()).double_value(&[])
        };
        let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
        let gradient = theirs[parameter].double_value(&[3, 2]);
        assert!(
            (slope - gradient).abs() < 1e-4 + 0.02 * gradient.abs(),
            "{name}: {slope}, {gradient}"
        );
    }
}

#[test]
fn activation_checkpointing_changes_no_bit_of_a_gradient() {
    for kind in [Kind::Float, Kind::BFloat16] {
        for name in POLICIES {
            let bench = Bench::new(name, kind);
            let adapter = bench.trained(Kind::Float);
            let whole = gradients(&bench, &adapter, &sequences(), false);
            let checkpointed = gradients(&bench, &adapter, &sequences(), true);
            for (parameter, gradient) in &whole {
                assert!(gradient.equal(&checkpointed[parameter]), "{name} {kind:?}, {parameter}");
                assert!(
                    gradient.abs().max().double_value(&[]) > 0.0,
                    "{name} {kind:?}, {parameter}"
                );
            }
        }
    }
}

#[test]
fn a_sequence_alone_has_the_logits_it_has_in_a_batch() {
    for name in POLICIES {
        let bench = Bench::new(name, Kind::Float);
        let decoder = bench.with(&bench.trained(Kind::Float));
        let together = logits(&decoder, &sequences());
        let mut start = 0;
        for sequence in sequences() {
            let length = sequence.len() as i64;
            let alone = logits(&decoder, &[sequence]);
            assert!(distance(&alone, &together.narrow(0, start, length)) < 1e-5, "{name}");
            start += length;
        }
    }
}

#[test]
fn updates_change_the_adapter_and_no_bit_of_the_weights_below_it() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let bench = Bench::new("qwen3", kind);
        let before = bench.base.deep_clone().unwrap();
        let mut adapter = Adapter::new(&bench.config, &spec(), 1).unwrap();
        let first = adapter.weights.deep_clone().unwrap();
        let mut learner = Learner::new(&mut adapter.weights, OptimizerSpec::default(), 0.01, 10).unwrap();
        let decoder = bench.with(&adapter);
        let reference = bench.plain();
        let known = logits(&reference, &sequences());
        let start = loss(&decoder, &sequences()).double_value(&[]);
        for _ in 0..10 {
            learner.backward(&loss(&decoder, &sequences()), &[]).unwrap();
            learner.update().unwrap();
        }
        let end = loss(&decoder, &sequences()).double_value(&[]);
        assert!(end < start - 0.1, "{kind:?}: {start} to {end}");
        for (name, tensor) in &bench.base.0 {
            assert!(tensor.equal(&before.0[name]) && !tensor.grad().defined(), "{name}");
        }
        assert!(
            first
                .0
                .iter()
                .all(|(name, tensor)| !tensor.equal(&adapter.weights.0[name]))
        );
        // The decoder without the adapter, on the same tensors, is where it was: the reference.
        assert!(logits(&reference, &sequences()).equal(&known));
    }
}
