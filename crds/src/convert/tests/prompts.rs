//! What of a framework's prompts and templates has a place here.

use super::*;

#[test]
fn verls_variables_of_the_chat_template_are_variables_here() {
    let conversion = converted(
        Framework::Verl,
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B \
         +data.apply_chat_template_kwargs.enable_thinking=False +data.apply_chat_template_kwargs.budget=512 \
         data.apply_chat_template_kwargs.tone='short and dry' +data.apply_chat_template_kwargs.of.two=1 \
         data.apply_chat_template_kwargs.nothing=null",
    );
    let variables = conversion.job.spec.prompts.chat_template_variables.unwrap();
    assert_eq!(
        Value::Object(variables),
        json!({"enable_thinking": false, "budget": 512, "tone": "short and dry"})
    );
    let said = |note: &Note| note.subject.contains("of.two=1") && note.message.contains("chatTemplateVariables");
    assert!(conversion.notes.iter().any(said), "{:?}", conversion.notes);
}

#[test]
fn openrlhfs_prompts_without_a_template_have_no_special_tokens_which_is_said() {
    let flags = "--pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl";
    let said = |conversion: &Conversion| {
        let about = |note: &&Note| note.subject == "apply_chat_template";
        conversion.notes.iter().find(about).map(|note| note.message.clone())
    };
    let plain = converted(Framework::Openrlhf, flags);
    assert!(!plain.job.spec.prompts.chat_template);
    assert!(said(&plain).unwrap().contains("special tokens"));
    let rendered = converted(Framework::Openrlhf, &format!("{flags} --apply_chat_template"));
    assert!(rendered.job.spec.prompts.chat_template);
    assert_eq!(said(&rendered), None);
}

#[test]
fn a_bound_that_cuts_prompts_elsewhere_says_that_they_are_dropped_here() {
    let said = |framework, flags: &str| {
        let conversion = converted(framework, flags);
        let dropped = |note: &Note| note.message.starts_with("a longer prompt is dropped");
        conversion.notes.iter().any(dropped)
    };
    let trl = "trl grpo --model_name_or_path /m --dataset_name /d.jsonl --reward_model_name_or_path /rm";
    assert!(said(Framework::Trl, &format!("{trl} --max_prompt_length 256")));
    assert!(said(Framework::Openrlhf, "--pretrain a/b --prompt_max_len 256"));
    assert!(!said(
        Framework::Verl,
        "data.max_prompt_length=256 data.truncation=error"
    ));
    assert!(said(
        Framework::Verl,
        "data.max_prompt_length=256 data.truncation='left'"
    ));
}

#[test]
fn the_lengths_that_verls_engines_have_of_their_own_are_taken() {
    let rollout = "actor_rollout_ref.rollout";
    let of = |flags: &str| {
        let flags = format!("data.max_prompt_length=4096 data.max_response_length=1024 {flags}");
        let conversion = converted(Framework::Verl, &flags);
        let cut = format!("{rollout}.prompt_length");
        let said = conversion.notes.iter().any(|note| note.subject == cut);
        let spec = conversion.job.spec;
        (spec.prompts.max_length, spec.generation.max_new_tokens, said)
    };
    assert_eq!(of(""), (4096, 1024, false));
    assert_eq!(of(&format!("{rollout}.response_length=3072")), (4096, 3072, false));
    assert_eq!(of(&format!("{rollout}.prompt_length=2048")), (2048, 1024, true));
    assert_eq!(of(&format!("{rollout}.prompt_length=8192")), (4096, 1024, false));
}

#[test]
fn prompts_below_a_home_folder_are_to_be_written_in_full() {
    let conversion = converted(Framework::Verl, "data.train_files=~/data/train.parquet");
    let path = conversion.job.spec.prompts.source.path;
    assert_eq!(path.as_deref(), Some("/data/train.parquet"));
    let missing = |note: &Note| note.kind == NoteKind::Missing && note.message.contains("below a home folder");
    assert!(conversion.notes.iter().any(missing), "{:?}", conversion.notes);
}

