//! The command line of `ppo-worker rollout`: vLLM's flags where it has one.

use std::net::{AddrParseError, IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::RunConfig;
use ppo_crds::listen::everywhere;
use ppo_crds::pod::{env, port};
use ppo_crds::run_config::Location;
use ppo_crds::spec::{DType, Engine, Role};

use super::actor::Actor;
use super::settings::{ModelSettings, Settings, VllmSettings};
use crate::device::DeviceArgs;
use crate::manifest::Invalid;
use crate::place::{ready_deadline, run_config};
use crate::pods::{Caller, Members};
use crate::serving::access::AccessArgs;
use crate::serving::limits::{GENERATION_DEADLINE, Limits};

/// Arguments of `ppo-worker rollout`.
#[derive(Clone, Debug, Args)]
pub struct RolloutArgs {
    /// Model folder in Hugging Face layout, or a model's name on the hub (owner/name).
    #[arg(long, value_name = "MODEL", required_unless_present = "config")]
    model: Option<PathBuf>,
    /// The RunConfig of a job, as JSON: serve its policy with its limits. The operator sets this in its pods.
    #[arg(long, env = env::CONFIG, value_name = "FILE", conflicts_with = "model")]
    config: Option<PathBuf>,
    /// Address to listen on. Default: 127.0.0.1, with --config every address.
    #[arg(long, value_name = "ADDRESS", value_parser = host_address)]
    host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = port::HTTP, value_name = "PORT")]
    port: u16,
    /// Serve /metrics, /healthz and /readyz here too, without a token. Default with --config: port 9400 of every address.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
    /// Name that clients call the model by. Default: the model as given; with --config "policy".
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Number format of weights and cache. Default: as the model was saved; with --config the job's.
    #[arg(long, value_enum)]
    dtype: Option<Precision>,
    /// Longest sequence, prompt and response, in tokens; at least 2. Default: the model's own.
    #[arg(long, value_name = "TOKENS")]
    max_model_len: Option<usize>,
    /// Sequences that run at once. Default 256.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_num_seqs: Option<u32>,
    /// Tokens computed at once; longer prompts are computed in chunks. Default 2048.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_num_batched_tokens: Option<u32>,
    /// Memory of the key/value cache in MiB. Default: what --max-num-seqs sequences of --max-model-len need; on a CPU, where pages take
    /// memory when they are first used, at most 4096 or what one such sequence needs, and on a GPU nine tenths of what is free.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    kv_cache_mebibytes: Option<u64>,
    #[command(flatten)]
    access: AccessArgs,
    /// /metrics needs no token.
    #[arg(long)]
    open_metrics: bool,
    /// Samples waiting and running; requests beyond get 429.
    #[arg(long, value_name = "N", default_value_t = Limits::default().samples)]
    max_queued_samples: usize,
    /// Likeliest tokens that a request may ask for at each token.
    #[arg(long, value_name = "N", default_value_t = Limits::default().logprobs)]
    max_logprobs: usize,
    /// Longest body of a request, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().body_bytes)]
    max_body_bytes: usize,
    /// Open connections.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: usize,
    /// Folder that a vLLM behind this door sees too, for weights on their way to it. Default: ppo-weights in the folder for
    /// temporary files.
    #[arg(long, value_name = "DIR")]
    weights_folder: Option<PathBuf>,
    /// Seconds after SIGTERM to finish what is in flight; then it is handed back with finish reason "abort".
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().shutdown_grace.as_secs())]
    shutdown_grace: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Number format of weights and cache.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Precision {
    /// As the model was saved.
    Auto,
    /// 4 bytes a number.
    Float32,
    /// 2 bytes a number.
    Bfloat16,
}

impl RolloutArgs {
    /// What the engine computes on.
    pub fn device(&self) -> DeviceArgs {
        self.device
    }

