//! A server on a tiny model, in the test's own process, and a client.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use ppo_crds::run_config::Location;
use ppo_worker::model::save::SHARD_BYTES;
use ppo_worker::model::{ModelConfig, Weights, save};
use ppo_worker::rollout::actor::Actor;
use ppo_worker::rollout::{Ended, ModelSettings, Settings, serve};
use ppo_worker::serving::Limits;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tch::Kind;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::process::Running;

/// Nothing here takes longer on the slowest machine.
pub const LONG: Duration = Duration::from_secs(120);
/// The name that models are served under.
pub const NAME: &str = "tiny";
/// Tokens of the vocabulary; the chat template's tokenizer has as many.
pub const VOCABULARY: u32 = 400;

/// A random Qwen2 of a few thousand parameters with a ChatML tokenizer.
pub fn make_model(folder: &Path, seed: u64) {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "max_position_embeddings": 65536, "initializer_range": 0.4, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "dtype": "float32",
    });
    let config = ModelConfig::from_json(config.as_object().unwrap().clone()).unwrap();
    let weights = {
        // libtorch's generator is one for all threads.
        static GENERATOR: Mutex<()> = Mutex::new(());
        let _alone = GENERATOR.lock();
        Weights::random(&config, Kind::Float, seed).unwrap()
    };
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
    save(folder, &tokenizer, &config, &weights, SHARD_BYTES).unwrap();
}

/// A running server.
pub struct Server {
    /// Its address, `http://…`.
    pub url: String,
    /// Folder of models, removed with the server.
    pub folder: TempDir,
    pub client: Client,
    token: Option<String>,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<Ended>>,
}

/// What differs between servers.
#[derive(Default)]
pub struct Wanted {
    pub limits: Limits,
    pub token: Option<&'static str>,
    pub open_metrics: bool,
    pub seed: u64,
    pub actor: Option<Actor>,
    /// `host:port`; None takes a free port.
    pub address: Option<String>,
    /// Longest sequence in tokens.
    pub max_length: Option<usize>,
    /// Of the cache; 256 where nothing is said.
    pub cache_mebibytes: Option<u64>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(Wanted::default()).await
    }

    pub async fn start_with(wanted: Wanted) -> Self {
        // The harness runs a test per core; tiny products gain nothing from more threads.
        tch::set_num_threads(1);
        let folder = TempDir::new().unwrap();
        let model = folder.path().join("model");
        make_model(&model, wanted.seed);
        let address = wanted.address.as_deref().unwrap_or("127.0.0.1:0");
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut model = ModelSettings::alone(Location::Path(model), NAME.to_owned());
        model.rollout.kv_cache_mebibytes = wanted.cache_mebibytes.or(Some(256));
        model.max_length = wanted.max_length;
        let settings = Settings {
            address: listener.local_addr().unwrap(),
            metrics_address: None,
            token: wanted.token.map(str::to_owned),
            open_metrics: wanted.open_metrics,
            model,
            limits: wanted.limits,
            actor: wanted.actor,
            vllm: None,
        };
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(serve(settings, listener, None, async move {
            let _ = stopped.await;
        }));
        let server = Self {
            url,
            folder,
            client: ppo_worker::http_client::builder().build().unwrap(),
            token: wanted.token.map(str::to_owned),
            stop: Some(stop),
            running,
        };
        server
            .until("ready", async || server.get("/readyz").await.status() == 200)
            .await;
        server
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn get(&self, path: &str) -> Response {
        let request = self.client.get(format!("{}{path}", self.url));
        self.authorized(request).timeout(LONG).send().await.unwrap()
    }

    pub async fn get_json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert!(response.status().is_success(), "{path}: {}", response.status());
        response.json().await.unwrap()
    }

    pub fn post(&self, path: &str, body: Value) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.url)).json(&body);
        self.authorized(request).timeout(LONG)
    }

    /// The answer's status and body.
    pub async fn ask(&self, path: &str, body: Value) -> (u16, Value) {
        let response = self.post(path, body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    /// The body of an answer that must be 200.
    pub async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The message of an error that must have this status, in OpenAI's shape.
    pub async fn error(&self, path: &str, body: Value, status: u16) -> String {
        let (found, answer) = self.ask(path, body).await;
        assert_eq!(found, status, "{answer}");
        assert_eq!(answer["error"]["code"], status);
        assert!(answer["error"]["type"].is_string());
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    /// The pieces of a stream, and whether it ended with `[DONE]`.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.post(path, body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = response.text().await.unwrap();
        let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.into_iter()
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// A number of `/metrics`.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text().await.unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Samples that are computed or wait.
    pub async fn busy(&self) -> f64 {
        self.metric("vllm:num_requests_running").await + self.metric("vllm:num_requests_waiting").await
    }

    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let ends = Instant::now() + LONG;
        while !holds().await {
            assert!(Instant::now() < ends, "waited for {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn until_busy(&self) {
        self.until("a running request", async || self.busy().await > 0.0).await;
    }

    /// Nothing runs and no block of the cache is held.
    pub async fn until_idle(&self) {
        let idle = async || self.busy().await == 0.0 && self.metric("vllm:kv_cache_usage_perc").await == 0.0;
        self.until("an idle engine", idle).await;
    }

    /// Asks the server to end, as SIGTERM does.
    pub fn begin_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// How it ended.
    pub async fn ended(self) -> Ended {
        tokio::time::timeout(LONG, self.running)
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }
}

/// A request of tokens that ends at its length alone.
pub fn long(tokens: usize) -> Value {
    json!({"model": NAME, "prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": true, "seed": 1, "return_token_ids": true})
}

/// A request with more fields, or with others.
pub fn with_fields(mut request: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(fields);
    request
}

pub fn ids(choice: &Value) -> Vec<u64> {
    choice["token_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

/// A server on `model` as a process of its own, which `command` is or becomes, and what it has said when it serves.
pub fn serving(mut command: Command, model: &Path) -> (Running, String) {
    command
        .args([
            "rollout",
            "--port",
            "0",
            "--threads",
            "1",
            "--kv-cache-mebibytes",
            "64",
            "--model",
        ])
        .arg(model)
        .env("NO_COLOR", "1")
        .env_remove("PPO_LOG")
        .stderr(Stdio::piped());
    let mut server = Running::start(&mut command);
    let said = server.said("serving");
    (server, said)
}
