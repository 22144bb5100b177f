//! `docs/migration.md`, written from the tables that `ppo-worker convert` uses.

use std::fmt::Write as _;

use super::row::{Read, Row, To};
use super::{openrlhf, trl, verl};

const HEAD: &str = "# From OpenRLHF, verl or TRL

<!-- Written by `make crds` from crds/src/convert/; edit there. -->

You have a command line that trains a model, and want the same run here:

```
ppo-worker convert --from openrlhf - < train.sh > job.yaml
ppo-worker convert --from verl 'algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.rollout.n=5'
ppo-worker convert --from trl 'accelerate launch --num_processes 8 ppo.py --sft_model_path /models/sft'
ppo-worker plan -f job.yaml
```

A whole script will do: quotes, continued lines, comments, variables and arrays that it sets or appends to, texts that `read ... <<EOF` or
`$(cat <<EOF ...)` puts into a variable, what `${NAME##*/}`, `${NAME//a/b}` and `${NAME:+x}` make of one, a command in quotes for `bash -c` or ssh. Variables that it does not set are taken from your environment; of arguments of its own (`\"$@\"`) there are none.
Branches are followed where texts and numbers decide (`if [ \"$MODE\" = fast ]`, `case`, `&&`); where something would have to be run, what
they leave different counts as not known. What is not known, such as `$(nproc)`, is asked for where it is read: write it out, or export the
variable that is named.

* The manifest has the framework's profile (`algorithm.profile`), and behind every field the flag it is from.
* A default of the framework that is not ours is written out.
* What has no field is said at the top of the manifest and on standard error, with what to do instead.
* What a cluster would refuse of it (a checkpoint folder in no mounted volume, several actor pods without a claim, a relative path) is said in the
  same places, with what to write. `ppo-worker run` takes it as it is.
* A model of the hub is told of whose name is that of a family which is not loaded, as `gemma-2-2b` or `Qwen3-30B-A3B`.
* An unknown flag is an error that names the nearest one. A run that could not work is refused with the numbers that would. A program that
  does not train by PPO (`train_sft`, `fsdp_sft_trainer`, `trl dpo`) is refused by its name, with what to use instead.
* Micro-batches that do not divide are made smaller, and engines fewer: they change memory and speed, not results.

";

const OPENRLHF: &str = "## OpenRLHF

`openrlhf.cli.train_ppo_ray`, 0.6 to 0.11, under the old names and the new ones, with the defaults of 0.11; where an older
version of the old names has another one, it is said. The estimator `flash_reinforce` is replaced by the nearest, which is said. Sizes mean the same: `rollout_batch_size` counts
prompts, `train_batch_size` samples, micro-batches the samples of one GPU. Roles keep their GPUs.

";

const VERL: &str = "## verl

`verl.trainer.main_ppo`, or what takes its settings: the `main_ppo` of another package, as that of `one_step_off_policy`, and the recipes'
`main_dapo`, `main_entropy` and `main_dynamo`; of 0.8 and 0.9 and with the names of before, with hydra overrides (`key=value`,
`+key=value`, `~key`). An estimator that is not here, as `remax` or `gpg`, is replaced by the nearest, which is said. `data.train_batch_size` and `ppo_mini_batch_size` count prompts: `batch.trainBatchSize`
is the latter x `rollout.n`. verl's roles share GPUs, ours have their own, so the job asks for more of them until you make `roles.*.gpusPerNode` smaller.

";

const TRL: &str = "## TRL

A Python script is not read: give the arguments of its `GRPOConfig(...)`, `RLOOConfig(...)` or `PPOConfig(...)` as flags of the same names. The
YAML file of `--config FILE` is, its path taken from the folder in which you convert.

