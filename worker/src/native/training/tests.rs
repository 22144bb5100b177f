//! The kernels beside libtorch's operators, which compute on GPUs: the same values and gradients.

use serde_json::json;
use tch::{Device, Kind};

use super::*;
use crate::model::{Decoder, ModelConfig, Targets, TokenBatch, Weights, token_logprobs};
use crate::native::optimizer::set_grad;
use crate::native::random;

/// How far two ways to round may be apart, of the greatest number of a tensor.
fn tolerance(kind: Kind) -> f64 {
    match kind {
        Kind::Float => 1e-5,
        // Eight bits of mantissa, rounded once or twice more.
        _ => 0.015,
    }
}

fn normal(dims: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(dims, (Kind::Float, Device::Cpu)).to_kind(kind)
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    let most = wide(b).abs().max().double_value(&[]);
    (wide(a) - wide(b)).abs().max().double_value(&[]) / most.max(1e-30)
}

/// Outputs and the gradients of `inputs` under fixed gradients of the outputs: libtorch has one random stream for all tests that run.
fn outcome(inputs: &[Tensor], compute: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
    let leaves: Vec<Tensor> = inputs
        .iter()
        .map(|input| input.detach().copy().set_requires_grad(true))
        .collect();
    let outputs = compute(&leaves);
    let loss = outputs.iter().map(|output| {
        let places = Tensor::arange(output.numel() as i64, (Kind::Float, Device::Cpu));
        let direction = (places * 0.7)
            .sin()
            .view(output.size().as_slice())
            .to_device(output.device());
        (output.to_kind(Kind::Float) * direction).sum(Kind::Float)
    });
    loss.reduce(|sum, next| sum + next).unwrap().backward();
    let gradients = leaves.iter().map(Tensor::grad);
    outputs.iter().map(Tensor::detach).chain(gradients).collect()
}

fn compare(what: &str, shapes: &[&[i64]], compute: impl Fn(&[Tensor]) -> Vec<Tensor>) {
    for kind in [Kind::Float, Kind::BFloat16] {
        let inputs: Vec<Tensor> = random::seeded(7, || shapes.iter().map(|dims| normal(dims, kind)).collect());
        let kernels = outcome(&inputs, &compute);
        let stock = without_kernels(|| outcome(&inputs, &compute));
        check_near(what, &kernels, &stock, tolerance(kind));
    }
}

