use tch::Kind;

use super::*;
use crate::engine::conformance::{
    Subject, check_any_batch_is_the_same, chunk, conforms, draw, load, loaded, qwen, random_weights, runs, tiny, tokens,
};
use crate::engine::staging::{NewWeights, Staging};
use crate::model::Weights;
use crate::native::bytes::bytes_of;

impl Subject for NativeRunner {
    /// To the bit.
    const ROUNDING: (f32, f32) = (0.0, 0.0);
    const ERROR: (f32, f32) = (1e-5, 0.01);
    const CASES: u32 = 24;

    fn make(shape: &DecoderShape, num_blocks: usize, threads: usize) -> Result<Self> {
        Self::new(shape, num_blocks, threads)
    }

    fn rows(&self) -> Vec<f32> {
        (0..).map_while(|row| self.decoder.logits(row)).flatten().collect()
    }
}

conforms!(NativeRunner);

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        cases: <NativeRunner as Subject>::CASES,
        ..proptest::prelude::ProptestConfig::default()
    })]

    /// Every matrix is as deep as a number of tiles, where the processor multiplies those, and the others' vectors are full.
    #[test]
    fn bfloat16_rows_that_fill_tiles_are_the_same_in_any_batch_chunking_order_placement_and_thread_count(run in runs()) {
        let shape = DecoderShape {
            hidden: 64,
            heads: 4,
            head_dim: 16,
            intermediate: 96,
            inv_freq: (0..8).map(|i| 10000f32.powf(-(i as f32) / 8.0)).collect(),
            ..qwen(Kind::BFloat16)
        };
        check_any_batch_is_the_same::<NativeRunner>(&shape, &run)?;
    }
}

#[test]
fn sizes_whose_products_the_kernels_cannot_count_are_refused() {
    let wide = DecoderShape {
        heads: 1 << 15,
        kv_heads: 1 << 15,
        head_dim: 1 << 15,
        inv_freq: vec![1.0; 1 << 14],
        ..tiny(Kind::Float)
    };
    let long = DecoderShape {
        intermediate: 1 << 30,
        ..tiny(Kind::Float)
    };
    for (shape, named) in [(wide, "heads is 32768"), (long, "intermediate is 1073741824")] {
        let error = format!("{:#}", NativeRunner::new(&shape, 1, 1).unwrap_err());
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_runner_that_slept_draws_the_same_once_it_has_weights_again() {
    for (kind, tied) in [(Kind::Float, true), (Kind::BFloat16, false)] {
        let shape = DecoderShape { tied, ..tiny(kind) };
        let mut runner: NativeRunner = loaded(&shape, 10, 2);
        let batch = ForwardBatch {
            chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(7, 0)])],
        };
        let before = runner.forward(&batch).unwrap();
        runner.sleep();
        let error = runner.forward(&batch).unwrap_err().to_string();
        assert!(error.contains("no weights"), "{error}");
        load(&mut runner, &random_weights(&shape)).unwrap();
        assert_eq!(runner.forward(&batch).unwrap(), before);
    }
}

/// Weights gathered from pieces of `length` bytes, sent in `stored`.
fn gathered(staging: Staging, shape: &DecoderShape, weights: &Weights, stored: Kind, length: usize) -> NewWeights {
    let mut staging = staging;
    for name in places(shape).keys() {
        let tensor = weights.0[name].to_kind(stored).contiguous();
        let mut pieces = bytes_of(&tensor).unwrap().chunks(length);
        let next = || pieces.next().context("no more");
        staging.take(name, &tensor.size(), stored, next).unwrap();
    }
    staging.finish()
}

#[test]
fn weights_that_gather_from_pieces_of_any_length_compute_what_loaded_ones_do() {
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)])],
    };
    for (kind, tied, qk_norm) in [(Kind::Float, true, false), (Kind::BFloat16, false, true)] {
        let shape = DecoderShape {
            tied,
            qk_norm,
            qkv_bias: true,
            hidden: 41, // an odd number of bfloat16 in a row
            ..tiny(kind)
        };
        let mut runner: NativeRunner = loaded(&shape, 4, 2);
        let rows = |runner: &mut NativeRunner| {
            runner.forward(&batch).unwrap();
            runner.rows()
        };
        let old = rows(&mut runner);
        let mut weights = random_weights(&shape);
        for tensor in weights.0.values_mut() {
            *tensor = (&*tensor * 1.5).to_kind(kind);
        }
        load(&mut runner, &weights).unwrap();
        let new = rows(&mut runner);
        for (length, stored) in [
            (1, kind),
            (77, kind),
            (4096, kind),
            (1 << 20, kind),
            (1000, Kind::Float),
        ] {
            load(&mut runner, &random_weights(&shape)).unwrap();
            let staging = Staging::new(runner.stage().unwrap(), kind);
            let NewWeights::Packed(packed) = gathered(staging, &shape, &weights, stored, length) else {
                panic!("this runner packs");
            };
            assert_eq!(rows(&mut runner), old, "the old weights stay until they are swapped");
            runner.swap(packed).unwrap();
            assert_eq!(rows(&mut runner), new, "pieces of {length} bytes, sent in {stored:?}");
        }
    }
}

/// As the actor's of another number format are, in its own process and over the network.
#[test]
fn weights_in_another_number_format_compute_the_same_whether_they_come_as_tensors_or_as_pieces() {
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)])],
    };
    for (sent, own) in [(Kind::Float, Kind::BFloat16), (Kind::BFloat16, Kind::Float)] {
        let of = |kind: Kind| DecoderShape {
            qkv_bias: true,
            qk_norm: true,
            ..tiny(kind)
        };
        let (shape, weights) = (of(own), random_weights(&of(sent)));
        let mut runner: NativeRunner = loaded(&shape, 4, 2);
        let rows = |runner: &mut NativeRunner| {
            runner.forward(&batch).unwrap();
            runner.rows()
        };
        load(&mut runner, &weights).unwrap();
        let as_tensors = rows(&mut runner);
        load(&mut runner, &random_weights(&shape)).unwrap();
        let staging = Staging::new(runner.stage().unwrap(), own);
        let NewWeights::Packed(packed) = gathered(staging, &shape, &weights, sent, 1000) else {
            panic!("this runner packs");
        };
        runner.swap(packed).unwrap();
        assert_eq!(rows(&mut runner), as_tensors, "{sent:?} in {own:?}");
    }
}

#[test]
fn gathering_refuses_what_the_model_does_not_have_and_more_bytes_than_a_tensor_has() {
    let shape = tiny(Kind::Float);
    let mut runner: NativeRunner = loaded(&shape, 4, 1);
    let mut staging = Staging::new(runner.stage().unwrap(), Kind::Float);
    let mut refusal = |name: &str, size: &[i64], bytes: usize| {
        let piece = vec![0u8; bytes];
        let taken = staging.take(name, size, Kind::Float, || Ok(&piece));
        taken.unwrap_err().to_string()
    };
    let embedding = "model.embed_tokens.weight";
    assert!(refusal(embedding, &[101, 41], 101 * 41 * 4).contains("[101, 41] is not [101, 40]"));
    assert!(refusal(embedding, &[101, 40], 101 * 40 * 4 + 1).contains("more bytes"));
    assert!(refusal("lm_head.weight", &[2, 2], 16).contains("no such tensor"));
    let mut other: NativeRunner = loaded(&DecoderShape { layers: 1, ..shape }, 4, 1);
    let error = other.swap(runner.stage().unwrap().unwrap()).unwrap_err().to_string();
    assert!(error.contains("another model's"), "{error}");
}
