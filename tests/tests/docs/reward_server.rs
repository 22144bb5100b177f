//! The reward server of the docs is the file in `configs/`, has 15 lines, and trains.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::json;

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
    bench.manifest("remote.yaml", json!({"steps": 3, "roles": {"reward": remote}}));
    bench.manifest("rules.yaml", json!({"steps": 3}));
    bench.run("remote.yaml", "remote");
    bench.run("rules.yaml", "rules");
    // It compares as `exactMatch` does, so it is the same run, to the bit.
    assert_eq!(bench.bits("remote", 3), bench.bits("rules", 3));
    let scores: Vec<f64> = bench
        .metrics("remote")
        .iter()
        .map(|line| line["score"].as_f64().unwrap())
        .collect();
    assert!(scores.iter().any(|score| *score > 0.0), "nothing was right: {scores:?}");
}