fn check_near(what: &str, kernels: &[Tensor], stock: &[Tensor], tolerance: f64) {
    for (number, (ours, theirs)) in kernels.iter().zip(stock).enumerate() {
        let kind = ours.kind();
        assert_eq!((kind, ours.size()), (theirs.kind(), theirs.size()), "{what} {number}");
        let far = distance(ours, theirs);
        assert!(far < tolerance, "{what}, {kind:?}, tensor {number}: {far}");
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn a_gpu_gives_what_the_kernels_give() {
    let gpu = crate::device::here().unwrap();
    let check = |what: &str, shapes: &[&[i64]], compute: &dyn Fn(&[Tensor]) -> Vec<Tensor>| {
        for kind in [Kind::Float, Kind::BFloat16] {
            let inputs: Vec<Tensor> = random::seeded(7, || shapes.iter().map(|dims| normal(dims, kind)).collect());
            let there: Vec<Tensor> = inputs.iter().map(|input| input.to_device(gpu)).collect();
            let there = outcome(&there, compute);
            let there: Vec<Tensor> = there.iter().map(|tensor| tensor.to_device(Device::Cpu)).collect();
            check_near(what, &outcome(&inputs, compute), &there, 3.0 * tolerance(kind));
        }
    };
    check("a norm of heads", &[&[9, 3, 16], &[16]], &|it| {
        vec![rms_norm(&it[0], &it[1], 1e-6).unwrap()]
    });
    check("a gate", &[&[17, 40], &[17, 40]], &|it| {
        vec![gate(&it[0], &it[1]).unwrap()]
    });
    let angles = Tensor::arange(13 * 8, (Kind::Float, Device::Cpu)).view([13, 8]) * 0.1;
    check("a rotation", &[&[13, 3, 16]], &|it| {
        let angles = angles.to_device(it[0].device());
        vec![rotate(&it[0], &angles.cos(), &angles.sin()).unwrap()]
    });
    let (lengths, boundaries) = ([5i64, 1, 17, 40], Tensor::from_slice(&[0i32, 5, 6, 23, 63]));
    let shapes: [&[i64]; 3] = [&[64, 6, 24], &[64, 2, 24], &[64, 2, 24]];
    check("attention", &shapes, &|it| {
        let boundaries = boundaries.to_device(it[0].device());
        vec![attention(&it[0], &it[1], &it[2], &lengths, &boundaries).unwrap()]
    });
    let targets = random::seeded(9, || Tensor::randint(1500, [800], (Kind::Int64, Device::Cpu)));
    for (temperature, kept_bytes, wants_entropy) in [
        (0.7, 0, true),
        (0.7, 1 << 30, false),
        (1.0, 1 << 30, true),
        (1.0, 0, false),
    ] {
        check("log-probabilities", &[&[800, 24], &[1500, 24]], &|it| {
            let (scaled, targets) = (&it[0] * 0.3, targets.to_device(it[0].device()));
            let all = super::token_logprobs(&scaled, &it[1], &targets, temperature, kept_bytes, wants_entropy);
            let (logprobs, entropy) = all.unwrap();
            match wants_entropy {
                true => vec![logprobs, entropy],
                false => vec![logprobs],
            }
        });
    }
}

#[test]
fn norms_rotations_and_gates_are_the_same() {
    compare("a norm", &[&[37, 48], &[48]], |it| {
        vec![rms_norm(&it[0], &it[1], 1e-5).unwrap()]
    });
    compare("a norm of heads", &[&[9, 3, 16], &[16]], |it| {
        vec![rms_norm(&it[0], &it[1], 1e-6).unwrap()]
    });
    let angles = Tensor::arange(13 * 8, (Kind::Float, Device::Cpu)).view([13, 8]) * 0.1;
    let (cosine, sine) = (angles.cos(), angles.sin());
    compare("a rotation", &[&[13, 3, 16]], |it| {
        vec![rotate(&it[0], &cosine, &sine).unwrap()]
    });
    let heads = random::seeded(5, || normal(&[13, 3, 16], Kind::BFloat16));
    let both = Tensor::stack(&[-&sine, sine.shallow_clone()], 1);
    let of = |sine: &Tensor| without_kernels(|| rotate(&heads, &cosine, sine).unwrap());
    assert!(of(&both).equal(&of(&sine)));
    compare("a gate", &[&[17, 40], &[17, 40]], |it| {
        vec![gate(&it[0], &it[1]).unwrap()]
    });
}

#[test]
fn rows_of_a_table_are_the_same_and_so_is_its_gradient_where_ids_repeat() {
    let ids = Tensor::from_slice(&[3i64, 0, 3, 3, 6]);
    compare("rows", &[&[7, 20]], |it| vec![embed(&it[0], &ids).unwrap()]);
    for kind in [Kind::Float, Kind::BFloat16] {
        let gathered = |compute: &dyn Fn(&Tensor) -> Tensor| {
            let table = Tensor::ones([7, 20], (kind, Device::Cpu)).set_requires_grad(true);
            let gradient = Tensor::ones([7, 20], (Kind::Float, Device::Cpu));
            set_grad(&table, &gradient).unwrap();
            compute(&table).sum(Kind::Float).backward();
            gradient
        };
        let compute = |table: &Tensor| embed(table, &ids).unwrap();
        let (ours, theirs) = (gathered(&compute), without_kernels(|| gathered(&compute)));
        assert!(ours.equal(&theirs) && ours.double_value(&[3, 0]) == 4.0, "{kind:?}");
    }
}

#[test]
fn a_token_that_occurs_a_thousand_times_has_its_whole_gradient_in_bfloat16() {
    let ids = Tensor::zeros([1000], (Kind::Int64, Device::Cpu));
    let gathered = || {
        let table = Tensor::ones([3, 20], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
        embed(&table, &ids).unwrap().sum(Kind::Float).backward();
        table.grad().double_value(&[0, 0])
    };
    // One by one in bfloat16 it would stop at 256.
    assert_eq!((gathered(), without_kernels(gathered)), (1000.0, 1000.0));
}

#[test]
fn attention_of_packed_sequences_is_the_same_and_rows_after_them_are_zero() {
    let lengths = [5i64, 1, 17, 40];
    let boundaries = Tensor::from_slice(&[0i32, 5, 6, 23, 63]);
    // One row more than there are tokens.
    let shapes: [&[i64]; 3] = [&[64, 6, 20], &[64, 2, 20], &[64, 2, 20]];
    compare("attention", &shapes, |it| {
        let mixed = attention(&it[0], &it[1], &it[2], &lengths, &boundaries).unwrap();
        assert_eq!(mixed.get(63).abs().max().double_value(&[]), 0.0);
        vec![mixed]
    });
}

#[test]
fn log_probabilities_and_entropies_are_the_same_over_several_slices() {
    // 1500 columns: both ways cut them.
    let targets = random::seeded(9, || Tensor::randint(1500, [800], (Kind::Int64, Device::Cpu)));
    for kept_bytes in [0, 1 << 30] {
        compare("log-probabilities", &[&[800, 24], &[1500, 24]], |it| {
            let scaled = &it[0] * 0.3;
            let (logprobs, entropy) = super::token_logprobs(&scaled, &it[1], &targets, 0.7, kept_bytes, true).unwrap();
            vec![logprobs, entropy]
        });
        // Those of which nobody learns the entropy, and those of temperature 1, take shorter ways.
        for (temperature, wants_entropy) in [(0.7, false), (1.0, true), (1.0, false)] {
            compare("log-probabilities alone", &[&[800, 24], &[1500, 24]], |it| {
                let scaled = &it[0] * 0.3;
                let all = super::token_logprobs(&scaled, &it[1], &targets, temperature, kept_bytes, wants_entropy);
                vec![all.unwrap().0]
            });
        }
    }
}

#[test]
fn logits_of_a_bfloat16_model_are_not_rounded_to_bfloat16() {
    let (hidden, weight, targets) = random::seeded(13, || {
        let normal = |dims: &[i64]| normal(dims, Kind::BFloat16);
        let targets = Tensor::randint(1500, [64], (Kind::Int64, Device::Cpu));
        (normal(&[64, 24]), normal(&[1500, 24]), targets)
    });
    let wide = |tensor: &Tensor| tensor.to_kind(Kind::Float);
    let (expected, _) = super::token_logprobs(&wide(&hidden), &wide(&weight), &targets, 1.0, 0, false).unwrap();
    let ours = || {
        super::token_logprobs(&hidden, &weight, &targets, 1.0, 0, false)
            .unwrap()
            .0
    };
    for logprobs in [ours(), without_kernels(ours)] {
        let far = distance(&logprobs, &expected);
        assert!(far < 1e-5, "{far}");
    }
}

#[test]
fn a_head_of_one_number_over_bfloat16_answers_in_float32_and_learns_in_bfloat16() {
    let inputs: Vec<Tensor> = random::seeded(17, || {
        [&[60, 24][..], &[1, 24], &[1]]
            .map(|dims| normal(dims, Kind::BFloat16))
            .into()
    });
    let compute = |it: &[Tensor]| vec![wide_linear(&it[0], &it[1], Some(&it[2])).unwrap()];
    let wide: Vec<Tensor> = inputs.iter().map(|input| input.to_kind(Kind::Float)).collect();
    let (ours, expected) = (outcome(&inputs, compute), outcome(&wide, compute));
    assert_eq!(ours[0].kind(), Kind::Float);
    assert!(
        distance(&ours[0], &expected[0]) < 1e-6,
        "{}",
        distance(&ours[0], &expected[0])
    );
    for (ours, expected) in ours.iter().zip(&expected).skip(1) {
        assert_eq!(ours.kind(), Kind::BFloat16);
        let far = distance(ours, expected);
        assert!(far < tolerance(Kind::BFloat16), "{:?}: {far}", ours.size());
    }
}

#[test]
fn an_adapter_is_merged_the_same() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let (weight, a, b) = random::seeded(5, || {
            let float = |dims: &[i64]| normal(dims, Kind::Float);
            (normal(&[48, 32], kind), float(&[4, 32]), float(&[48, 4]))
        });
        let before = weight.copy();
        let ours = merge(&weight, &a, &b, 0.5).unwrap();
        let theirs = without_kernels(|| merge(&weight, &a, &b, 0.5).unwrap());
        assert!(weight.equal(&before), "{kind:?}: the frozen weight changed");
        assert!(
            ours.kind() == kind && distance(&ours, &theirs) < tolerance(kind),
            "{kind:?}"
        );
    }
}

fn config() -> ModelConfig {
    let raw = json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "num_hidden_layers": 3, "intermediate_size": 64, "vocab_size": 96, "initializer_range": 0.1,
        "tie_word_embeddings": true
    });
    ModelConfig::from_json(raw.as_object().unwrap().clone()).unwrap()
}