    /// Flags, environment and the job's RunConfig as one.
    ///
    /// # Errors
    /// When they contradict each other, a file cannot be read, or the server would be open to everybody.
    pub fn settings(self) -> Result<Settings> {
        let in_pod = self.config.is_some();
        let (mut model, vllm) = self.model_settings()?;
        if let Some(name) = self.served_model_name.clone() {
            model.served_name = name;
        }
        match self.dtype {
            None => {}
            Some(Precision::Auto) => model.dtype = None,
            Some(Precision::Float32) => model.dtype = Some(DType::Float32),
            Some(Precision::Bfloat16) => model.dtype = Some(DType::Bfloat16),
        }
        model.max_length = self.max_model_len.or(model.max_length);
        let rollout = &mut model.rollout;
        rollout.max_sequences = self.max_num_seqs.map_or(rollout.max_sequences, |n| n as usize);
        rollout.max_batch_tokens = self
            .max_num_batched_tokens
            .map_or(rollout.max_batch_tokens, |n| n as usize);
        rollout.kv_cache_mebibytes = self.kv_cache_mebibytes.or(rollout.kv_cache_mebibytes);
        let token = self.access.token()?;
        let actor = self.actor(token.as_deref())?;
        let host = self.host.unwrap_or_else(|| match in_pod {
            true => everywhere(),
            false => Ipv4Addr::LOCALHOST.into(),
        });
        let lets = "use the model and change its weights";
        self.access.check(host, token.as_deref(), lets)?;
        // A job's actor hands over a step's requests at once: each waits for those before it.
        let request_timeout = match self.config {
            Some(_) => GENERATION_DEADLINE,
            None => Limits::default().request_timeout,
        };
        let metrics_in_pod = in_pod.then(|| SocketAddr::new(everywhere(), port::METRICS));
        Ok(Settings {
            address: SocketAddr::new(host, self.port),
            metrics_address: self.metrics_addr.or(metrics_in_pod),
            token,
            open_metrics: self.open_metrics,
            model,
            limits: Limits {
                samples: self.max_queued_samples.max(1),
                logprobs: self.max_logprobs,
                body_bytes: self.max_body_bytes,
                shorter_body: "send fewer prompts at once, or raise --max-body-bytes",
                all_body_bytes: Limits::default().all_body_bytes.max(self.max_body_bytes),
                connections: self.max_connections.max(1),
                request_timeout,
                shutdown_grace: Duration::from_secs(self.shutdown_grace),
                ..Limits::default()
            },
            actor,
            vllm,
        })
    }

    /// The actor that a pod follows.
    fn actor(&self, token: Option<&str>) -> Result<Option<Actor>> {
        let service = std::env::var(env::service(Role::Actor)).ok();
        let (Some(service), Some(token), Some(_)) = (service, token, &self.config) else {
            return Ok(None);
        };
        let job = std::env::var(env::JOB).unwrap_or_default();
        let members = Members::of(&job, Role::Actor, 1, &service)?;
        Ok(Some(Actor::new(members, Caller::new(token.to_owned())?)))
    }

    fn model_settings(&self) -> Result<(ModelSettings, Option<VllmSettings>)> {
        if let Some(file) = &self.config {
            let config = run_config(file)?;
            let vllm = self.vllm(file, &config)?;
            let model = ModelSettings {
                start_deadline: start_deadline()?,
                ..ModelSettings::of_job(&config)
            };
            return Ok((model, vllm));
        }
        let model = self.model.clone().context("give --model or --config")?;
        let name = model.display().to_string();
        Ok((ModelSettings::alone(location(model), name), None))
    }

    /// The vLLM that a pod is the door of.
    fn vllm(&self, file: &Path, config: &RunConfig) -> Result<Option<VllmSettings>> {
        if config.rollout.engine != Engine::Vllm {
            return Ok(None);
        }
        let Ok(address) = std::env::var(env::VLLM) else {
            let words = format!(
                "{}: the job's engine is vllm, and {} does not say where it listens: the operator sets it, beside vLLM's container",
                file.display(),
                env::VLLM
            );
            return Err(Invalid::new(words).into());
        };
        let folder = self.weights_folder.clone();
        Ok(Some(VllmSettings {
            folder: folder.unwrap_or_else(|| std::env::temp_dir().join("ppo-weights")),
            address,
            start_deadline: start_deadline()?,
        }))
    }
}

/// For a job's engine to be up.
fn start_deadline() -> Result<Duration> {
    ready_deadline(|name| std::env::var(name).ok())
}

/// vLLM takes this machine's name, too.
fn host_address(text: &str) -> Result<IpAddr, AddrParseError> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        address => address.parse(),
    }
}

