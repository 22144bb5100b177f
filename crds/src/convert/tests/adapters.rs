//! Adapters whose framework has other names for them, or trains the critic otherwise.

use super::*;

const VERL: &str = "actor_rollout_ref.model.path=/m algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4";

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