/// Every other hidden state of a batch.
type Half = fn(&Decoder, &TokenBatch, &Tensor) -> Tensor;

/// All are computed, half are taken.
const TAKEN: Half = |decoder, batch, rows| decoder.hidden(batch).unwrap().index_select(0, rows);

/// Half are asked for.
const ASKED: Half = |decoder, batch, rows| decoder.hidden_of(batch, rows).unwrap();

/// Log-probabilities of half of the tokens and the gradients of all parameters, which gather in float32 as an update's do.
fn learnt(weights: &Weights, checkpointing: bool, half: Half) -> Vec<Tensor> {
    let config = config();
    let weights = weights.deep_clone().unwrap();
    weights.require_gradients().unwrap();
    let gradients: Vec<Tensor> = weights
        .0
        .values()
        .map(|tensor| {
            let gradient = Tensor::zeros(tensor.size(), (Kind::Float, Device::Cpu));
            set_grad(tensor, &gradient).unwrap();
            gradient
        })
        .collect();
    let mut decoder = Decoder::new(&config, &weights).unwrap();
    decoder.set_activation_checkpointing(checkpointing);
    let sequences: Vec<Vec<u32>> = [7u32, 1, 30]
        .iter()
        .map(|length| (0..*length).map(|place| (place * 37 + length) % 96).collect())
        .collect();
    let batch = TokenBatch::new(&sequences).unwrap();
    let rows = Tensor::arange_start_step(1, 38, 2, (Kind::Int64, Device::Cpu));
    let targets = batch.ids.index_select(0, &(&rows - 1));
    let hidden = half(&decoder, &batch, &rows);
    let logprobs = token_logprobs(&decoder, &hidden, Targets::of(&targets).unwrap(), 1.0, None)
        .unwrap()
        .logprobs;
    (-logprobs.mean(Kind::Float)).backward();
    std::iter::once(logprobs.detach()).chain(gradients).collect()
}

