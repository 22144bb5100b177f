use std::time::Duration;

use axum::http::StatusCode;
use tch::{Device, Tensor};

use super::arrival::{read, receive};
use super::*;
use crate::actor::parameters::Parameters;
use crate::model::{ModelConfig, Weights};

const LATER: Duration = Duration::from_secs(5);

fn model() -> ModelConfig {
    ModelConfig::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama").as_ref()).unwrap()
}

/// The tiny Llama in bfloat16, trained.
struct Trained {
    weights: Weights,
    parameters: Parameters,
}

impl Trained {
    fn new() -> Self {
        let mut weights = Weights::random(&model(), Kind::BFloat16, 1).unwrap();
        let mut parameters = Parameters::adopt(&mut weights).unwrap();
        parameters.mark_changes().unwrap();
        Self { weights, parameters }
    }

    /// Every number moves a little, and every `each`-th so far that its bfloat16 is another one.
    fn step(&mut self, each: i64) {
        let count = self.parameters.count();
        self.parameters
            .change_master(0, count, |weights, from| {
                let places = Tensor::arange_start(from, from + weights.size1()?, (Kind::Int64, Device::Cpu));
                let far = places.remainder(each).eq(0).to_kind(Kind::Float);
                let _ = weights.shallow_clone().f_add_(&((far * 0.5 + 1e-7) * weights))?;
                Ok(())
            })
            .unwrap();
    }

    fn delta(&self) -> Option<Delta> {
        let changed = self.parameters.changed().unwrap().unwrap();
        Delta::of(&(&self.weights).into(), &changed).unwrap()
    }
}

fn sent(delta: &Delta) -> Vec<u8> {
    delta.pieces().collect::<Vec<_>>().concat()
}

/// Bytes with their hash behind them.
fn hashed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(Hash::of(&bytes).bytes());
    bytes
}

/// A file of these tensors, with its hash.
fn file(tensors: &[(&str, Kind, &[u8])]) -> Vec<u8> {
    let (mut fields, mut body) = (serde_json::Map::new(), Vec::new());
    for (name, kind, bytes) in tensors {
        let (dtype, size) = match kind {
            Kind::BFloat16 => ("BF16", 2),
            _ => ("U8", 1),
        };
        let place = json!({"dtype": dtype, "shape": [bytes.len() / size], "data_offsets": [body.len(), body.len() + bytes.len()]});
        fields.insert((*name).to_owned(), place);
        body.extend_from_slice(bytes);
    }
    hashed([prefixed(&fields).unwrap(), body].concat())
}

#[test]
fn what_changed_arrives_as_the_numbers_that_the_actor_has_and_nothing_else_is_sent() {
    let mut trained = Trained::new();
    let before = trained.weights.deep_clone().unwrap();
    trained.step(50);
    let delta = trained.delta().unwrap();
    let (changes, hash) = read(&model(), sent(&delta)).unwrap();
    assert_eq!(hash, Hash::of(&sent(&delta)[..sent(&delta).len() - Hash::BYTES]));
    let mut count = 0;
    for change in changes.iter() {
        let (old, new) = (&before.0[change.name], &trained.weights.0[change.name]);
        let places: Vec<i64> = change.positions().collect();
        count += places.len() as u64;
        let values: Vec<f32> = change.floats().collect();
        let patched = old.copy().view([-1]).to_kind(Kind::Float);
        let patched = patched.index_copy(0, &Tensor::from_slice(&places), &Tensor::from_slice(&values));
        assert_eq!(patched, new.detach().view([-1]).to_kind(Kind::Float), "{}", change.name);
    }
    assert_eq!(count, delta.count);
    let differ =
        |(name, tensor): (&String, &Tensor)| tensor.ne_tensor(&before.0[name]).sum(Kind::Int64).int64_value(&[]);
    let differ: i64 = trained.weights.0.iter().map(differ).sum();
    assert_eq!(delta.count as i64, differ);
    let whole = MergedWeights::from(&trained.weights).bytes();
    assert!(delta.bytes() < whole / 8, "{} of {whole} bytes", delta.bytes());
}

