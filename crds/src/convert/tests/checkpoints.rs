//! Where checkpoints of a framework go.

use super::*;

/// The command of each framework that saves into `folder`, and how it names it.
fn saving(folder: &str) -> [(Framework, String, String); 3] {
    let named = |flag: &str| format!("{flag}{folder}");
    let (openrlhf, verl, trl) = (
        named("--ckpt_path "),
        named("trainer.default_local_dir="),
        named("--output_dir "),
    );
    let command = |start: &str, flag: &str| format!("{start} '{}'", flag.replace(' ', "' '"));
    [
        (Framework::Openrlhf, command("--pretrain a/b", &openrlhf), openrlhf),
        (
            Framework::Verl,
            command("actor_rollout_ref.model.path=a/b", &verl),
            verl,
        ),
        (Framework::Trl, command("trl grpo --model_name_or_path a/b", &trl), trl),
    ]
}

fn notes_of(conversion: &Conversion, subject: &str) -> Vec<Note> {
    let about = conversion.notes.iter().filter(|note| note.subject == subject);
    about.cloned().collect()
}

#[test]
fn checkpoints_below_a_home_folder_are_to_be_written_in_full() {
    for (folder, place) in [("~/ck", "/runs/ck"), ("~/p/e/", "/runs/e"), ("~", "/runs/checkpoints")] {
        for (framework, script, _) in saving(folder) {
            let conversion = converted(framework, &script);
            assert_eq!(conversion.job.spec.checkpoint.path.as_deref(), Some(place), "{script}");
            let notes = notes_of(&conversion, "spec.checkpoint.path");
            assert!(
                notes.len() == 1
                    && notes[0].kind == NoteKind::Missing
                    && notes[0]
                        .message
                        .starts_with(&format!("{folder} lies below a home folder")),
                "{notes:?}"
            );
        }
    }
}

#[test]
fn a_relative_folder_of_checkpoints_is_none_of_a_cluster_which_is_said() {
    for folder in ["./ckpt", "checkpoints/p/e"] {
        for (framework, script, flag) in saving(folder) {
            let conversion = converted(framework, &script);
            assert_eq!(conversion.job.spec.checkpoint.path.as_deref(), Some(folder), "{script}");
            let notes = notes_of(&conversion, &flag);
            assert!(
                notes.len() == 1
                    && notes[0].kind == NoteKind::NotTranslated
                    && notes[0].message.contains("on a cluster give checkpoint.volumeClaim"),
                "{:?}",
                conversion.notes
            );
        }
    }
    for (framework, script, flag) in saving("/ckpt") {
        let conversion = converted(framework, &script);
        assert_eq!(conversion.job.spec.checkpoint.path.as_deref(), Some("/ckpt"));
        assert!(notes_of(&conversion, &flag).is_empty());
    }
}
