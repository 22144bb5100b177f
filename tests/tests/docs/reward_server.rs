//! The reward server of the docs is the file in `configs/`, has 15 lines, and scores a run.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use ppo_tests::free_port;
use serde_json::{Value, json};

use crate::page::{Page, repository};
use crate::worker::{Bench, DEADLINE, Running, wait_for};

#[test]
fn the_page_shows_the_file() {
    let file = std::fs::read_to_string(repository().join("configs/reward_server.py")).unwrap();
    assert!(file.lines().count() <= 15);
    let shown = Page::read("docs/model-and-reward.md").blocks("python");
    assert!(
        shown.iter().any(|code| code.text == file.trim_end()),
        "docs/model-and-reward.md shows another server"
    );
}

/// Starts the server of the page.
fn start() -> (Running, u16) {
    let port = free_port().unwrap();
    let mut command = Command::new("python3");
    command
        .arg(repository().join("configs/reward_server.py"))
        .arg(port.to_string())
        .stderr(Stdio::null());
    let server = Running::start(&mut command);
    wait_for("the reward server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (server, port)
}

#[test]
fn it_cuts_off_the_end_token_and_keeps_a_tag_before_it() {
    let (_server, port) = start();
    let rewards = |response: &str, label: &str| {
        let body = json!({"query": [format!("1+1={response}")], "prompts": ["1+1="], "labels": [label]}).to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /get_reward HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str::<Value>(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()["rewards"].clone()
    };
    let tagged = "<think>two</think><answer>2</answer>";
    for end in ["<|im_end|>", "<|eot_id|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", ""] {
        assert_eq!(rewards(&format!("{tagged}{end}"), tagged), json!([1.0]), "{end}");
        assert_eq!(rewards(&format!("2{end}"), "3"), json!([0.0]), "{end}");
    }
}

#[test]
fn a_run_has_its_scores() {
    let bench = Bench::new();
    let (_server, port) = start();
    let remote = json!({"rules": null, "remote": {"urls": [format!("http://127.0.0.1:{port}/get_reward")]}});
    let patch = json!({"steps": 3, "roles": {"reward": remote}, "telemetry": {"samplesEverySteps": 1, "samples": 32}});
    bench.manifest("remote.yaml", patch);
    bench.run("remote.yaml", "remote");
    assert_eq!(bench.metrics("remote").len(), 3);
    let samples = std::fs::read_to_string(bench.path("remote/samples.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 96);
    let mut scores = Vec::new();
    for line in samples.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let right = sample["response"] == sample["label"];
        // A special token in the middle of a response is text to the server, so it may judge such a one wrong.
        let score = sample["score"].as_f64().unwrap();
        assert!(score == 0.0 || (score == 1.0 && right), "{line}");
        let plain = !sample["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .skip(1)
            .any(|t| t["text"].to_string().contains('<'));
        assert!(score == 1.0 || !right || !plain, "{line}");
        scores.push(score);
    }
    assert!(scores.contains(&1.0) && scores.contains(&0.0), "{scores:?}");
}
