//! Rules of adapters.

use super::*;
use crate::spec::{AdapterSpec, DType, Projection, Role};
use crate::{Geometry, resolve};

fn adapted(adapter: AdapterSpec) -> PpoJob {
    let mut job = job("", RULE);
    job.spec.model.adapter = Some(adapter);
    job
}

#[test]
fn an_adapter_has_a_rank_a_scale_and_each_target_once() {
    let default = AdapterSpec::default;
    assert!(problems(&adapted(default())).is_empty());
    let refused = [
        (
            AdapterSpec { rank: 0, ..default() },
            "spec.model.adapter.rank: 0 is out of range; it must be 1 to 1024",
        ),
        (
            AdapterSpec {
                rank: 1025,
                ..default()
            },
            "spec.model.adapter.rank: 1025 is out of range",
        ),
        (
            AdapterSpec {
                alpha: 0.0,
                ..default()
            },
            "spec.model.adapter.alpha: 0.0 is out of range; it must be above 0",
        ),
        (
            AdapterSpec {
                alpha: f64::NAN,
                ..default()
            },
            "spec.model.adapter.alpha: is not a finite number",
        ),
        (
            AdapterSpec {
                targets: Vec::new(),
                ..default()
            },
            "spec.model.adapter.targets: is empty",
        ),
        (
            AdapterSpec {
                targets: [Projection::Query, Projection::Up, Projection::Query].into(),
                ..default()
            },
            "spec.model.adapter.targets[2]: q_proj is named twice",
        ),
    ];
    for (adapter, expected) in refused {
        let problems = problems(&adapted(adapter));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].to_string().contains(expected),
            "{expected}: {}",
            problems[0]
        );
    }
}

#[test]
fn the_reference_of_an_adapter_is_its_base_and_takes_no_pod() {
    let mut job = adapted(AdapterSpec::default());
    job.spec.algorithm.kl.coef = Some(0.1);
    assert_eq!(Geometry::of(&job).unwrap().role(Role::Reference).unwrap().pods, 0);
    let config = resolve(&job, &laptop()).unwrap();
    assert!(config.model.reference.is_none() && config.reference_is_base());
    assert_eq!(config.model.critic.as_ref(), Some(&config.model.policy));
    job.spec.algorithm.kl.coef = Some(0.0);
    assert!(!resolve(&job, &laptop()).unwrap().reference_is_base());
    job.spec.algorithm.kl.coef = Some(0.1);
    job.spec.model.reference = Some(job.spec.model.policy.clone());
    let problems = problems(&job);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .to_string()
            .starts_with("spec.model.reference: with an adapter"),
        "{}",
        problems[0]
    );
}

#[test]
fn a_run_without_an_adapter_is_written_as_it_was_before_there_were_any() {
    let config = serde_json::to_value(resolve(&job("", RULE), &laptop()).unwrap()).unwrap();
    assert!(config["model"].get("adapter").is_none(), "{config}");
}

#[test]
fn the_reference_of_an_adapter_has_the_actors_number_format_and_engines_may_have_another() {
    let of = |reference: Option<DType>| {
        let mut job = adapted(AdapterSpec::default());
        job.spec.model.dtype = DType::Float32;
        job.spec.roles.rollout.dtype = Some(DType::Bfloat16);
        job.spec.roles.reference.dtype = reference;
        job
    };
    assert!(problems(&of(None)).is_empty());
    assert!(problems(&of(Some(DType::Float32))).is_empty());
    let problems = problems(&of(Some(DType::Bfloat16)));
    assert_eq!(problems.len(), 1, "{problems:?}");
    let words = problems[0].to_string();
    assert!(
        words.starts_with("spec.roles.reference.dtype: is bfloat16; with an adapter")
            && words.contains("which are float32 (spec.model.dtype)"),
        "{words}"
    );
}
