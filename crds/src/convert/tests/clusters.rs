//! What a cluster would refuse of a converted manifest.

use super::checkpoints::saving;
use super::*;
use crate::validate::Problem;

/// What a cluster refuses of a job.
fn refused(job: &PpoJob) -> Vec<Problem> {
    let errors = validate(job, &Environment::cluster()).err();
    errors.map(|errors| errors.problems).unwrap_or_default()
}

/// The notes for a cluster: fields and what is said of them.
fn told(conversion: &Conversion) -> Vec<(&str, &str)> {
    let of_cluster = |note: &&Note| note.kind == NoteKind::OnCluster;
    let notes = conversion.notes.iter().filter(of_cluster);
    notes
        .map(|note| (note.subject.as_str(), note.message.as_str()))
        .collect()
}

/// A cluster takes the job, or there is one note for each field that it refuses, and none for another; the manifest has them all.
pub(super) fn is_told(conversion: &Conversion) {
    let problems = refused(&conversion.job);
    let mut fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem.field.split('[').next().unwrap())
        .collect();
    fields.dedup();
    let told = told(conversion);
    let of: Vec<&str> = told.iter().map(|(field, _)| *field).collect();
    assert_eq!(of, fields, "{problems:?}");
    for (field, _) in told {
        let line = format!("#   {field}: ");
        let lines = conversion.manifest.lines().filter(|text| text.starts_with(&line));
        assert!(lines.count() >= 1, "{field} is not told of in\n{}", conversion.manifest);
    }
}

#[test]
fn a_folder_of_checkpoints_that_no_pod_has_is_told_of_once_with_a_claim_that_a_cluster_takes() {
    for (folder, why) in [
        (
            "/ckpt",
            "\"/ckpt\" is in no volume that spec.roles.actor.template mounts",
        ),
        ("./ckpt", "\"./ckpt\" is relative"),
        ("checkpoints/p/e", "\"checkpoints/p/e\" is relative"),
    ] {
        for (framework, script) in saving(folder) {
            let conversion = converted(framework, &script);
            assert_eq!(conversion.job.spec.checkpoint.path.as_deref(), Some(folder), "{script}");
            let [(field, said)] = told(&conversion)[..] else {
                panic!("{:?}", conversion.notes);
            };
            assert_eq!(field, "spec.checkpoint.path");
            assert!(said.starts_with(why), "{said}");
            let relative = |note: &&Note| note.message.contains("is relative");
            assert!(conversion.notes.iter().filter(relative).count() <= 1);

            let written = said.split('`').nth(1).unwrap();
            let path = |line: &&str| line.trim_start().starts_with("path: ") && line.contains(folder);
            let path = conversion.manifest.lines().find(path).unwrap();
            let mended = conversion.manifest.replace(path, &format!("    {written}"));
            let job = parse_manifest(&mended, "mended").unwrap();
            assert!(refused(&job).is_empty(), "{:?}", refused(&job));
        }
    }
}

#[test]
fn several_pods_of_the_actor_without_a_claim_are_told_of() {
    for (framework, command) in [
        (Framework::Openrlhf, "--pretrain a/b --actor_num_nodes 2"),
        (
            Framework::Verl,
            "actor_rollout_ref.model.path=a/b trainer.nnodes=2 trainer.default_local_dir=~/ck",
        ),
        (
            Framework::Trl,
            "deepspeed --num_gpus 2 --num_nodes 2 grpo.py --model_name_or_path a/b",
        ),
    ] {
        let conversion = converted(framework, command);
        let [(field, said)] = told(&conversion)[..] else {
            panic!("{:?}", conversion.notes);
        };
        assert_eq!(field, "spec.checkpoint", "{command}");
        assert!(
            said.starts_with("2 actor pods write each checkpoint together") && said.contains("`volumeClaim: {"),
            "{said}"
        );
    }
}

#[test]
fn relative_files_of_a_list_are_told_of_together() {
    let conversion = converted(
        Framework::Verl,
        "actor_rollout_ref.model.path=./m data.train_files=\"['a/train.parquet','/b/train.parquet','c/train.parquet']\" \
         data.val_files=c/test.parquet trainer.test_freq=5",
    );
    let [(model, _), (prompts, of_prompts), (held_out, of_held_out)] = told(&conversion)[..] else {
        panic!("{:?}", conversion.notes);
    };
    assert_eq!(model, "spec.model.policy.path");
    assert_eq!(prompts, "spec.prompts.source.paths");
    assert!(
        of_prompts.starts_with("\"a/train.parquet\" is relative"),
        "{of_prompts}"
    );
    assert!(of_prompts.ends_with("; the same goes for 1 more"), "{of_prompts}");
    assert_eq!(held_out, "spec.evaluation.source.path");
    assert!(of_held_out.ends_with("(or give pvc)"), "{of_held_out}");
}

#[test]
fn of_a_job_that_a_cluster_takes_nothing_is_said_of_clusters() {
    let conversion = converted(Framework::Openrlhf, SEED_EXAMPLE);
    assert!(refused(&conversion.job).is_empty() && told(&conversion).is_empty());
    assert!(!conversion.manifest.contains("cluster"), "{}", conversion.manifest);
}

#[test]
fn what_a_cluster_refuses_stands_under_a_title_of_its_own() {
    let conversion = converted(Framework::Openrlhf, "--pretrain a/b --ckpt_path /ckpt");
    let title = "#\n# Change before a cluster takes it:\n#   spec.checkpoint.path: \"/ckpt\" is in no volume";
    assert!(conversion.manifest.contains(title), "{}", conversion.manifest);
}
