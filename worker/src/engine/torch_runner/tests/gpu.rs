//! The runner on this process' GPU, in each way that it computes there; everywhere, on a simulated one (`tests/simulated_gpu`).

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::engine::conformance::{
    changed_here_and_there, check_any_batch_is_the_same, check_that_no_distribution_spoils_none,
    distance_from_reference, load, runs,
};
use crate::engine::runner::Draw;
use crate::engine::sampler::uniform;
use crate::engine::torch_runner::kernel::Heads;
use crate::engine::torch_runner::rotary::Rotary;
use crate::engine::torch_runner::steps::{Layout, Parts, Projected, Stream};

#[derive(Debug)]
struct OnGpu<const FUSED: bool>;

type Gpu<const FUSED: bool> = Made<OnGpu<FUSED>>;

impl<const FUSED: bool> Make for OnGpu<FUSED> {
    fn runner(shape: &DecoderShape, num_blocks: usize) -> Result<TorchRunner> {
        let device = crate::device::here()?;
        ensure!(device.is_cuda(), "no GPU is here");
        let placement = Placement {
            device,
            // Small, so that the tests' sequences have many.
            kernel: Kernel {
                block_size: 16,
                ..Kernel::of(shape, device)
            },
            num_blocks,
            max_sequences: 7,
            kernels: if FUSED { Kernels::default() } else { Kernels::Operators },
        };
        TorchRunner::new(shape, placement)
    }
}

/// Sizes that flash attention and our kernels take; three heads share a key head.
fn sizes() -> DecoderShape {
    DecoderShape {
        hidden: 72,
        heads: 6,
        kv_heads: 2,
        head_dim: 24,
        intermediate: 104,
        inv_freq: (0..12).map(|i| 10000f32.powf(-(i as f32) / 12.0)).collect(),
        ..tiny(Kind::BFloat16)
    }
}

fn shapes() -> Vec<DecoderShape> {
    let wide = |head_dim: usize, heads: usize, kv_heads: usize| DecoderShape {
        head_dim,
        heads,
        kv_heads,
        inv_freq: (0..head_dim / 2)
            .map(|i| 10000f32.powf(-2.0 * i as f32 / head_dim as f32))
            .collect(),
        ..sizes()
    };
    vec![
        sizes(),
        DecoderShape {
            qkv_bias: true,
            output_bias: true,
            ..sizes()
        },
        DecoderShape {
            qk_norm: true,
            tied: false,
            vocab: 1032,
            ..sizes()
        },
        wide(128, 2, 2),
        wide(256, 4, 1),
        wide(64, 5, 1),
    ]
}

fn agrees_with_the_reference<M: Make>() {
    let distances: Vec<f64> = shapes().iter().map(distance_from_reference::<Made<M>>).collect();
    assert!(distances.iter().all(|distance| *distance < 0.05), "{distances:?}");
}

/// Passes of every number of sequences, in graphs.
fn draws_in_graphs<const FUSED: bool>() -> Vec<(Vec<f32>, Output)> {
    let shape = DecoderShape {
        qk_norm: true,
        qkv_bias: true,
        ..sizes()
    };
    let mut runner: Gpu<FUSED> = loaded(&shape, 40, 1);
    assert_eq!(runner.0.fused.is_some(), FUSED);
    let blocks = |sequence: usize| (0..5).map(|i| (sequence * 5 + i) as u32).collect::<Vec<u32>>();
    let lengths = [1, 15, 16, 17, 40, 63, 64];
    let prompts = (0..7).map(|i| chunk(&tokens(i as u64, lengths[i]), 0, &blocks(i), vec![]));
    let prompts = ForwardBatch {
        chunks: prompts.collect(),
    };
    runner.forward(&prompts).unwrap();
    let params_of = |i: usize| SamplingParams {
        temperature: [1.0, 0.0, 0.7][i % 3],
        ..params()
    };
    let passes = [7, 1, 3, 4, 5, 2, 6, 7].map(|count| {
        let chunks = (0..count).map(|i| {
            let draw = Draw {
                params: Arc::new(params_of(i)),
                ..draw(i as u64, count)
            };
            chunk(&[i as u32], lengths[i], &blocks(i), vec![draw])
        });
        let batch = ForwardBatch {
            chunks: chunks.collect(),
        };
        let output = runner.forward(&batch).unwrap();
        (runner.rows(), output)
    });
    assert!(runner.0.decode.as_ref().unwrap().has_graphs());
    passes.into()
}

