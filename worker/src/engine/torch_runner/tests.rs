use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tch::Kind;

use super::kernel::Flash;
use super::*;
use crate::engine::conformance::{
    Subject, check_against_reference, chunk, conforms, draw, loaded, params, random_weights, tiny, tokens,
};
use crate::engine::native_runner::NativeRunner;
use crate::engine::{Completion, Details, Engine, EngineConfig, Request, SamplingParams};

mod gpu;
mod varlen;

/// A runner of some make.
#[derive(Debug)]
struct Made<M>(TorchRunner, PhantomData<M>);

trait Make: std::fmt::Debug {
    fn runner(shape: &DecoderShape, num_blocks: usize) -> Result<TorchRunner>;
}

/// On the CPU: with blocks gathered or read by what computes the same as flash attention; single tokens in passes like any
/// other or over static tensors, as a GPU's are.
#[derive(Debug)]
struct OnCpu<const FLASH: bool, const STATIC: bool>;

type Torch<const FLASH: bool, const STATIC: bool> = Made<OnCpu<FLASH, STATIC>>;

impl<const FLASH: bool, const STATIC: bool> Make for OnCpu<FLASH, STATIC> {
    fn runner(shape: &DecoderShape, num_blocks: usize) -> Result<TorchRunner> {
        let kernel = match FLASH {
            // Blocks as small as the others, so that the tests' sequences have many, and passes more than a call takes.
            true => Kernel {
                block_size: 16,
                flash: Some(Flash {
                    varlen: varlen::attention,
                    most_sequences: varlen::MOST_SEQUENCES,
                }),
            },
            false => Kernel::of(shape, Device::Cpu),
        };
        let placement = Placement {
            device: Device::Cpu,
            kernel,
            num_blocks,
            max_sequences: 7,
            kernels: Kernels::Operators,
        };
        let decode = STATIC.then(|| Decode::new(shape, &placement, None, None)).transpose()?;
        TorchRunner::with(shape, placement, decode, None)
    }
}

impl<M: Make> Made<M> {
    fn of(shape: &DecoderShape, num_blocks: usize) -> Result<Self> {
        Ok(Self(M::runner(shape, num_blocks)?, PhantomData))
    }
}

impl<M: Make> Runner for Made<M> {
    fn num_blocks(&self) -> usize {
        self.0.num_blocks()
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn max_positions(&self) -> usize {
        self.0.max_positions()
    }

    fn forward(&mut self, batch: &ForwardBatch) -> Result<Output> {
        self.0.forward(batch)
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<()> {
        self.0.copy_block(from, to)
    }

    fn load(&mut self, weights: &MergedWeights) -> Result<()> {
        self.0.load(weights)
    }

    fn change(&mut self, changes: &Changes) -> Result<()> {
        self.0.change(changes)
    }
}

impl<M: Make> Subject for Made<M> {
    const ROUNDING: (f32, f32) = (1e-5, 0.05);
    /// Products' sums are in another order; in bfloat16 the residual stream and the logits are rounded too.
    const ERROR: (f32, f32) = (1e-4, 0.05);
    const CASES: u32 = 3;

    fn make(shape: &DecoderShape, num_blocks: usize, _threads: usize) -> Result<Self> {
        Self::of(shape, num_blocks)
    }

    fn rows(&self) -> Vec<f32> {
        self.0.logits().unwrap()
    }
}

mod gathered {
    super::conforms!(super::Torch<false, false>);
}

mod gathered_static {
    super::conforms!(super::Torch<false, true>);
}

mod flash {
    super::conforms!(super::Torch<true, false>);
}

mod flash_static {
    super::conforms!(super::Torch<true, true>);
}

#[test]
fn a_bias_on_the_output_projection_agrees_with_the_reference_and_the_native_kernels_refuse_it() {
    let shape = DecoderShape {
        qkv_bias: true,
        output_bias: true,
        ..tiny(Kind::Float)
    };
    check_against_reference::<Torch<false, false>>(&shape);
    let error = NativeRunner::new(&shape, 4, 1).unwrap_err().to_string();
    assert!(error.contains("output projection"), "{error}");
}

#[test]
fn logits_of_a_bfloat16_model_are_not_rounded_to_bfloat16() {
    fn check<const FLASH: bool, const STATIC: bool>() {
        let shape = DecoderShape {
            output_bias: true,
            ..tiny(Kind::BFloat16)
        };
        let mut runner: Torch<FLASH, STATIC> = loaded(&shape, 4, 1);
        let passes = [
            chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(1, 0)]),
            chunk(&[7], 20, &[0, 1], vec![draw(1, 1)]),
        ];
        for pass in passes {
            runner.forward(&ForwardBatch { chunks: vec![pass] }).unwrap();
            let rows = runner.rows();
            assert!(rows.iter().any(|logit| logit.to_bits() & 0xffff != 0), "{rows:?}");
        }
    }
    check::<false, false>();
    check::<true, true>();
}