`PPOConfig`, `RLOOConfig` and `GRPOConfig`, with the flags of 0.24 to 1.16 and the defaults of 0.24, which is said where newer ones are others; the script's name (`ppo.py`, `rloo.py`, `grpo.py`, or `trl grpo`) tells which, and
the launcher's `--num_processes` or `--nproc_per_node` how many GPUs. With d = `per_device_train_batch_size`, a =
`gradient_accumulation_steps`, p = processes:

| | PPO | RLOO, GRPO |
|---|---|---|
| samples of a step | d x a x p | d x p x `steps_per_generation` (default a), or `generation_batch_size` |
| `batch.rolloutBatchSize` | the same | samples / `num_generations` |
| `batch.trainBatchSize` | the same; with m = `num_mini_batches` above a: samples x a / m | d x a x p |
| `batch.microTrainBatchSize` | d; with m above a: d x a / m | d |

";

/// The page.
pub fn migration_page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str(OPENRLHF);
    table(&mut page, openrlhf::table::ROWS, "--");
    page.push_str(VERL);
    table(&mut page, &verl::table::rows(), "");
    page.push_str(TRL);
    let parts = [
        ("Every trainer", trl::table::COMMON),
        ("PPO", trl::table::PPO),
        ("RLOO and GRPO", trl::table::ONLINE),
        ("RLOO", trl::table::RLOO),
        ("GRPO", trl::table::GRPO),
    ];
    for (title, rows) in parts {
        line(&mut page, &format!("### {title}\n"));
        table(&mut page, rows, "--");
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn table(page: &mut String, rows: &[Row], dashes: &str) {
    let (told, needless): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| !matches!(row.to, To::Needless));
    page.push_str("| setting | field | to know |\n|---|---|---|\n");
    for row in told {
        let fields = match row.to {
            To::Fields(fields, _) | To::Computed(fields) if !fields.is_empty() => {
                codes(fields.iter().map(|f| (*f).to_owned()))
            }
            _ => "-".into(),
        };
        line(
            page,
            &format!("| {} | {fields} | {} |", names(row, dashes), cell(&knowledge(row))),
        );
    }
    if !needless.is_empty() {
        page.push_str("\nThese need nothing here:\n\n");
    }
    for row in needless {
        line(page, &format!("* {}: {}.", names(row, dashes), row.note));
    }
    page.push('\n');
}

fn names(row: &Row, dashes: &str) -> String {
    codes(row.names.iter().map(|name| format!("{dashes}{name}")))
}

fn codes(words: impl Iterator<Item = String>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The note, the words that have other names here, and the default that is written out.
fn knowledge(row: &Row) -> String {
    let mut parts = Vec::new();
    if !row.note.is_empty() {
        parts.push(row.note.to_owned());
    }
    if let To::Fields(fields, Read::One(words)) = row.to {
        let word = |(theirs, ours): &(&str, &str)| match *ours {
            "" => format!("`{theirs}`"),
            ours if ours == *theirs => format!("`{ours}`"),
            ours => format!("`{theirs}` is `{ours}`"),
        };
        let words: Vec<_> = words.iter().map(word).collect();
        parts.push(match words.as_slice() {
            [one] if one.matches('`').count() == 2 => format!("{one} only"),
            several if fields.is_empty() => format!("{} only", several.join(", ")),
            several => several.join(", "),
        });
    }
    if let To::Fields(fields, Read::Each(words)) = row.to {
        let word = |(theirs, ours): &(&str, &[&str])| {
            let set = fields.iter().zip(ours.iter()).filter(|(_, ours)| !ours.is_empty());
            let names = set.map(|(field, ours)| format!("`{}: {ours}`", field.rsplit('.').next().unwrap_or(field)));
            format!("`{theirs}` is {}", names.collect::<Vec<_>>().join(" and "))
        };
        parts.push(words.iter().map(word).collect::<Vec<_>>().join(", "));
    }
    if let Some(default) = row.default.filter(|default| !default.is_empty()) {
        parts.push(format!("default `{default}`"));
    }
    parts.join("; ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn line(page: &mut String, content: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{content}");
}
