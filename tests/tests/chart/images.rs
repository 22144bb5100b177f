//! The images' recipes, as far as a machine without a container engine can check them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tools::{complete, repository};

const RECIPES: [&str; 3] = ["operator/Dockerfile", "worker/Dockerfile", "worker/Dockerfile.cuda"];

/// The instructions of a recipe, continued lines joined, comments left out.
fn instructions(recipe: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join(recipe)).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let parts = joined.lines().filter_map(|line| line.trim().split_once(' '));
    parts
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect()
}

fn all<'a>(instructions: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    instructions
        .iter()
        .filter(|(found, _)| found == name)
        .map(|(_, rest)| rest.as_str())
        .collect()
}

/// Whether a line of `.dockerignore` names a source, a folder above it or something in it.
fn touches(line: &str, source: &str) -> bool {
    let line = line.trim();
    // A comment, or what is taken after all.
    if line.is_empty() || line.starts_with(['#', '!']) {
        return false;
    }
    let (pattern, anywhere) = match line.strip_prefix("**/") {
        Some(rest) => (rest, true),
        None => (line, false),
    };
    let pattern: Vec<&str> = pattern.trim_matches('/').split('/').collect();
    let source: Vec<&str> = source.trim_matches('/').split('/').collect();
    let is_like = |name: &str, pattern: &str| match (pattern.split_once('*'), pattern.rsplit_once('*')) {
        (Some((begin, _)), Some((_, end))) => name.starts_with(begin) && name.ends_with(end),
        _ => name == pattern,
    };
    let is_along = |names: &[&str]| names.iter().zip(&pattern).all(|(name, part)| is_like(name, part));
    let depths = if anywhere { source.len() } else { 1 };
    (0..depths).any(|depth| is_along(&source[depth..]))
}

#[test]
fn a_pattern_touches_what_is_above_and_below_it() {
    let source = "worker/native/fetch.py";
    for line in [
        "worker",
        "/worker/",
        "worker/native",
        "**/native",
        "worker/*/fetch.py",
        "*",
        "work*",
        "worker/native/fetch.py/x",
    ] {
        assert!(touches(line, source), "{line}");
    }
    for line in [
        "",
        "# worker",
        "!worker",
        "target",
        "native",
        "*.md",
        "**/__pycache__",
        "worker/src",
    ] {
        assert!(!touches(line, source), "{line}");
    }
}

#[test]
fn what_a_recipe_copies_exists_and_reaches_the_build() {
    let ignored = fs::read_to_string(repository().join(".dockerignore")).unwrap();
    for recipe in RECIPES {
        let instructions = instructions(recipe);
        let stages: Vec<&str> = all(&instructions, "FROM")
            .iter()
            .filter_map(|from| from.split_once(" AS "))
            .map(|it| it.1)
            .collect();
        let mut copied = 0;
        for copy in all(&instructions, "COPY") {
            let mut words: Vec<&str> = copy.split_whitespace().collect();
            words.pop();
            if let Some(stage) = words[0].strip_prefix("--from=") {
                assert!(stages.contains(&stage), "{recipe}: no stage {stage}");
                continue;
            }
            for source in words.into_iter().filter(|word| !word.starts_with("--")) {
                assert!(repository().join(source).exists(), "{recipe}: {source} does not exist");
                assert!(
                    !ignored.lines().any(|line| touches(line, source)),
                    "{recipe}: .dockerignore leaves {source} out"
                );
                copied += 1;
            }
        }
        assert!(copied > 0, "{recipe} copies nothing");
    }
}

#[test]
fn a_recipe_has_all_members_of_the_workspace_that_cargo_reads() {
    let workspace = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let members = workspace
        .lines()
        .find_map(|line| line.strip_prefix("members = "))
        .unwrap();
    for recipe in RECIPES {
        let instructions = instructions(recipe);
        let copied = all(&instructions, "COPY").join(" ");
        for member in members
            .trim_matches(['[', ']'])
            .split(", ")
            .map(|member| member.trim_matches('"'))
        {
            assert!(
                copied.split_whitespace().any(|word| word == member),
                "{recipe} does not copy {member}"
            );
        }
    }
}

#[test]
fn a_recipe_names_our_rust_runs_as_nobody_and_starts_our_program() {
    let toolchain = fs::read_to_string(repository().join("rust-toolchain.toml")).unwrap();
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    for (recipe, program) in RECIPES.into_iter().zip(["ppo-operator", "ppo-worker", "ppo-worker"]) {
        let instructions = instructions(recipe);
        let from = all(&instructions, "FROM");
        assert!(from[0].contains(&format!("rust:{channel}")), "{recipe}: {from:?}");
        assert!(from.iter().all(|from| !from.contains(":latest")), "{recipe}: {from:?}");
        assert_eq!(all(&instructions, "USER"), ["65532:65532"], "{recipe}");
        let entry: Vec<String> = serde_json::from_str(all(&instructions, "ENTRYPOINT")[0]).unwrap();
        assert!(entry[0].ends_with(program), "{recipe}: {entry:?}");
    }
}

#[test]
fn a_recipe_names_the_registry_of_each_image_for_engines_that_assume_none() {
    for recipe in RECIPES {
        for from in all(&instructions(recipe), "FROM") {
            let registry = from.split_once('/').map_or("", |(registry, _)| registry);
            assert!(from == "scratch" || registry.contains('.'), "{recipe}: {from}");
        }
    }
}

#[test]
fn an_image_has_no_shell() {
    for recipe in RECIPES {
        let instructions = instructions(recipe);
        let last = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
        let base = &instructions[last].1;
        assert!(
            base == "scratch" || base.starts_with("gcr.io/distroless/"),
            "{recipe}: {base}"
        );
        // What is run there would need one.
        assert!(!instructions[last..].iter().any(|(name, _)| name == "RUN"), "{recipe}");
    }
}

#[test]
fn commands_in_a_recipe_are_sound_shell() {
    for recipe in RECIPES {
        for run in all(&instructions(recipe), "RUN") {
            let script = run
                .split_whitespace()
                .skip_while(|word| word.starts_with("--"))
                .collect::<Vec<_>>()
                .join(" ");
            let said = complete(Command::new("sh").args(["-n", "-c", &script]), "");
            assert!(said.ok, "{recipe}: {script}\n{}", said.err);
        }
    }
}

#[test]
fn without_a_container_engine_make_images_says_what_is_missing() {
    let path = std::env::var("PATH").unwrap();
    let make = path
        .split(':')
        .map(|folder| Path::new(folder).join("make"))
        .find(|make| make.exists())
        .unwrap();
    // No engine is found in an empty PATH, whatever this machine has.
    let said = complete(
        Command::new(make)
            .arg("images")
            .current_dir(repository())
            .env("PATH", "/nonexistent")
            .env_remove("MAKEFLAGS"),
        "",
    );
    assert!(!said.ok);
    assert!(
        said.err.contains("docker, podman or buildah"),
        "{}{}",
        said.out,
        said.err
    );
}
