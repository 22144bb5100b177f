//! `engine: vllm`: a real vLLM, on the CPU, behind our door generates for a run, and the run outlives it. And vLLM's own load generator
//! against our server.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod pods;
mod worker;

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pods::{Pods, TOKEN};
use ppo_crds::pod::env;
use ppo_tests::{free_port, skipped};
use serde_json::{Value, json};
use worker::{Bench, Running, finish_within, kill, output, repository, text, wait_for, wait_within};

/// So many that vLLM is killed before the last.
const STEPS: usize = 40;

/// For vLLM to start and a run to get on with it: it imports gigabytes, from the disk where they are not in memory.
const START: Duration = Duration::from_secs(400);

/// To make vLLM's environment on a machine that has none: 2 GB to download.
const INSTALL: Duration = Duration::from_secs(1800);

/// For what makes it to end once it is asked to.
const GRACE: Duration = Duration::from_secs(10);

/// Python of the environment that the benchmark uses too; None, said in one line, where it cannot be made.
fn vllm_python() -> Option<PathBuf> {
    let recipe = repository().join("worker/bench/environments.py");
    // `timeout` ends what the recipe has started, too, which holds our pipe.
    let mut making = Command::new("timeout");
    making
        .arg(format!("--kill-after={}", GRACE.as_secs()))
        .arg(INSTALL.as_secs().to_string())
        .arg("python3")
        .arg(recipe)
        .arg("vllm")
        .stdout(Stdio::piped());
    let made = finish_within(INSTALL + 2 * GRACE, Running::start(&mut making));
    if !made.status.success() {
        let why = format!("its environment cannot be made ({}); the words are above", made.status);
        skipped("the test of a real vLLM", &why);
        return None;
    }
    Some(PathBuf::from(text(&made.stdout).trim()))
}

/// vLLM as the operator starts it (`operator/src/plan/vllm.rs`), on the CPU, whose cache has blocks of 32 tokens or more.
struct Vllm {
    server: Running,
    door: Running,
}

impl Vllm {
    fn start(python: &Path, pods: &Pods, port: u16, door: u16) -> Self {
        let log = std::fs::File::create(pods.bench.path(&format!("vllm-{port}.log"))).unwrap();
        let mut server = Command::new(python);
        server
            .args(["-m", "vllm.entrypoints.openai.api_server", "--model"])
            .arg(pods.bench.path("sft"))
            .args([
                "--served-model-name=policy",
                "--host=127.0.0.1",
                "--tensor-parallel-size=1",
            ])
            .args([
                "--dtype=float32",
                "--max-model-len=64",
                "--block-size=32",
                "--enforce-eager",
            ])
            .args(["--max-num-batched-tokens=2048", "--max-num-seqs=64"])
            .args(["--logprobs-mode=processed_logprobs", "--generation-config=vllm"])
            .arg(r#"--weight-transfer-config={"backend":"nccl"}"#)
            .arg(format!("--port={port}"))
            .env("VLLM_SERVER_DEV_MODE", "1")
            .env("VLLM_CPU_KVCACHE_SPACE", "1")
            .env("VLLM_CPU_OMP_THREADS_BIND", "0-1")
            .env("VLLM_NO_USAGE_STATS", "1")
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // Its engine is a child of it: both end together.
            .process_group(0);
        let server = Running::start(&mut server);
        let (door, weights) = (door.to_string(), pods.bench.path("weights"));
        let args = [
            "rollout",
            "--host",
            "127.0.0.1",
            "--port",
            &door,
            "--metrics-addr",
            "127.0.0.1:0",
        ];
        let mut command = pods.command(&args, 1);
        command
            .arg("--weights-folder")
            .arg(weights)
            .env(env::VLLM, format!("127.0.0.1:{port}"));
        let door = Running::start(&mut command);
        Self { server, door }
    }

    fn kill(&mut self) {
        let group = format!("-{}", self.server.id());
        let killed = kill(&["-KILL", "--", &group]).status().unwrap();
        assert!(killed.success());
        let status = self.server.ended("vLLM");
        assert_eq!(status.signal(), Some(9), "it ended before it was killed: {status}");
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        // The engine, too, which is a child of the server. It may have ended already.
        let group = format!("-{}", self.server.id());
        let _ = kill(&["-KILL", "--", &group]).stderr(Stdio::null()).status();
    }
}

/// The status of a request at the door, with the token or without.
fn status(door: u16, method: &str, path: &str, token: bool) -> u16 {
    ask(door, method, path, token, &json!({})).0
}

/// Sends a request, past any proxy, and prints body and status of its answer: a machine need not have `curl`.
const ASK: &str = "
import sys, urllib.error, urllib.request as http
method, url, token, body = sys.argv[1:]
headers = {'content-type': 'application/json'}
if token:
    headers['authorization'] = 'Bearer ' + token
data = body.encode() if method == 'POST' else None
request = http.Request(url, data, headers, method=method)
try:
    answer = http.build_opener(http.ProxyHandler({})).open(request, timeout=100)
except urllib.error.HTTPError as refused:
    answer = refused
print(answer.read().decode() + '\\n' + str(answer.code), end='')
";

/// Status and body of a request at the door, with the token or without.
fn ask(door: u16, method: &str, path: &str, token: bool, body: &Value) -> (u16, String) {
    let (url, token) = (format!("http://127.0.0.1:{door}{path}"), if token { TOKEN } else { "" });
    let mut command = Command::new("python3");
    let done = output(command.args(["-c", ASK, method, &url, token, &body.to_string()]));
    assert!(done.status.success(), "{method} {url}: {}", text(&done.stderr));
    let said = text(&done.stdout);
    let (words, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), words.to_owned())
}