/// Numbers between -2 and 2, on the GPU.
fn random(size: &[i64], seed: u64) -> Tensor {
    let count: i64 = size.iter().product();
    let values: Vec<f32> = (0..count as u64)
        .map(|i| (uniform(seed, i) as f32 - 0.5) * 4.0)
        .collect();
    let values = Tensor::from_slice(&values).view(size).to_kind(Kind::BFloat16);
    values.to_device(crate::device::here().unwrap())
}

/// Both are on the GPU, and differ by rounding alone.
fn assert_close(ours: &Tensor, theirs: &Tensor, what: &str) {
    let host = |tensor: &Tensor| tensor.to_device(Device::Cpu).to_kind(Kind::Double);
    let (ours, theirs) = (host(ours), host(theirs));
    assert_eq!(ours.size(), theirs.size(), "{what}");
    let error: Tensor = (&ours - &theirs).abs() - 0.01 * theirs.abs();
    let most = error.max().double_value(&[]);
    assert!(most < 0.01, "{what}: {most} beyond a hundredth");
}

fn each_way() -> (Fused, Operators) {
    crate::device::here().unwrap();
    let shim = cuda::shim().unwrap();
    (Fused { shim, products: true }, Operators)
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn norms_and_products_of_all_sizes_are_the_operators() {
    let (ours, theirs) = each_way();
    for (rows, width) in [(1, 8), (3, 72), (2, 8200), (2, 32_768), (300, 40)] {
        let weight = random(&[width], 1);
        let stream = || Stream {
            rows: random(&[rows, width], 2),
            delta: None,
        };
        let [mut own, mut other] = [stream(), stream()];
        for delta in [None, Some(random(&[rows, width], 3))] {
            (own.delta, other.delta) = (delta.as_ref().map(Tensor::shallow_clone), delta);
            let normed = ours.norm(&mut own, &weight, 1e-5).unwrap();
            assert_close(&normed, &theirs.norm(&mut other, &weight, 1e-5).unwrap(), "norm");
            assert_close(&own.rows, &other.rows, "stream");
        }
    }
    for rows in [1, 2, 3, 4, 5] {
        for (inputs, outputs) in [(8, 2), (72, 40), (256, 6), (1544, 16), (8960, 10)] {
            // Sums of about one.
            let matrix = random(&[outputs, inputs], 4) / (inputs as f64).sqrt();
            let (x, bias) = (random(&[rows, inputs], 5), random(&[outputs], 6));
            for bias in [None, Some(&bias)] {
                let product = ours.product(&x, &matrix, bias).unwrap();
                assert_close(&product, &theirs.product(&x, &matrix, bias).unwrap(), "product");
            }
            if outputs % 16 == 0 {
                let gated = ours.gated(&x, &matrix).unwrap();
                assert_close(&gated, &theirs.gated(&x, &matrix).unwrap(), "gate");
            }
            let logits = || Tensor::zeros([rows, outputs], (Kind::Float, x.device()));
            let (own, other) = (logits(), logits());
            ours.logits(&x, &matrix, &own).unwrap();
            theirs.logits(&x, &matrix, &other).unwrap();
            assert_close(&own, &other, "logits");
        }
    }
    for (rows, width) in [(5, 8), (5, 40), (70, 3000)] {
        let (x, matrix) = (random(&[rows, 8], 7), random(&[2 * width, 8], 8));
        let gated = ours.gated(&x, &matrix).unwrap();
        assert_close(&gated, &theirs.gated(&x, &matrix).unwrap(), "gate");
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn heads_and_blocks_of_all_sizes_are_the_operators() {
    let (ours, theirs) = each_way();
    let device = crate::device::here().unwrap();
    let numbers = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
    for (dim, queries, keys) in [(8, 2, 2), (24, 6, 2), (64, 5, 1), (128, 12, 2), (256, 4, 4)] {
        let heads = Heads { queries, keys, dim };
        let frequencies = Tensor::from_slice(&(0..dim / 2).map(|i| 0.8f32.powi(i as i32)).collect::<Vec<_>>());
        for rows in [1usize, 7] {
            let positions = numbers(&[3, 0, 4095, 70, 1, 2, 900][..rows]);
            let slots = numbers(&[9, 1, 0, 8, 7, 5, 6][..rows]);
            let rotary = Rotary::at(&positions, &frequencies.to_device(device));
            let projected = random(&[rows as i64, (queries + 2 * keys) * dim], 1);
            let norms = [random(&[dim], 2), random(&[dim], 3)];
            for (norms, layout) in [
                (None, Layout::Rows),
                (Some(&norms), Layout::Blocks(1)),
                (None, Layout::Blocks(3)),
            ] {
                let of = |steps: &dyn Steps| {
                    let cache = || Tensor::zeros([10, keys, dim], (Kind::BFloat16, device));
                    let (all_keys, all_values) = (cache(), cache());
                    let queries = steps.heads(&Projected {
                        rows: &projected,
                        norms,
                        eps: 1e-6,
                        rotary: &rotary,
                        slots: &slots,
                        cache: (&all_keys, &all_values),
                        heads,
                        layout,
                    });
                    [queries.unwrap(), all_keys, all_values]
                };
                for (own, other) in of(&ours).iter().zip(of(&theirs)) {
                    assert_close(own, &other, "heads");
                }
            }
            for blocks in [1, 2, 40] {
                let group = heads.group();
                let count = rows as i64 * blocks;
                // Every row has keys in its first block.
                let used: Vec<i32> = (0..count)
                    .map(|i| if i % blocks == 0 { 5 } else { (i % 3) as i32 })
                    .collect();
                let used = Tensor::from_slice(&used).to_device(device);
                let parts = Parts {
                    answers: &random(&[count * group, keys, dim], 4),
                    lse: &random(&[keys, count * group], 5).to_kind(Kind::Float),
                    used: &used,
                    blocks,
                    heads,
                };
                assert_close(&ours.merge(&parts).unwrap(), &theirs.merge(&parts).unwrap(), "merge");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn our_kernels_give_what_the_operators_do() {
    let (ours, theirs) = (draws_in_graphs::<true>(), draws_in_graphs::<false>());
    let (mut all, mut alike) = (0, 0);
    for ((ours, drawn), (theirs, wanted)) in ours.iter().zip(&theirs) {
        assert_eq!(ours.len(), theirs.len());
        assert_eq!(drawn.drawn.len(), wanted.drawn.len());
        let scale = theirs.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let error = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 0.02 * scale, "{error} of {scale}");
        let same = drawn
            .drawn
            .iter()
            .flatten()
            .zip(wanted.drawn.iter().flatten())
            .filter(|(a, b)| a.token == b.token);
        (all, alike) = (all + wanted.drawn.len(), alike + same.clone().count());
        assert!(
            same.into_iter()
                .all(|(a, b)| (a.logprob - b.logprob).abs() < 0.02 * scale)
        );
    }
    // Rounding may decide a draw, but few of them.
    assert!(all > 0 && alike * 10 >= 9 * all, "{alike} of {all}");
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn what_is_drawn_in_a_graph_is_what_its_logits_say() {
    for (logits, output) in draws_in_graphs::<true>() {
        for (row, drawn) in output.drawn.iter().enumerate() {
            let drawn = drawn.unwrap();
            let logits = Tensor::from_slice(&logits)
                .view([output.drawn.len() as i64, -1])
                .get(row as i64);
            match row % 3 {
                1 => assert_eq!(i64::from(drawn.token), logits.argmax(-1, false).int64_value(&[])),
                of_three => {
                    let tempered = (logits / [1.0, 0.0, 0.7][of_three]).log_softmax(-1, Kind::Double);
                    let logprob = tempered.double_value(&[i64::from(drawn.token)]);
                    assert!((f64::from(drawn.logprob) - logprob).abs() < 1e-4);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn what_changes_beneath_a_graph_is_what_it_draws_from() {
    for tied in [true, false] {
        let shape = DecoderShape {
            tied,
            qk_norm: true,
            qkv_bias: true,
            ..sizes()
        };
        // A prompt, then its next token twice: the graph is made and replayed.
        let rows = |runner: &mut Gpu<true>| {
            let mut pass = |ids: &[u32], before: usize| {
                let chunks = vec![chunk(ids, before, &[0, 1], vec![draw(1, 0)])];
                runner.forward(&ForwardBatch { chunks }).unwrap();
                runner.rows()
            };
            pass(&tokens(1, 20), 0);
            [pass(&[3], 20), pass(&[4], 21)]
        };
        let weights = random_weights(&shape);
        let (changed, changes) = changed_here_and_there(&weights);
        let mut whole: Gpu<true> = loaded(&shape, 8, 1);
        load(&mut whole, &changed).unwrap();
        let mut runner: Gpu<true> = loaded(&shape, 8, 1);
        let before = rows(&mut runner);
        assert!(runner.0.fused.is_some() && runner.0.decode.as_ref().unwrap().has_graphs());
        runner.change(&changes).unwrap();
        let after = rows(&mut runner);
        assert_eq!(after, rows(&mut whole));
        assert_ne!(after, before);
    }
}

mod float32 {
    crate::engine::conformance::conforms!(#[ignore = "needs a GPU: make test-gpu"] super::Gpu<true>);
}

macro_rules! in_bfloat16 {
    ($make:ty) => {
        use super::*;

        #[test]
        #[ignore = "needs a GPU: make test-gpu"]
        fn all_shapes_agree_with_the_reference() {
            agrees_with_the_reference::<$make>();
        }

        #[test]
        #[ignore = "needs a GPU: make test-gpu"]
        fn a_sequence_without_a_distribution_spoils_none() {
            check_that_no_distribution_spoils_none::<Made<$make>>(sizes());
        }

        proptest! {
            #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]

            #[test]
            #[ignore = "needs a GPU: make test-gpu"]
            fn rows_are_the_same_in_any_batch_chunking_order_and_placement(run in runs()) {
                let shape = DecoderShape { qkv_bias: true, qk_norm: true, ..sizes() };
                check_any_batch_is_the_same::<Made<$make>>(&shape, &run)?;
            }
        }
    };
}

mod bfloat16_by_operators {
    in_bfloat16!(OnGpu<false>);
}

mod bfloat16_by_our_kernels {
    in_bfloat16!(OnGpu<true>);
}

/// All tests of this crate that need a GPU, in a process of their own, as it finds its GPU when it starts.
#[test]
fn on_a_simulated_gpu_these_hold() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/simulated_gpu/build.py");
    let built = Command::new(script).output().unwrap();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(built.status.success(), "{}", words(&built.stderr));
    let folder = words(&built.stdout);
    let folder = Path::new(folder.trim());
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--test-threads=1"])
        // What it computes is small, and the other tests want the processors.
        .env("OMP_NUM_THREADS", "1")
        .env(
            "LD_LIBRARY_PATH",
            std::env::join_paths([folder, &folder.join("graphs")]).unwrap(),
        )
        .output()
        .unwrap();
    let said = words(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", words(&done.stderr));
    assert!(said.contains("our_kernels_give_what_the_operators_do ... ok"), "{said}");
}