#[test]
fn several_updates_add_up_and_what_is_cleared_is_not_sent_again() {
    let mut trained = Trained::new();
    trained.step(50);
    let first = trained.delta().unwrap().count;
    trained.step(49);
    assert!(trained.delta().unwrap().count > first);
    trained.parameters.clear_marks().unwrap();
    let none = trained.delta().unwrap();
    assert_eq!(none.count, 0);
    let (changes, _) = read(&model(), sent(&none)).unwrap();
    assert_eq!(changes.iter().count(), 0);
}

#[test]
fn where_much_changed_there_is_no_delta() {
    let mut trained = Trained::new();
    trained.step(2);
    assert!(trained.delta().is_none());
}

#[test]
fn of_a_float32_model_nothing_is_marked() {
    let mut weights = Weights::random(&model(), Kind::Float, 1).unwrap();
    let mut parameters = Parameters::adopt(&mut weights).unwrap();
    parameters.mark_changes().unwrap();
    assert!(parameters.changed().unwrap().is_none());
}

#[tokio::test]
async fn what_broke_on_the_way_is_refused_and_so_is_what_never_ends() {
    let mut trained = Trained::new();
    trained.step(50);
    let whole = sent(&trained.delta().unwrap());
    let stream =
        |bytes: Vec<u8>| futures::stream::iter(bytes.chunks(100).map(Bytes::copy_from_slice).collect::<Vec<_>>());
    let receive = async |bytes: Vec<u8>| {
        let pieces = futures::StreamExt::map(stream(bytes), Ok::<_, String>);
        receive(&model(), pieces, LATER).await
    };
    assert!(receive(whole.clone()).await.is_ok());
    for place in [0, 9, whole.len() / 2, whole.len() - 1] {
        let mut broken = whole.clone();
        broken[place] ^= 1;
        let error = receive(broken).await.unwrap_err();
        assert!(error.message.contains("hash"), "{error}");
    }
    let short = receive(whole[..10].to_vec()).await.unwrap_err();
    assert!(short.message.contains("ended before its hash"), "{short}");
    let endless = receive(vec![0; 1 << 22]).await.unwrap_err();
    assert_eq!(endless.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn what_is_no_part_of_the_model_is_named() {
    let (norm, last) = ("model.norm.weight", model().hidden as u8);
    let values = format!("{norm}{VALUES}");
    let gaps = format!("{norm}{GAPS}");
    let refusal = |tensors: &[(&str, Kind, &[u8])]| read(&model(), file(tensors)).unwrap_err().message;
    let (number, byte) = (Kind::BFloat16, Kind::Uint8);
    assert!(
        read(
            &model(),
            file(&[(&values, number, &[0; 2]), (&gaps, byte, &[last - 1])])
        )
        .is_ok()
    );
    for (tensors, words) in [
        (
            vec![(&*values, number, &[0; 2][..])],
            "has no gaps of model.norm.weight",
        ),
        (vec![(&gaps, byte, &[0])], "no half of a pair"),
        (vec![("model.norm.weight", number, &[0; 2])], "no half of a pair"),
        (vec![(&values, number, &[0; 2]), (&gaps, byte, &[last])], "which has 32"),
        (
            vec![(&values, number, &[0; 4]), (&gaps, byte, &[0])],
            "4 bytes of model.norm.weight for 1 numbers",
        ),
        (vec![(&values, byte, &[0; 2]), (&gaps, byte, &[0])], "not BF16 and U8"),
        (
            vec![("w:values", number, &[0; 2]), ("w:gaps", byte, &[0])],
            "w, which is no tensor",
        ),
    ] {
        let refusal = refusal(&tensors);
        assert!(
            refusal.contains(words) && refusal.contains("the old weights stay"),
            "{refusal}"
        );
    }
    let no_file = read(&model(), hashed(vec![1; 40])).unwrap_err();
    assert!(no_file.message.contains("no safetensors file"), "{no_file}");
}

#[test]
fn the_digest_of_what_an_engine_has_depends_on_what_it_had_and_on_what_changed() {
    let after = |base: &str, delta: &[u8]| digest_after(base, Hash::of(delta));
    assert_eq!(after("a", b"d"), after("a", b"d"));
    assert_ne!(after("a", b"d"), after("b", b"d"));
    assert_ne!(after("a", b"d"), after("a", b"e"));
}
