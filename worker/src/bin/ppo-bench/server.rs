//! A rollout server with the trainer's client for it, over loopback in one process.

use std::path::Path;

use anyhow::Result;
use ppo_crds::run_config::Location;
use ppo_crds::spec::DType;
use ppo_worker::engine::Engine;
use ppo_worker::pods::{Caller, Member};
use ppo_worker::roles::Endpoint;
use ppo_worker::rollout::{Model, ModelSettings, Service, Settings, router};
use ppo_worker::serving::{Limits, listen};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// The token of server and client.
const TOKEN: &str = "bench";

/// A rollout server, and its engine.
pub struct Server {
    /// Its engine.
    pub engine: Engine,
    /// The trainer's client for it.
    pub endpoint: Endpoint,
    /// Of the client; the server's is beside it.
    pub runtime: Runtime,
    _serving: Runtime,
    _stop: watch::Sender<bool>,
}

impl Server {
    /// Serves the model in the folder `model`.
    pub fn start(model: &Path, dtype: DType) -> Result<Self> {
        let runtime = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let (serving, runtime) = (runtime()?, runtime()?);
        let mut model = ModelSettings::alone(Location::Path(model.to_owned()), "bench".into());
        model.dtype = Some(dtype);
        let listener = serving.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let settings = Settings {
            address,
            metrics_address: None,
            token: Some(TOKEN.into()),
            open_metrics: false,
            model,
            limits: Limits::default(),
            actor: None,
            vllm: None,
        };
        let service = Service::new(&settings)?;
        let model = Model::load(&settings.model)?;
        let engine = model.engine.clone();
        service.ready(model);
        let (stop, stopped) = watch::channel(false);
        let router = router::api(service);
        serving.spawn(async move { listen::serve(listener, router, &settings.limits, stopped).await });
        let member = Member {
            name: address.to_string(),
            address: address.to_string(),
        };
        Ok(Self {
            engine,
            endpoint: Endpoint::new(member, Caller::new(TOKEN.into())?),
            runtime,
            _serving: serving,
            _stop: stop,
        })
    }
}