#[test]
fn new_weights_lie_where_the_old_did() {
    let shape = tiny(Kind::Float);
    let mut runner: Torch<false, false> = loaded(&shape, 4, 1);
    let places = |runner: &TorchRunner| {
        let weights = &runner.decoder.weights;
        let layers = weights.layers.iter().flat_map(|layer| {
            [
                &layer.qkv,
                &layer.output,
                &layer.gate_up,
                &layer.down,
                &layer.attention_norm,
                &layer.mlp_norm,
            ]
        });
        let all = layers.chain([&weights.final_norm, &weights.embedding, &weights.head]);
        all.map(|tensor| tensor.data_ptr() as usize).collect::<Vec<_>>()
    };
    let before = places(&runner.0);
    runner.load(&(&random_weights(&shape)).into()).unwrap();
    assert_eq!(places(&runner.0), before);
}

#[test]
fn weights_in_another_number_format_compute_what_they_do_once_they_are_converted() {
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![draw(7, 0)])],
    };
    for (sent, own) in [(Kind::Float, Kind::BFloat16), (Kind::BFloat16, Kind::Float)] {
        let mut runner: Torch<false, false> = loaded(&tiny(own), 4, 1);
        let mut rows = |weights: &crate::model::Weights| {
            runner.load(&weights.into()).unwrap();
            runner.forward(&batch).unwrap();
            runner.rows()
        };
        let weights = random_weights(&tiny(sent));
        let found = rows(&weights);
        let mut converted = weights;
        for tensor in converted.0.values_mut() {
            *tensor = tensor.to_kind(own);
        }
        assert_eq!(found, rows(&converted), "{sent:?} in {own:?}");
    }
}

#[test]
fn the_bytes_of_the_weights_are_those_of_the_matrices() {
    for tied in [false, true] {
        let shape = DecoderShape {
            tied,
            ..tiny(Kind::BFloat16)
        };
        let weights = Weights::empty(&shape, Device::Cpu).unwrap();
        let layers = weights
            .layers
            .iter()
            .flat_map(|layer| [&layer.qkv, &layer.output, &layer.gate_up, &layer.down]);
        let head = (!tied).then_some(&weights.head);
        let bytes: usize = layers
            .chain([&weights.embedding])
            .chain(head)
            .map(|it| 2 * it.numel())
            .sum();
        assert_eq!(TorchRunner::weight_bytes(&shape), bytes);
    }
}

#[test]
fn a_piece_of_a_prompt_draws_nothing() {
    let mut runner: Torch<false, true> = loaded(&tiny(Kind::Float), 4, 1);
    let batch = ForwardBatch {
        chunks: vec![chunk(&tokens(1, 20), 0, &[0, 1], vec![]), chunk(&[3], 0, &[2], vec![])],
    };
    assert_eq!(runner.forward(&batch).unwrap(), Output::default());
}