/// A folder that exists is meant as one; `owner/name` is a model of the hub.
fn location(model: PathBuf) -> Location {
    let id = model.to_string_lossy();
    let looks_like_hub = id.split('/').count() == 2 && !id.starts_with(['.', '/', '~']);
    if looks_like_hub && !model.exists() {
        return Location::Hub {
            id: id.into_owned(),
            revision: "main".to_owned(),
        };
    }
    Location::Path(model)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ppo_crds::report::exit_code;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RolloutArgs,
    }

    fn settings(words: &[&str]) -> Result<Settings> {
        Line::try_parse_from([&["rollout"], words].concat())?.args.settings()
    }

    #[test]
    fn without_a_token_only_this_machine_may_call() {
        let local = settings(&["--model", "some/model"]).unwrap();
        assert_eq!(local.address.to_string(), "127.0.0.1:8000");
        assert_eq!(local.model.served_name, "some/model");
        assert!(matches!(local.model.location, Location::Hub { .. }));
        assert_eq!(local.limits.logprobs, 20);
        let many = settings(&["--model", "some/model", "--max-logprobs", "100"]).unwrap();
        assert_eq!(many.limits.logprobs, 100);
        let none = settings(&["--model", "some/model", "--max-queued-samples", "0"]).unwrap();
        assert_eq!(none.limits.samples, 1, "a server that answers nobody is none");
        let named = settings(&["--model", "/m", "--host", "localhost"]).unwrap();
        assert_eq!(named.address, local.address);
        let open = ["--model", "/m", "--host", "0.0.0.0"];
        let error = settings(&open).unwrap_err();
        assert!(error.to_string().contains("--api-key-file"), "{error}");
        assert_eq!(crate::outcome::code(&error), exit_code::BAD_CONFIGURATION);
        assert!(settings(&[&open[..], &["--allow-anonymous"]].concat()).is_ok());
        assert!(settings(&[&open[..], &["--api-key", "secret"]].concat()).is_ok());
    }

    #[test]
    fn a_pod_serves_the_jobs_policy_to_the_whole_job() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {name: j}, spec: {\
            model: {policy: {path: /models/p}, dtype: float32}, prompts: {source: {path: /data/p.jsonl}, labelField: answer, maxLength: 100},\
            generation: {maxNewTokens: 50}, roles: {reward: {rules: [{exactMatch: {}}]}}}}";
        let job = ppo_crds::parse_manifest(manifest, "test").unwrap();
        let environment = ppo_crds::Environment::Laptop {
            manifest_folder: PathBuf::from("/"),
        };
        let config = ppo_crds::resolve(&job, &environment).unwrap();
        let file = folder.path().join("run-config.json");
        std::fs::write(&file, serde_json::to_string(&config).unwrap()).unwrap();
        let pod = ["--config", file.to_str().unwrap()];
        assert!(
            settings(&pod).unwrap_err().to_string().contains("PPO_TOKEN"),
            "a pod without a token is open"
        );
        let read = settings(&[&pod[..], &["--api-key", "t"]].concat()).unwrap();
        assert_eq!(read.address, SocketAddr::new(everywhere(), 8000));
        assert_eq!(read.metrics_address, Some(SocketAddr::new(everywhere(), 9400)));
        assert_eq!(
            (read.model.served_name.as_str(), read.model.max_length),
            ("policy", Some(150))
        );
        assert_eq!(read.model.dtype, Some(DType::Float32));
        assert_eq!(read.model.rollout, config.rollout);
        let mut own = config.clone();
        own.rollout.dtype = Some(DType::Bfloat16);
        std::fs::write(&file, serde_json::to_string(&own).unwrap()).unwrap();
        let read = settings(&[&pod[..], &["--api-key", "t"]].concat()).unwrap();
        assert_eq!(read.model.dtype, Some(DType::Bfloat16));
        assert!(
            read.model.start_deadline >= Duration::from_secs(1800),
            "as long as the job has to be ready"
        );
        assert_eq!(read.model.sequences, Some(config.batch.samples_per_step()));
        assert_eq!(
            read.limits.request_timeout, GENERATION_DEADLINE,
            "a request may be the last of a step that an only engine draws"
        );
        std::fs::write(&file, "{}").unwrap();
        assert!(settings(&pod).unwrap_err().to_string().contains("is not a RunConfig"));
    }

    #[test]
    fn a_token_is_read_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let read = settings(&["--model", "/m", "--api-key-file", file.to_str().unwrap()]).unwrap();
        assert_eq!(read.token.as_deref(), Some("secret"));
        // As from the variable, which a shell or a pod may have anyway.
        let both = [
            "--model",
            "/m",
            "--api-key",
            "other",
            "--api-key-file",
            file.to_str().unwrap(),
        ];
        assert_eq!(settings(&both).unwrap().token.as_deref(), Some("secret"));
        std::fs::write(&file, "\n").unwrap();
        let error = settings(&["--model", "/m", "--api-key-file", file.to_str().unwrap()]).unwrap_err();
        assert!(error.to_string().contains("is empty"));
        assert_eq!(crate::outcome::code(&error), exit_code::BAD_CONFIGURATION);
    }
}
