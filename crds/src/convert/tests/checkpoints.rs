//! Where checkpoints of a framework go.

use super::*;

/// The command of each framework that saves into `folder`.
pub(super) fn saving(folder: &str) -> [(Framework, String); 3] {
    let named = |flag: &str| format!("{flag}{folder}");
    let (openrlhf, verl, trl) = (
        named("--ckpt_path "),
        named("trainer.default_local_dir="),
        named("--output_dir "),
    );
    let command = |start: &str, flag: &str| format!("{start} '{}'", flag.replace(' ', "' '"));
    [
        (Framework::Openrlhf, command("--pretrain a/b", &openrlhf)),
        (Framework::Verl, command("actor_rollout_ref.model.path=a/b", &verl)),
        (Framework::Trl, command("trl grpo --model_name_or_path a/b", &trl)),
    ]
}

fn notes_of(conversion: &Conversion, subject: &str) -> Vec<Note> {
    let about = conversion.notes.iter().filter(|note| note.subject == subject);
    about.cloned().collect()
}

#[test]
fn checkpoints_below_a_home_folder_are_to_be_written_in_full() {
    for (folder, place) in [("~/ck", "/runs/ck"), ("~/p/e/", "/runs/e"), ("~", "/runs/checkpoints")] {
        for (framework, script) in saving(folder) {
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