#[test]
fn a_decoder_learns_the_same() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let weights = Weights::random(&config(), kind, 3).unwrap();
        let kernels = learnt(&weights, false, TAKEN);
        for checkpointing in [false, true] {
            let stock = without_kernels(|| learnt(&weights, checkpointing, TAKEN));
            for (number, (ours, theirs)) in kernels.iter().zip(&stock).enumerate() {
                let (far, near) = (distance(ours, theirs), tolerance(kind) * 4.0);
                assert!(
                    far < near,
                    "{kind:?}, checkpointing {checkpointing}, tensor {number}: {far}"
                );
            }
        }
    }
}

#[test]
fn tokens_that_nobody_asks_for_change_neither_the_others_nor_what_is_learnt() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let weights = Weights::random(&config(), kind, 3).unwrap();
        let all = learnt(&weights, false, TAKEN);
        for checkpointing in [false, true] {
            let half = learnt(&weights, checkpointing, ASKED);
            for (number, (half, all)) in half.iter().zip(&all).enumerate() {
                let (far, near) = (distance(half, all), tolerance(kind));
                assert!(
                    far < near,
                    "{kind:?}, checkpointing {checkpointing}, tensor {number}: {far}"
                );
            }
        }
    }
}

#[test]
fn gradients_of_a_bfloat16_weight_are_added_in_float32_however_many_rows_there_are() {
    // Sizes that fill neither a vector nor a tile, of fewer rows and of more than are multiplied at once.
    for rows in [1, 37, 1100, 2500] {
        let (input, weight, direction) = random::seeded(11, || {
            let normal = |dims: &[i64]| normal(dims, Kind::BFloat16);
            (normal(&[rows, 70]), normal(&[50, 70]), normal(&[rows, 50]))
        });
        let weight = weight.set_requires_grad(true);
        let gradient = Tensor::ones([50, 70], (Kind::Float, Device::Cpu));
        set_grad(&weight, &gradient).unwrap();
        for _ in 0..2 {
            let [output] = linears(Front::Rows(&input), [&weight], None).unwrap();
            (output.to_kind(Kind::Float) * direction.to_kind(Kind::Float))
                .sum(Kind::Float)
                .backward();
        }
        let wide = |tensor: &Tensor| tensor.to_kind(Kind::Double);
        let expected = wide(&direction).tr().matmul(&wide(&input)) * 2.0 + 1.0;
        let far = distance(&gradient, &expected);
        assert!(far < tolerance(Kind::BFloat16), "{rows} rows: {far}");
    }
}

