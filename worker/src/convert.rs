//! `ppo-worker convert`: a command line of OpenRLHF, verl or TRL as a PpoJob manifest. The work is done by
//! [`ppo_crds::convert`]; here are standard input, files, environment and output.

use std::io::Read;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ppo_crds::convert::{Framework, NoteKind, convert_with_files, quote};

use crate::manifest::Invalid;
use crate::output::{print, tell};
use crate::telemetry::OutputMode;

/// Arguments of `ppo-worker convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Whose command line it is.
    #[arg(long, value_name = "FRAMEWORK", value_parser = frameworks())]
    from: Framework,
    /// The command line or script in one pair of quotes, or its words; `-` reads standard input.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

fn frameworks() -> impl TypedValueParser<Value = Framework> {
    let known = |word: String| Framework::ALL.into_iter().find(|framework| framework.word() == word);
    PossibleValuesParser::new(Framework::ALL.map(Framework::word))
        .try_map(move |word| known(word).ok_or("no framework of this name"))
}

/// Prints the manifest, and on standard error what is not in it and what a cluster would refuse of it; as one JSON object with `--json`.
///
/// # Errors
/// [`Invalid`] when the command line cannot be a manifest.
pub fn main(args: &ConvertArgs, output: OutputMode) -> Result<()> {
    let script = script(&args.command)?;
    let environment = |name: &str| std::env::var(name).ok();
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| error.to_string());
    let conversion = convert_with_files(args.from, &script, &environment, &read);
    let conversion = conversion.map_err(|error| Invalid::new(error.to_string()))?;
    if matches!(output, OutputMode::Json) {
        let json = serde_json::json!({"manifest": conversion.job, "notes": conversion.notes});
        return print(&format!("{}\n", serde_json::to_string_pretty(&json)?));
    }
    print(&conversion.manifest)?;
    let told = conversion.notes.iter().filter(|note| note.kind != NoteKind::Needless);
    for note in told.filter(|_| !matches!(output, OutputMode::Quiet)) {
        let what = match note.kind {
            NoteKind::Missing => "replace",
            NoteKind::OnCluster => "on a cluster",
            NoteKind::NotTranslated | NoteKind::Needless => "not translated",
        };
        tell(&format!(
            "ppo-worker convert: {what}: {}: {}",
            note.subject, note.message
        ));
    }
    Ok(())
}

/// One argument is a script; several are words that a shell has read already.
fn script(command: &[String]) -> Result<String> {
    if let Some(option) = ours(command) {
        let words = format!(
            "{option} stands behind the command line, all of whose words are taken for the framework's: put it before, as `ppo-worker convert \
             {option} ..`"
        );
        return Err(Invalid::new(words).into());
    }
    match command {
        [only] if only == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read standard input")?;
            Ok(text)
        }
        [script] => Ok(script.clone()),
        words => Ok(words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")),
    }
}

/// An option of ours at the end of the words, where no framework's command has it: a launcher's `--quiet` stands before its script.
fn ours(command: &[String]) -> Option<&str> {
    let (last, before) = command.get(1..)?.split_last()?;
    let takes_value = |word: &str| matches!(word, "--threads" | "--log-format");
    let name = last.split('=').next().unwrap_or(last);
    if matches!(name, "--json" | "--quiet") || takes_value(name) {
        return Some(name);
    }
    before.last().map(String::as_str).filter(|word| takes_value(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_ours_behind_the_command_is_named() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for ours in [
            &["a=b c=d", "--json"][..],
            &["a=b", "--threads", "1"],
            &["a=b", "--threads=1"],
        ] {
            let said = script(&words(ours)).unwrap_err().to_string();
            assert!(said.contains("put it before"), "{ours:?}: {said}");
        }
        script(&words(&["accelerate", "launch", "--quiet", "ppo.py"])).unwrap();
        script(&words(&["--json"])).unwrap();
    }
}