#[test]
fn an_at_sign_of_a_path_is_its_own_and_behind_a_data_set_is_a_folder_of_it() {
    let path = |framework, flags: &str| converted(framework, flags).job.spec.prompts.source.path.unwrap();
    for file in ["/data/@me/a.parquet", "./b@c/a.jsonl", "b@c/a.jsonl"] {
        assert_eq!(path(Framework::Verl, &format!("data.train_files={file}")), file);
    }
    let of_openrlhf = |name: &str| format!("--pretrain a/b --remote_rm_url http://x/y --prompt_data {name}");
    assert_eq!(path(Framework::Openrlhf, &of_openrlhf("json@/data/set")), "/data/set");
    let conversion = converted(Framework::Openrlhf, &of_openrlhf("owner/set@part"));
    let command =
        "`datasets.load_dataset(\"owner/set\", data_dir=\"part\", split=\"train\").to_json(\"/data/set.jsonl\")`";
    let said = |note: &Note| note.kind == NoteKind::Missing && note.message.contains(command);
    assert!(conversion.notes.iter().any(said), "{:?}", conversion.notes);
}

#[test]
fn files_that_a_framework_reads_one_after_another_are_read_so_here() {
    let held_out = "data.val_files=\"['/gsm8k/test.parquet', '/math/test.parquet']\" trainer.test_freq=5";
    let verl = converted(Framework::Verl, held_out);
    let source = verl.job.spec.evaluation.unwrap().source;
    assert_eq!(source.paths.unwrap(), ["/gsm8k/test.parquet", "/math/test.parquet"]);
    assert_eq!(source.path, None);
    let openrlhf = converted(
        Framework::Openrlhf,
        "--pretrain a/b --prompt_data /a.jsonl,owner/set --prompt_data_probs 0.5,0.5",
    );
    let paths = openrlhf.job.spec.prompts.source.paths.unwrap();
    assert_eq!(paths, ["/a.jsonl", "/data/set.jsonl"]);
    let about = |subject: &str| openrlhf.notes.iter().filter(|note| note.subject == subject).count();
    assert_eq!((about("spec.prompts.source.paths"), about("prompt_data_probs")), (1, 1));
}

#[test]
fn a_folder_is_read_whole_and_what_save_to_disk_wrote_is_told_how_to_become_one() {
    let conversion = converted(Framework::Openrlhf, "--pretrain a/b --prompt_data ./data/set");
    let path = conversion.job.spec.prompts.source.path;
    assert_eq!(path.as_deref(), Some("./data/set"));
    let said = |note: &Note| note.kind == NoteKind::NotTranslated && note.message.contains("load_from_disk");
    assert!(conversion.notes.iter().any(said), "{:?}", conversion.notes);
}

#[test]
fn a_data_set_that_trl_downloads_is_told_with_its_part_and_its_columns() {
    let conversion = converted(
        Framework::Trl,
        "trl grpo --model_name_or_path a/b --dataset_name trl-internal-testing/zen --dataset_config standard_prompt_only \
         --dataset_train_split test",
    );
    let path = conversion.job.spec.prompts.source.path.as_deref();
    assert_eq!(path, Some("/data/zen.jsonl"));
    let about = |note: &&Note| note.subject == "spec.prompts.source.path";
    let said: Vec<&Note> = conversion.notes.iter().filter(about).collect();
    let [note] = said.as_slice() else {
        panic!("{said:?}");
    };
    let command = "`datasets.load_dataset(\"trl-internal-testing/zen\", \"standard_prompt_only\", split=\"test\").to_json(\"/data/zen.jsonl\")`";
    for words in [command, "prompts.promptField", "prompts.labelField"] {
        assert!(note.message.contains(words), "{words} is not in {}", note.message);
    }
}
