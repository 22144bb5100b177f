//! The reward server of the docs is the file in `configs/`, has 15 lines, and trains.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::page::{Page, repository};
use crate::worker::{Bench, wait_for};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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

#[test]
fn a_run_learns_from_it() {
    let bench = Bench::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new("python3")
        .arg(repository().join("configs/reward_server.py"))
        .arg(port.to_string())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    wait_for("the reward server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let remote = json!({"rules": null, "remote": {"urls": [format!("http://127.0.0.1:{port}/get_reward")]}});
    let patch = json!({"steps": 3, "roles": {"reward": remote}, "telemetry": {"samplesEverySteps": 1, "samples": 32}});
    bench.manifest("remote.yaml", patch);
    bench.run("remote.yaml", "remote");
    assert_eq!(bench.metrics("remote").len(), 3);
    let samples = std::fs::read_to_string(bench.path("remote/samples.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 96);
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
    }
}