/// Passes of every number of sequences, filled up or not, over sequences of unlike lengths.
#[test]
fn passes_over_static_tensors_give_what_the_others_do() {
    let shape = DecoderShape {
        qkv_bias: true,
        ..tiny(Kind::Float)
    };
    let mut plain: Torch<true, false> = loaded(&shape, 40, 1);
    let mut fixed: Torch<true, true> = loaded(&shape, 40, 1);
    let blocks = |sequence: usize| (0..5).map(|i| (sequence * 5 + i) as u32).collect::<Vec<u32>>();
    let lengths = [1, 15, 16, 17, 40, 63, 64];
    let prompts = ForwardBatch {
        chunks: (0..7)
            .map(|i| chunk(&tokens(i as u64, lengths[i]), 0, &blocks(i), vec![]))
            .collect(),
    };
    plain.forward(&prompts).unwrap();
    fixed.forward(&prompts).unwrap();
    for count in [7, 1, 3, 4, 5, 2, 6, 7] {
        let batch = ForwardBatch {
            chunks: (0..count)
                .map(|i| chunk(&[i as u32], lengths[i], &blocks(i), vec![draw(i as u64, 0)]))
                .collect(),
        };
        let (a, b) = (plain.forward(&batch).unwrap(), fixed.forward(&batch).unwrap());
        for (a, b) in a.drawn.iter().zip(&b.drawn) {
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!(a.token, b.token);
            assert!((a.logprob - b.logprob).abs() < 1e-4);
        }
        for (a, b) in plain.rows().iter().zip(fixed.rows()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
    // One for 8 that is cut to the most there may be, and those of 1, 2 and 4; over 4 and 8 blocks.
    let sizes: Vec<usize> = fixed.0.decode.as_ref().unwrap().sizes_seen();
    assert_eq!(sizes, [1, 2, 4, 7]);
}

fn completions(
    make: impl FnOnce() -> Result<Box<dyn Runner>> + Send + 'static,
    requests: &[Request],
) -> Vec<Vec<Completion>> {
    let config = EngineConfig {
        max_batch_tokens: 24,
        max_sequences: 7,
        ..EngineConfig::default()
    };
    let engine = Engine::start(make, config).unwrap();
    let completions = engine.generate(requests.to_vec(), Duration::from_secs(120)).unwrap();
    assert!(engine.stats().counters.preemptions > 0, "the cache was to be too small");
    completions
}

/// Prompts in chunks, siblings that fork inside a block, preemption and recomputation, truncated and greedy draws, details.
#[test]
fn engines_of_all_runners_give_the_same_samples() {
    let shape = DecoderShape {
        qk_norm: true,
        ..tiny(Kind::Float)
    };
    let request = |i: u64, params: SamplingParams| Request {
        prompt: tokens(i, 10 + 7 * i as usize).into(),
        seeds: vec![i, i + 100, i + 200],
        params: Arc::new(params),
        details: Details {
            top_logprobs: (i == 1).then_some(2),
            prompt_logprobs: (i == 2).then_some(1),
        },
    };
    let requests: Vec<Request> = (0..5)
        .map(|i| {
            let plain = SamplingParams {
                max_new_tokens: 25,
                stop_token_ids: vec![3],
                min_new_tokens: 2,
                ..params()
            };
            request(
                i,
                match i {
                    0 => plain,
                    1 => SamplingParams { top_p: 0.8, ..plain },
                    2 => SamplingParams {
                        top_k: 5,
                        temperature: 0.7,
                        ..plain
                    },
                    3 => SamplingParams {
                        temperature: 0.0,
                        ..plain
                    },
                    _ => SamplingParams {
                        min_p: 0.1,
                        top_k: 20,
                        top_p: 0.9,
                        ..plain
                    },
                },
            )
        })
        .collect();
    let weights = random_weights(&shape);
    let run = |which: usize| {
        let (shape, weights): (DecoderShape, MergedWeights) = (shape.clone(), (&weights).into());
        let make = move || {
            let mut runner: Box<dyn Runner> = match which {
                0 => Box::new(NativeRunner::new(&shape, 12, 2)?),
                1 => Box::new(Torch::<false, false>::of(&shape, 12)?),
                2 => Box::new(Torch::<true, true>::of(&shape, 12)?),
                _ => Box::new(Torch::<true, false>::of(&shape, 12)?),
            };
            runner.load(&weights)?;
            Ok(runner)
        };
        completions(make, &requests)
    };
    let native = run(0);
    let scores = |it: &Completion| it.prompt_logprobs.iter().flat_map(|it| it.to_vec()).collect::<Vec<_>>();
    assert!(native.iter().flatten().any(|it| !scores(it).is_empty()));
    assert!(native.iter().flatten().any(|it| !it.top_logprobs.is_empty()));
    for which in 1..4 {
        let own = run(which);
        let counts = |of: &[Vec<Completion>]| of.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((counts(&own), counts(&native)), (vec![3; 5], vec![3; 5]));
        for (own, native) in own.iter().flatten().zip(native.iter().flatten()) {
            assert_eq!(own.tokens, native.tokens, "runner {which}");
            assert_eq!(own.finish_reason, native.finish_reason);
            let close = |a: &f32, b: &f32| (a - b).abs() < 1e-3;
            assert_eq!(own.logprobs.len(), native.logprobs.len());
            assert!(own.logprobs.iter().zip(&native.logprobs).all(|(a, b)| close(a, b)));
            assert_eq!(own.top_logprobs.len(), native.top_logprobs.len());
            let tops = |it: &Completion| it.top_logprobs.concat();
            assert_eq!(tops(own).len(), tops(native).len());
            for (own, native) in tops(own).iter().zip(tops(native)) {
                assert!(own.token == native.token && close(&own.logprob, &native.logprob));
            }
            assert_eq!(scores(own).len(), scores(native).len());
            for (own, native) in scores(own).iter().zip(scores(native)) {
                assert!(own.rank == native.rank && close(&own.logprob, &native.logprob));
            }
        }
    }
}
