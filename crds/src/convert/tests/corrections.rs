//! What samples weigh that another policy drew.

use super::*;
use crate::spec::CorrectionLevel::{Geometric, Sequence, Token};
use crate::spec::Outside::{Mask, Truncate};
use crate::spec::{CorrectionLevel, Outside};

type Scheme = (CorrectionLevel, Outside, f64, f64);

/// The short field, the block, and which settings something is said of.
fn of(framework: Framework, command: &str) -> (Option<f64>, Option<Scheme>, Vec<String>) {
    let conversion = converted(framework, command);
    let algorithm = &conversion.job.spec.algorithm;
    let block = algorithm.rollout_correction;
    let said = conversion.notes.iter().map(|note| note.subject.clone());
    (
        algorithm.truncated_importance_sampling,
        block.map(|block| (block.level, block.outside, block.low, block.high)),
        said.filter(|subject| subject.contains("correction") || subject == "TRL's default")
            .collect(),
    )
}

#[test]
fn openrlhfs_types_and_levels_are_taken() {
    let of = |flags: &str| {
        let flags = flags.replace('@', "--algo.advantage.is_correction");
        let (short, block, said) = of(Framework::Openrlhf, &format!("--actor.model_name_or_path a/b {flags}"));
        (short, block, said.len())
    };
    assert_eq!(of("@_level off"), (None, None, 0));
    for (flags, short, block) in [
        ("@_enable", None, Some((Token, Truncate, 0.5, 5.0))),
        ("@_enable @_threshold 0 2", Some(2.0), None),
        ("@_enable @_type icepop", None, Some((Token, Mask, 0.5, 5.0))),
        ("@_enable --use_icepop", None, Some((Token, Mask, 0.5, 5.0))),
        (
            "@_enable @_type seq-mask-tis @_threshold 0.9 1.1",
            None,
            Some((Geometric, Mask, 0.9, 1.1)),
        ),
        ("@_level token @_mode clip", None, Some((Token, Truncate, 0.5, 5.0))),
        ("@_level token @_mode clip @_threshold 3", Some(3.0), None),
        ("@_level token", None, Some((Token, Mask, 0.5, 5.0))),
        ("@_level seq @_threshold 0.5 2", None, Some((Geometric, Mask, 0.5, 2.0))),
    ] {
        assert_eq!(of(flags), (short, block, 0), "{flags}");
    }
    let gated = of("@_level seq @_gating binary_kl @_threshold 3e-3");
    assert_eq!(gated, (Some(2.0), None, 1));
    // Up to 0.9.0 there is an upper bound alone, 2 by default.
    let old = |flags: &str| {
        let conversion = converted(
            Framework::Openrlhf,
            &format!("--pretrain a/b --enable_vllm_is_correction {flags}"),
        );
        let mut notes = conversion.notes.iter();
        let is_said = notes.any(|note| note.subject == "vllm_is_truncated_threshold");
        (conversion.job.spec.algorithm.truncated_importance_sampling, is_said)
    };
    assert_eq!(old("--vllm_is_truncated_threshold 2"), (Some(2.0), false));
    assert_eq!(old(""), (None, true));
    assert_eq!(old("--use_icepop"), (None, false));
}

#[test]
fn verls_weights_are_taken_and_what_it_leaves_out_by_a_ratio() {
    let of = |settings: &str| {
        let settings = settings.replace('@', "algorithm.rollout_correction.rollout_");
        of(Framework::Verl, &format!("actor_rollout_ref.model.path=/m {settings}"))
    };
    for (settings, short, block) in [
        ("@is=token @is_threshold=4.0", Some(4.0), None),
        ("@is=token @is_threshold=0.5_4.0", None, Some((Token, Mask, 0.5, 4.0))),
        ("@is=sequence", None, Some((Sequence, Truncate, 0.0, 2.0))),
        ("@is=null", None, None),
    ] {
        assert_eq!(of(settings), (short, block, vec![]), "{settings}");
    }
    for (settings, block) in [
        ("@rs=seq_mean_k1 @rs_threshold=0.5_4", (Geometric, Mask, 0.25, 2.0)),
        ("@is=token @rs=token_k1 @rs_threshold=2", (Token, Mask, 0.5, 2.0)),
        (
            "@rs=geometric @rs_threshold=2 @rs_threshold_lower=0.25",
            (Geometric, Mask, 0.25, 2.0),
        ),
        ("@rs=sequence", (Sequence, Mask, 0.5, 2.0)),
    ] {
        let (short, found, said) = of(settings);
        assert_eq!((short, found), (None, Some(block)), "{settings}");
        assert_eq!(said, ["algorithm.rollout_correction.rollout_rs"], "{settings}");
    }
    let (short, block, said) = of("@is=token @rs=seq_mean_k3 @rs_threshold=0.01");
    assert_eq!((short, block, said.len()), (Some(2.0), None, 1));
    let wrong = "actor_rollout_ref.model.path=/m algorithm.rollout_correction.rollout_is=token \
                 algorithm.rollout_correction.rollout_is_threshold=0.5_";
    let error = convert(Framework::Verl, wrong, &nothing).unwrap_err().to_string();
    assert!(error.contains("wants a number or LOW_HIGH"), "{error}");
}

#[test]
fn trls_modes_are_taken_and_the_bounds_newer_names_are_of_its_newer_default() {
    let of = |flags: &str| {
        let flags = flags.replace('@', "--vllm_importance_sampling_");
        let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm --use_vllm";
        let (short, block, _) = of(Framework::Trl, &format!("{trl} {flags}"));
        (short, block)
    };
    for (flags, short, block) in [
        ("", Some(2.0), None),
        ("@cap 4", Some(4.0), None),
        ("@mode token_truncate", Some(3.0), None),
        (
            "@mode token_truncate @clip_min 0.5",
            None,
            Some((Token, Truncate, 0.5, 3.0)),
        ),
        ("@mode token_mask @cap 4", None, Some((Token, Mask, 0.0, 4.0))),
        ("@mode sequence_truncate", None, Some((Sequence, Truncate, 0.0, 3.0))),
        (
            "@mode sequence_mask @clip_max 2",
            None,
            Some((Sequence, Mask, 0.0, 2.0)),
        ),
        ("@clip_max 2", None, Some((Sequence, Mask, 0.0, 2.0))),
        (
            "@clip_min 0.5 @clip_max None",
            None,
            Some((Sequence, Mask, 0.5, 1000.0)),
        ),
        ("--no_vllm_importance_sampling_correction", None, None),
    ] {
        assert_eq!(of(flags), (short, block), "{flags}");
    }
}
