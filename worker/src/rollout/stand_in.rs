//! What tests put in the place of a model that takes long to load, and of threads that have nothing else to do.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use ppo_crds::run_config::Location;
use tch::Kind;
use tokio::runtime::{Builder, Runtime};

use super::model::Model;
use super::service::Service;
use super::settings::{ModelSettings, Settings};
use crate::engine::hash_runner::HashRunner;
use crate::engine::{Engine, EngineConfig};
use crate::model::ModelConfig;
use crate::serving::limits::Limits;
use crate::tokenizer::Tokenizer;

/// An engine without weights.
pub fn engine() -> Engine {
    Engine::start(|| Ok(HashRunner::new(100, 16, 1000)), EngineConfig::default()).unwrap()
}

/// A server that has `engine`, and else what the quickstart's model has.
pub fn server_of(engine: Engine, limits: Limits) -> Service {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/quickstart/model");
    let settings = Settings {
        address: "127.0.0.1:0".parse().unwrap(),
        metrics_address: None,
        token: None,
        open_metrics: false,
        model: ModelSettings::alone(Location::Path(folder.clone()), "m".to_owned()),
        limits,
        actor: None,
        vllm: None,
    };
    let service = Service::new(&settings).unwrap();
    service.ready(Model {
        name: "m".to_owned(),
        config: ModelConfig::read(&folder).unwrap(),
        kind: Kind::Float,
        tokenizer: Arc::new(Tokenizer::load(&folder).unwrap()),
        longest_token: 1,
        eos_ids: Vec::new(),
        folder,
        engine,
    });
    service
}

/// A runtime whose only thread for blocking work is taken until the sender is dropped: what is to be done aside waits as long.
pub fn taken() -> (Runtime, Sender<()>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let (give_back, wait) = channel();
    drop(runtime.spawn_blocking(move || {
        // It ends with an error, when there is no sender any more.
        let _ = wait.recv();
    }));
    (runtime, give_back)
}
