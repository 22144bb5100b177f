//! Commands and flags that are named are there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::page::{Code, Page, repository};
use crate::worker;

/// `--help` of programs and their commands, each asked for once.
#[derive(Default)]
struct Help(BTreeMap<Vec<String>, String>);

impl Help {
    fn of(&mut self, program: &str, command: &str) -> &str {
        let path: PathBuf = worker::binary().with_file_name(program);
        let key = vec![program.to_owned(), command.to_owned()];
        self.0.entry(key).or_insert_with(|| {
            assert!(
                path.exists(),
                "{} is not built: run `cargo build --workspace --bins`",
                path.display()
            );
            let words = [command, "--help"];
            let asked = words.iter().filter(|word| !word.is_empty());
            let output = worker::output(Command::new(&path).args(asked));
            assert!(output.status.success(), "{program} has no command {command}");
            String::from_utf8(output.stdout).unwrap()
        })
    }
}

/// Whether a help text has this flag, and not only a longer one that begins so.
fn names(help: &str, flag: &str) -> bool {
    let mut words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.any(|word| word == flag)
}

/// Commands in fences and in backticks.
fn commands() -> Vec<Code> {
    let mut found = Vec::new();
    for page in Page::all() {
        for code in page.blocks("").into_iter().chain(page.blocks("console")) {
            for line in code.text.replace("\\\n", " ").lines() {
                let text = line.trim_start_matches("$ ").to_owned();
                found.push(Code {
                    place: code.place.clone(),
                    text,
                });
            }
        }
        found.extend(page.spans());
    }
    found
}

#[test]
fn every_command_and_flag_that_is_named_is_there() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    let mut help = Help::default();
    let mut seen = 0;
    for code in commands() {
        // What is behind ` # ` is for the reader, what is quoted or redirected is not ours.
        let text = code.text.split(" # ").next().unwrap();
        let text = text.split(['\'', '<', '>', '|']).next().unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let (program, rest) = match words.as_slice() {
            ["ppo-worker", rest @ ..] => ("ppo-worker", rest),
            ["ppo-operator", rest @ ..] => ("ppo-operator", rest),
            ["kubectl", "ppo", rest @ ..] => ("kubectl-ppo", rest),
            ["make", target, ..] => {
                assert!(
                    makefile.contains(&format!("\n{target}:")),
                    "{}: no target {target}",
                    code.place
                );
                continue;
            }
            _ => continue,
        };
        let Some((command, arguments)) = rest.split_first() else {
            continue;
        };
        let known = help.of(program, command);
        for flag in arguments.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
            let flag = flag.split('=').next().unwrap();
            assert!(names(known, flag), "{}: {program} {command} has no {flag}", code.place);
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} flags were found on the pages");
}

#[test]
fn every_command_of_the_worker_and_the_plugin_is_in_the_readme() {
    let readme = Page::read("README.md").text;
    let mut help = Help::default();
    for (program, shown) in [("ppo-worker", "ppo-worker"), ("kubectl-ppo", "kubectl ppo")] {
        let text = help.of(program, "").to_owned();
        let list = text
            .split("Commands:")
            .nth(1)
            .unwrap()
            .split("Options:")
            .next()
            .unwrap();
        let names = list
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for name in names
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
        {
            let named = readme.contains(&format!("{shown} {name}")) || readme.contains(&format!("`{name}`"));
            assert!(named, "README.md does not name `{shown} {name}`");
        }
    }
}