#[test]
fn products_are_as_exact_as_what_they_are_of_whatever_their_shape() {
    // Whole tiles, and sizes that fill none; rows that are read where they lie, and such as lie too far apart for it; more than is summed at
    // once, of rows, inputs and outputs.
    let shapes = [
        (64, 64, 64),
        (37, 70, 50),
        (45, 576, 80),
        (100, 576, 50),
        (40, 1024, 48),
        (33, 5000, 40),
        (3000, 40, 33),
        (40, 33, 5000),
    ];
    for (kind, near) in [(Kind::Float, 2e-6), (Kind::BFloat16, tolerance(Kind::BFloat16))] {
        for (rows, inputs, outputs) in shapes {
            let given = random::seeded(13, || {
                [&[rows, inputs], &[outputs, inputs]].map(|dims| normal(dims, kind))
            });
            let product = |it: &[Tensor]| {
                let [output] = linears(Front::Rows(&it[0]), [&it[1]], None).unwrap();
                vec![output]
            };
            let exact = outcome(&given.each_ref().map(|it| it.to_kind(Kind::Double)), product);
            for (number, (ours, exact)) in outcome(&given, product).iter().zip(&exact).enumerate() {
                let far = distance(ours, exact);
                assert!(
                    far < near,
                    "{kind:?}, {rows} x {inputs} x {outputs}, tensor {number}: {far}"
                );
            }
        }
    }
}

#[test]
fn products_of_one_input_with_several_weights_are_those_with_each_alone_to_the_bit() {
    for kind in [Kind::Float, Kind::BFloat16] {
        // Of the last shape's bfloat16 sums go back to memory more than once.
        for (rows, inputs) in [(45, 96), (700, 96), (40, 2500)] {
            let given = random::seeded(17, || [rows, 40, 100, 33].map(|count| normal(&[count, inputs], kind)));
            let together = outcome(&given, |it| {
                linears(Front::Rows(&it[0]), [&it[1], &it[2], &it[3]], None)
                    .unwrap()
                    .into()
            });
            for weight in 1..=3 {
                let alone = outcome(&[&given[0], &given[weight]].map(Tensor::shallow_clone), |it| {
                    linears(Front::Rows(&it[0]), [&it[1]], None).unwrap().into()
                });
                let what = format!("{kind:?}, {rows} x {inputs}, weight {weight}");
                assert_eq!(together[weight - 1], alone[0], "{what}: output");
                assert_eq!(together[3 + weight], alone[2], "{what}: gradient");
            }
        }
    }
}
