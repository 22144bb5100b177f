//! The models of `fixtures/` and what tests ask of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ppo_worker::model::{Decoder, Targets, TokenBatch, safetensors, token_logprobs};
use tch::{Kind, Tensor};

/// A model of each family.
pub const POLICIES: [&str; 5] = ["llama", "llama3", "linear-rope", "qwen2", "qwen3"];

/// The folder of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Floating-point tensors of a fixture's expectations whose names begin with `wanted`.
pub fn expected(name: &str, wanted: &str) -> BTreeMap<String, Tensor> {
    let file = fixture(name).join("expected.safetensors");
    safetensors::read_file(&file, Kind::Float, |key| key.starts_with(wanted)).unwrap()
}

/// Logits of every token of a batch, without gradients.
pub fn logits(decoder: &Decoder, batch: &TokenBatch) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    decoder.logits(&decoder.hidden(batch).unwrap()).unwrap()
}

/// The largest difference of two elements.
pub fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    (wide(a) - wide(b)).abs().max().double_value(&[])
}

/// Mean negative log-probability of each next token, the loss of the fixtures' gradients.
pub fn loss(decoder: &Decoder, sequences: &[Vec<u32>]) -> Tensor {
    let batch = TokenBatch::new(sequences).unwrap();
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for (start, sequence) in batch.starts().iter().zip(sequences) {
        rows.extend((0..sequence.len() - 1).map(|position| (start + position) as i64));
        targets.extend(sequence[1..].iter().map(|id| i64::from(*id)));
    }
    let hidden = decoder.hidden(&batch).unwrap();
    let hidden = hidden.index_select(0, &Tensor::from_slice(&rows));
    let targets = Tensor::from_slice(&targets);
    let scored = token_logprobs(decoder, &hidden, Targets::of(&targets).unwrap(), 1.0, None).unwrap();
    -scored.logprobs.mean(Kind::Float)
}
