//! The page of errors has every reason, phase, event and exit code that the code can give, and no words that it cannot.

use std::collections::BTreeSet;
use std::path::Path;

use http::StatusCode;
use ppo_crds::report::exit_code;

use crate::page::{Page, repository};

fn sources(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(repository()).unwrap().display().to_string();
            into.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The Rust files of what is shipped, by their names.
pub fn code() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["crds/src", "operator/src", "worker/src"] {
        sources(&repository().join(folder), &mut found);
    }
    found
}

/// Words that begin with a capital in quotes, without tests.
fn quoted_names(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("#[cfg(test)]").next().unwrap();
    let is_name = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.len() > 3
            && word.chars().all(|c| c.is_ascii_alphabetic())
            && word.chars().any(|c| c.is_ascii_lowercase())
    };
    text.split('"').skip(1).step_by(2).filter(is_name)
}

#[test]
fn every_reason_that_the_operator_gives_is_on_the_page() {
    let page = Page::read("docs/errors.md").text;
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    // Names of kinds, of pods' own conditions and of container states that are looked at, not given.
    let others = [
        "True",
        "False",
        "PpoJob",
        "PpoJobStatus",
        "Reconcile",
        "Event",
        "Unknown",
        "PriorityClass",
        "WorkloadPriorityClass",
        "ResourceFlavor",
        "PodScheduled",
        "Initialized",
        "ContainersReady",
        "PodReadyToStartContainers",
        "PodReadyToStartContainersCondition",
        "PodInitializing",
        "ContainerCreating",
        "PodsReady",
        "Finished",
        "Started",
        "WaitForStart",
        "WaitForRecovery",
        "Recovered",
    ];
    let gives = |name: &str| {
        let files = [
            "lifecycle",
            "lifecycle/deadlines",
            "lifecycle/ending",
            "lifecycle/failures",
            "lifecycle/obstacle",
            "lifecycle/restarts",
            "status",
            "status/conditions",
            "failure",
            "events",
            "ledger",
            "snapshot",
            "condition",
            "gang",
            "world/pod",
            "reconcile/record",
            "plugin/explain/autoscaler",
        ];
        files.iter().any(|file| name == format!("operator/src/{file}.rs")) || name.starts_with("operator/src/gang/")
    };
    let mut seen = 0;
    for (name, text) in code().iter().filter(|(name, _)| gives(name)) {
        for word in quoted_names(text).filter(|word| !others.contains(word)) {
            seen += 1;
            assert!(
                words.contains(word),
                "{name} gives {word}, which docs/errors.md does not explain"
            );
        }
    }
    assert!(seen > 30, "only {seen} reasons were found");
}

#[test]
fn every_status_that_a_server_answers_is_on_the_page() {
    let page = Page::read("docs/errors.md").text;
    let servers = page
        .split("\n## ")
        .find(|part| part.starts_with("The servers"))
        .unwrap();
    let mut names = BTreeSet::new();
    for (name, text) in code() {
        let folders = ["serving", "rollout", "vllm", "reward"].map(|module| format!("worker/src/{module}/"));
        if name.ends_with("/tests.rs") || !folders.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        let text = text.split("#[cfg(test)]").next().unwrap();
        let given = text.split("StatusCode::").skip(1);
        let given = given.map(|rest| {
            rest.split(|c: char| !c.is_ascii_uppercase() && c != '_')
                .next()
                .unwrap()
        });
        names.extend(given.filter(|name| name.len() > 2).map(str::to_owned));
    }
    assert!(names.len() > 10, "only {names:?} were found");
    for name in names {
        let is_called_so = |status: &StatusCode| {
            let reason = status.canonical_reason().unwrap_or_default();
            reason.to_ascii_uppercase().replace(' ', "_") == name
        };
        let status = (100..600)
            .filter_map(|code| StatusCode::from_u16(code).ok())
            .find(is_called_so);
        let status = status
            .unwrap_or_else(|| panic!("StatusCode::{name} is no status"))
            .as_u16();
        let row = format!("\n| {status} | ");
        assert!(
            status < 400 || servers.contains(&row),
            "docs/errors.md has no row for {status} ({name})"
        );
    }
}

/// The variants of an enum in its source.
fn variants(text: &str, name: &str) -> Vec<String> {
    let body = text
        .split(&format!("pub enum {name} {{"))
        .nth(1)
        .unwrap()
        .split("\n}")
        .next()
        .unwrap();
    let lines = body
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    lines.map(|line| line.trim_end_matches(',').to_owned()).collect()
}

#[test]
fn every_outcome_phase_and_exit_code_is_on_the_page() {
    let page = Page::read("docs/errors.md");
    let source = |file: &str| std::fs::read_to_string(repository().join(file)).unwrap();
    let first =
        |heading: &str| -> BTreeSet<String> { page.rows(heading).into_iter().map(|row| row[0].clone()).collect() };
    let reasons = first("reason");
    for outcome in variants(&source("crds/src/report.rs"), "Reason") {
        assert!(reasons.contains(&outcome), "{outcome} is not in the table of the run");
    }
    let phases = first("phase");
    assert_eq!(
        phases,
        variants(&source("crds/src/status.rs"), "Phase")
            .into_iter()
            .collect::<BTreeSet<_>>()
    );
    let codes = first("status");
    for code in [
        exit_code::COMPLETED,
        1,
        exit_code::BAD_CONFIGURATION,
        exit_code::DIVERGED,
        exit_code::INTERRUPTED,
    ] {
        assert!(codes.contains(&code.to_string()), "exit status {code}");
    }
}

#[test]
fn every_quoted_word_is_said_somewhere() {
    let page = Page::read("docs/errors.md");
    // Literals that a line's end cuts are read as one, as the compiler does.
    let code: String = code().into_iter().map(|(_, text)| text).collect();
    let mut joined = String::new();
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("\\\n") {
        joined.push_str(before);
        rest = after.trim_start();
    }
    joined.push_str(rest);
    let rows = page.rows("words");
    assert!(rows.len() > 20);
    for row in rows {
        let said = row[0].split("...").flat_map(|part| part.split("; ")).map(str::trim);
        for words in said.filter(|words| words.len() > 3) {
            assert!(joined.contains(words), "nothing says {words:?} of {:?}", row[0]);
        }
    }
}
