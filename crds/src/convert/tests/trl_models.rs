//! What TRL's scripts train where the flags do not say, and how many samples they learn from.

use super::*;

fn says(conversion: &Conversion, subject: &str, words: &str) -> bool {
    let is = |note: &Note| note.subject == subject && note.message.contains(words);
    conversion.notes.iter().any(is)
}

#[test]
fn the_model_that_trls_ppo_trains_by_default_is_named() {
    let of = |flags: &str| converted(Framework::Trl, &format!("ppo.py --dataset_name /d.jsonl {flags}"));
    let pythia = "EleutherAI/pythia-160m, of the family GPT-NeoX";
    let none = of("");
    assert_eq!(none.job.spec.model.policy.path.as_deref(), Some("/models/policy"));
    assert!(says(&none, "spec.model.policy", pythia), "{:?}", none.notes);
    assert!(
        says(&none, "TRL's default", &format!("reward_model_path is {pythia}")),
        "{:?}",
        none.notes
    );
    let tokenizer = of("--model_name_or_path org/base --reward_model_path org/rm");
    assert_eq!(tokenizer.job.spec.model.policy.hub.as_ref().unwrap().id, "org/base");
    assert!(says(&tokenizer, "model_name_or_path", pythia), "{:?}", tokenizer.notes);
    let named = of("--model_name_or_path org/base --sft_model_path /models/sft --reward_model_path org/rm");
    assert_eq!(named.job.spec.model.policy.path.as_deref(), Some("/models/sft"));
    assert!(
        !named.notes.iter().any(|note| note.message.contains("pythia")),
        "{:?}",
        named.notes
    );
}

#[test]
fn samples_that_are_no_whole_groups_are_refused_as_trl_does() {
    let of = |flags: &str| {
        let command = format!("trl grpo --model_name_or_path /m --dataset_name /d.jsonl --num_generations 16 {flags}");
        convert(Framework::Trl, &command, &nothing)
    };
    for flags in ["", "--per_device_train_batch_size 24", "--generation_batch_size 40"] {
        let error = of(flags).unwrap_err().to_string();
        assert!(
            error.starts_with("num_generations: 16 does not divide the"),
            "{flags}: {error}"
        );
    }
    assert!(of("--per_device_train_batch_size 24 --num_processes 2").is_ok());
}
