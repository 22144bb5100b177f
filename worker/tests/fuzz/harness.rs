//! Runs a parser on damaged seeds, and watches what it allocates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::damage::{apply, edits};

/// What a parser may hold at once beside a multiple of its input: tables, buffers of libraries.
const FREE_BYTES: u64 = 48 << 20;
/// And for each byte of input: a JSON value is much larger than its text.
const BYTES_PER_BYTE: u64 = 512;

/// Files below `worker/tests`.
pub fn read(files: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    files
        .iter()
        .map(|file| std::fs::read(folder.join(file)).unwrap())
        .collect()
}

/// Inputs that once broke the parser of this name.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(name);
    let files = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Cases of a parser: `PPO_FUZZ_CASES`, else `usual`.
fn cases(usual: u32) -> u32 {
    let given = std::env::var("PPO_FUZZ_CASES").ok();
    given.map_or(usual, |cases| cases.parse().expect("PPO_FUZZ_CASES is a number"))
}

fn runner(usual: u32) -> TestRunner {
    let seed: u64 = std::env::var("PPO_FUZZ_SEED").map_or(0, |seed| seed.parse().expect("PPO_FUZZ_SEED is a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: cases(usual),
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Panics are told in one line: reading symbols for a backtrace takes more memory than any parser.
fn tell_panics_shortly() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
}

/// Runs `parse` on every seed and corpus file as they are, then on damaged ones. It may refuse; it may not panic, nor hold
/// more than its input accounts for.
pub fn survives(name: &str, usual: u32, seeds: Vec<Vec<u8>>, parse: impl Fn(&[u8])) {
    survives_if(name, usual, seeds, |bytes| {
        // Caught inside: the counter must see its end.
        let mut ended = Ok(());
        let memory = allocation_counter::measure(|| ended = catch_unwind(AssertUnwindSafe(|| parse(bytes))));
        let allowed = FREE_BYTES + bytes.len() as u64 * BYTES_PER_BYTE;
        if ended.is_err() {
            return Err("it panicked".to_owned());
        }
        match memory.bytes_max <= allowed {
            true => Ok(()),
            false => Err(format!(
                "{} bytes of memory for {} of input",
                memory.bytes_max,
                bytes.len()
            )),
        }
    });
}

/// As [`survives`], with a check of one's own.
pub fn survives_if(name: &str, usual: u32, seeds: Vec<Vec<u8>>, check: impl Fn(&[u8]) -> Result<(), String>) {
    tell_panics_shortly();
    let mut seeds = seeds;
    seeds.extend(corpus(name));
    for seed in &seeds {
        check(seed).unwrap();
    }
    let picked = (any::<proptest::sample::Index>(), edits());
    let ended = runner(usual).run(&picked, |(index, edits)| {
        check(&apply(&seeds[index.index(seeds.len())], &edits)).map_err(TestCaseError::fail)
    });
    if let Err(TestError::Fail(reason, (index, edits))) = ended {
        let file = std::env::temp_dir().join(format!("ppo-fuzz-{name}"));
        std::fs::write(&file, apply(&seeds[index.index(seeds.len())], &edits)).unwrap();
        panic!("{name}: {reason}; the input is in {}", file.display());
    }
    ended.unwrap();
}
