//! A running server under damaged requests: it answers each of them, none with its own failure, and goes on.

use ppo_worker::actor::parameters::Parameters;
use ppo_worker::model::digest::Hash;
use ppo_worker::model::{ModelConfig, Weights, names};
use ppo_worker::rollout::weights::delta::{Delta, arrival};
use ppo_worker::rollout::weights::frame;
use ppo_worker::serving::Limits;
use serde_json::json;
use tch::{Kind, Tensor};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::harness::{survives, survives_if};
use crate::support::{LONG, Server, Wanted, make_model};

/// Answers of a server that is well: what was asked, or that it cannot be.
fn is_an_answer(status: u16) -> Result<(), String> {
    match status {
        200 | 400..=499 => Ok(()),
        other => Err(format!("status {other}")),
    }
}

async fn post(server: &Server, path: &str, kind: &str, body: Vec<u8>) -> u16 {
    let request = server
        .client
        .post(format!("{}{path}", server.url))
        .header("content-type", kind);
    let response = request.body(body).timeout(LONG).send().await.unwrap();
    let status = response.status().as_u16();
    response.bytes().await.unwrap();
    status
}

#[test]
fn bodies_of_requests_to_generate() {
    let runtime = Runtime::new().unwrap();
    // Damage makes numbers larger: what they cost is bounded as a server's owner bounds it.
    let limits = Limits {
        request_tokens: 200,
        ..Limits::default()
    };
    let server = runtime.block_on(Server::start_with(Wanted {
        limits,
        ..Wanted::default()
    }));
    let seeds = [
        json!({"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 8, "seed": 3, "logprobs": 2, "return_token_ids": true}),
        json!({"prompt": "12 + 30 =", "max_tokens": 8, "temperature": 0.0, "stop": ["a", "\n"], "stream": true, "prompt_logprobs": 1}),
    ];
    let seeds = seeds.iter().map(|seed| serde_json::to_vec(seed).unwrap()).collect();
    survives_if("completions", 150, seeds, |body| {
        is_an_answer(runtime.block_on(post(&server, "/v1/completions", "application/json", body.to_vec())))?;
        is_an_answer(runtime.block_on(post(&server, "/v1/chat/completions", "application/json", body.to_vec())))
    });
    assert_eq!(runtime.block_on(server.get("/health")).status(), 200);
    runtime.block_on(server.ok("/v1/completions", json!({"prompt": [1, 2, 3], "max_tokens": 4})));
}

#[test]
fn streams_of_weights() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Server::start());
    let folder = server.folder.path().join("model");
    let config = ModelConfig::read(&folder).unwrap();
    let weights = Weights::load(&folder, &config, Kind::Float).unwrap();
    let frame: Vec<Vec<u8>> = frame::pieces(weights).unwrap().map(Result::unwrap).collect();
    survives_if("weight-stream", 80, vec![frame.concat()], |body| {
        let path = "/update_weights?weight_version=0";
        is_an_answer(runtime.block_on(post(&server, path, "application/octet-stream", body.to_vec())))
    });
    // What did not arrive whole never reached the engine.
    runtime.block_on(server.ok("/v1/completions", json!({"prompt": [1, 2, 3], "max_tokens": 4})));
}

#[test]
fn what_a_version_changed() {
    let folder = TempDir::new().unwrap();
    make_model(folder.path(), 1);
    let config = ModelConfig::read(folder.path()).unwrap();
    let mut weights = Weights::load(folder.path(), &config, Kind::BFloat16).unwrap();
    let mut parameters = Parameters::adopt(&mut weights).unwrap();
    parameters.mark_changes().unwrap();
    let change = |weights: &Tensor, _| {
        for place in (0..weights.size1()?).step_by(300) {
            let _ = weights.narrow(0, place, 1).f_mul_scalar_(2.0)?;
        }
        Ok(())
    };
    parameters.change_master(0, parameters.count(), change).unwrap();
    let changed = parameters.changed().unwrap().unwrap();
    let delta = Delta::of(&(&weights).into(), &changed).unwrap().unwrap();
    let mut sent: Vec<u8> = delta.pieces().collect::<Vec<_>>().concat();
    sent.truncate(sent.len() - Hash::BYTES);
    survives("delta", 400, vec![sent], move |body| {
        // With a hash that fits: else nothing behind it would be read.
        let hashed = [body, &Hash::of(body).bytes()].concat();
        if let Ok((changes, _)) = arrival::read(&config, hashed) {
            let shapes = names::expected(&config);
            for change in changes.iter() {
                let numbers: i64 = shapes[change.name].iter().product();
                assert!(change.positions().all(|place| place < numbers));
                assert_eq!(change.positions().count(), change.floats().count());
            }
        }
    });
}
