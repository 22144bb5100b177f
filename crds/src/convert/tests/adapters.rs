//! Adapters whose framework has other names for them, or trains the critic otherwise.

use super::*;
use crate::spec::{AdapterSpec, Projection};

const VERL: &str = "actor_rollout_ref.model.path=/m algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4";

fn adapter_of(framework: Framework, flags: &str) -> (AdapterSpec, Conversion) {
    let conversion = converted(framework, flags);
    (conversion.job.spec.model.adapter.clone().unwrap(), conversion)
}

#[test]
fn verls_adapter_for_megatron_is_one_here() {
    let lora = "actor_rollout_ref.model.lora";
    let flags = format!("{VERL} {lora}.rank=256 {lora}.lora_A_init_method=kaiming {lora}.dropout=0.0");
    let (adapter, conversion) = adapter_of(Framework::Verl, &flags);
    assert_eq!((adapter.rank, adapter.alpha, adapter.targets.len()), (256, 32.0, 7));
    assert!(!conversion.notes.iter().any(|note| note.subject.ends_with(".dropout")));
    let named = format!("{flags} {lora}.alpha=512 {lora}.target_modules='[\"linear_qkv\",\"linear_fc2\",\"router\"]'");
    let (adapter, conversion) = adapter_of(Framework::Verl, &named);
    let targets: Vec<&str> = adapter.targets.iter().map(|target| target.name()).collect();
    assert_eq!(adapter.alpha, 512.0);
    assert_eq!(targets, ["q_proj", "k_proj", "v_proj", "down_proj"]);
    let router = |note: &Note| note.message.starts_with("router is not adapted");
    assert!(conversion.notes.iter().any(router), "{:?}", conversion.notes);
    let off = converted(Framework::Verl, &format!("{VERL} {lora}.rank=0 {lora}.alpha=32"));
    assert!(off.job.spec.model.adapter.is_none());
}

#[test]
fn a_critic_that_is_trained_whole_elsewhere_is_told_of() {
    let said = |framework, flags: &str| {
        let whole = |note: &Note| note.message.contains("trains all weights of the critic");
        converted(framework, flags).notes.iter().any(whole)
    };
    let verl = "actor_rollout_ref.model.path=/m actor_rollout_ref.model.lora_rank=8";
    assert!(said(Framework::Verl, verl));
    assert!(said(Framework::Verl, &format!("{verl} critic.model.lora_rank=0")));
    assert!(!said(Framework::Verl, &format!("{verl} critic.model.lora_rank=8")));
    assert!(!said(Framework::Verl, "actor_rollout_ref.model.path=/m"));
    let without = format!("{VERL} actor_rollout_ref.model.lora_rank=8");
    assert!(!said(Framework::Verl, &without));
    let trl = "--reward_model_path /rm --dataset_name /d.jsonl --use_peft";
    assert!(said(Framework::Trl, &format!("ppo.py --sft_model_path /m {trl}")));
    let openrlhf = "--pretrain a/b --reward_pretrain c/d --prompt_data /d.jsonl --lora_rank 8";
    assert!(!said(Framework::Openrlhf, openrlhf));
}

#[test]
fn adapters_have_the_rank_the_scale_and_the_targets_of_each_framework() {
    let openrlhf =
        "--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl --ref_num_gpus_per_node 8 --lora_rank 8";
    let (adapter, conversion) = adapter_of(Framework::Openrlhf, openrlhf);
    assert_eq!((adapter.rank, adapter.alpha, adapter.targets.len()), (8, 16.0, 7));
    let geometry = Geometry::of(&conversion.job).unwrap();
    assert_eq!(geometry.role(crate::spec::Role::Reference).unwrap().pods, 0);
    let named = format!("{openrlhf} --lora_alpha 64 --lora_dropout 0.1 --target_modules q_proj lm_head v_proj");
    let (adapter, conversion) = adapter_of(Framework::Openrlhf, &named);
    assert_eq!(
        (adapter.alpha, adapter.targets),
        (64.0, vec![Projection::Query, Projection::Value])
    );
    let said = |subject: &str| conversion.notes.iter().any(|note| note.subject.contains(subject));
    assert!(said("target_modules") && said("lora_dropout"), "{:?}", conversion.notes);

    let verl = "actor_rollout_ref.model.path=/m actor_rollout_ref.model.lora_rank=32 algorithm.use_kl_in_reward=True \
                actor_rollout_ref.model.target_modules=all-linear critic.model.lora_rank=32";
    let (adapter, conversion) = adapter_of(Framework::Verl, verl);
    assert_eq!((adapter.rank, adapter.alpha, adapter.targets.len()), (32, 16.0, 7));
    assert!(!conversion.manifest.contains("reference:"), "{}", conversion.manifest);

    let trl = "ppo.py --sft_model_path /m --reward_model_path /rm --dataset_name /d.jsonl --use_peft";
    let (adapter, conversion) = adapter_of(Framework::Trl, trl);
    assert_eq!((adapter.rank, adapter.alpha), (16, 32.0));
    assert_eq!(adapter.targets, [Projection::Query, Projection::Value]);
    assert!(
        conversion.manifest.contains("lora_dropout is 0.05"),
        "{}",
        conversion.manifest
    );
    let without = converted(Framework::Trl, &trl.replace("--use_peft", "--lora_r 8"));
    assert!(without.job.spec.model.adapter.is_none());
}