/// As [`ask`], between two updates of the actor's.
fn ask_alone(door: u16, path: &str, body: &Value) -> (u16, String) {
    let mut said = (0, String::new());
    wait_for("the end of an update", || {
        said = ask(door, "POST", path, true, body);
        !said.1.contains("another update")
    });
    said
}

/// Nobody's communicator.
fn unique_id() -> String {
    format!("{}=", "A".repeat(171))
}

/// vLLM on a CPU knows the protocol of NCCL and has no GPU for it: it reads what the actor would tell it, refuses in its own words, and its
/// weights stay what they were.
fn check_transfer(door: u16) {
    assert_eq!(status(door, "GET", "/get_world_size", false), 401);
    let (code, words) = ask(door, "GET", "/get_world_size", true, &json!({}));
    assert_eq!((code, words.as_str()), (200, r#"{"world_size":1}"#));
    let id = unique_id();
    let update = json!({"names": ["w"], "dtype_names": ["float32"], "shapes": [[1]]});
    let transfer = json!({"nccl_unique_id_b64": id, "update_info": update});
    let path = "/update_weights?weight_version=99";
    let (code, words) = ask_alone(door, path, &transfer);
    assert!(code == 409 && words.contains("has not joined"), "{code}: {words}");
    let info = json!({"nccl_unique_id_b64": id, "rank_offset": 1, "world_size": 2, "packed": false});
    let init = json!({"init_info": info});
    let (code, words) = ask_alone(door, "/init_weight_transfer_engine", &init);
    assert_eq!(code, 500, "{words}");
    assert!(
        !words.contains("unexpected") && !words.contains("does not answer"),
        "{words}"
    );
}

#[test]
fn a_job_trains_with_a_vllm_behind_our_door_and_outlives_it() {
    let Some(python) = vllm_python() else { return };
    let rollout = json!({"engine": "vllm", "blockSize": 32});
    let mut pods = Pods::of(
        Bench::for_vllm(),
        json!({"steps": STEPS, "roles": {"rollout": rollout}}),
    );
    let (port, door) = (free_port().unwrap(), free_port().unwrap());
    let mut vllm = Vllm::start(&python, &pods, port, door);
    pods.addresses.push(format!("127.0.0.1:{door}"));
    pods.reference();
    let mut actor = pods.actor(1);
    wait_within(START, "a second step", || {
        pods.steps() >= 2 || actor.try_wait().unwrap().is_some()
    });

    // What vLLM would do for anybody who reaches it is not behind the door.
    for path in [
        "/collective_rpc",
        "/sleep",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/server_info",
    ] {
        assert_eq!(status(door, "POST", path, false), 401, "{path}");
        assert_eq!(status(door, "POST", path, true), 404, "{path}");
    }
    assert_eq!(status(door, "GET", "/v1/models", false), 401);
    assert_eq!(status(door, "GET", "/v1/models", true), 200);
    assert_eq!(status(door, "GET", "/health", false), 200);
    check_transfer(door);

    vllm.kill();
    wait_for("the door to end with its vLLM", || {
        vllm.door.try_wait().unwrap().is_some()
    });
    let mut ended = std::mem::replace(&mut vllm, Vllm::start(&python, &pods, port, door));
    let words = finish_door(&mut ended);
    assert!(words.contains("does not answer"), "{words}");
    let done = finish_within(START, actor);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let metrics = pods.bench.metrics("pods/checkpoints");
    assert_eq!(metrics.len(), STEPS);
    for line in &metrics {
        // Both compute in float32 what the last update left: other weights would differ by far more.
        let difference = line["logprob_difference_max"].as_f64().unwrap();
        assert!(difference < 1e-3, "step {}: {difference}", line["step"]);
    }
    let moved = |line: &Value| line["kl"].as_f64().unwrap().abs();
    assert!(
        moved(&metrics[STEPS - 1]) > 1e-3,
        "the policy has not moved: {metrics:?}"
    );
}

/// What a door that ended said.
fn finish_door(vllm: &mut Vllm) -> String {
    let ended = vllm.door.ended("a door without its vLLM");
    assert_eq!(ended.code(), Some(1), "{ended}");
    let mut words = String::new();
    vllm.door.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    words
}

/// What `vllm bench serve` runs, twice in one process, which takes most of the time to import it. Its command line is that of the package
/// named vllm, and looks for its version: the CPU engine's has another name.
const LOAD: &str = "
import argparse, sys
from vllm.benchmarks.serve import add_cli_args, main
for most, result in (('8', 'few.json'), ('64', 'many.json')):
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args(sys.argv[1:] + ['--max-concurrency', most, '--result-filename', result]))
";

#[test]
fn vllms_own_load_generator_is_served_within_the_queue_and_refused_beyond_it() {
    let Some(python) = vllm_python() else { return };
    let bench = Bench::new();
    let port = free_port().unwrap().to_string();
    let mut server = bench.command([
        "rollout",
        "--model",
        "sft",
        "--served-model-name",
        "policy",
        "--api-key",
        TOKEN,
    ]);
    server.args(["--port", &port, "--max-queued-samples", "8", "--open-metrics"]);
    let mut server = Running::start(&mut server);
    server.said("serving sft");
    let (prompts, new_tokens) = (64, 12);
    let mut load = Command::new(python);
    load.current_dir(bench.folder.path())
        .args([
            "-c",
            LOAD,
            "--backend",
            "openai",
            "--base-url",
            &format!("http://127.0.0.1:{port}"),
        ])
        .args([
            "--model",
            "policy",
            "--tokenizer",
            "sft",
            "--dataset-name",
            "random",
            "--random-input-len",
            "16",
        ])
        .args([
            "--num-prompts",
            &prompts.to_string(),
            "--random-output-len",
            &new_tokens.to_string(),
        ])
        .args(["--ignore-eos", "--save-result", "--disable-tqdm"])
        .env("OPENAI_API_KEY", TOKEN)
        .env("VLLM_NO_USAGE_STATS", "1")
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let done = finish_within(START, Running::start(&mut load));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let result = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(bench.path(name)).unwrap()).unwrap() };
    let few = result("few.json");
    assert_eq!(
        (&few["completed"], &few["failed"]),
        (&json!(prompts), &json!(0)),
        "{few}"
    );
    assert_eq!(few["total_output_tokens"], json!(prompts * new_tokens));
    // It does not ask again: what the queue has no room for has failed for it, and the rest is whole.
    let many = result("many.json");
    let (completed, failed) = (many["completed"].as_u64().unwrap(), many["failed"].as_u64().unwrap());
    assert!(completed >= 8 && failed > 0 && completed + failed == prompts, "{many}");
    assert_eq!(many["total_output_tokens"], json!(completed * new_tokens));
    // Nothing of them is left inside.
    let (code, metrics) = ask(port.parse().unwrap(), "GET", "/metrics", false, &json!({}));
    assert_eq!(code, 200);
    for gauge in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
        let mut values = metrics.lines().filter(|line| line.starts_with(&format!("{gauge}{{")));
        let value = values.next().and_then(|line| line.rsplit_once(' '));
        assert_eq!(value.map(|(_, value)| value), Some("0"), "{gauge} in {metrics}");
    }
}
