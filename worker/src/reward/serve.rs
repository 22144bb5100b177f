//! `ppo-worker reward`: what the reward's pod runs, and the reward of a manifest as a server of one's own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::RunConfig;
use ppo_crds::listen::everywhere;
use ppo_crds::pod::port;
use ppo_crds::run_config::{Reward as RewardConfig, RewardModel};
use ppo_crds::spec::Role;

use super::lists::MOST_SAMPLES;
use super::router::{self, Service};
use super::{Reward, RewardSource};
use crate::device::DeviceArgs;
use crate::hub::resolve_location;
use crate::manifest::{Invalid, Manifest};
use crate::model::named;
use crate::place::Place;
use crate::serving;
use crate::serving::Limits;
use crate::serving::access::AccessArgs;
use crate::serving::auth::Door;
use crate::serving::limits::ANSWERS_WITHIN;
use crate::tokenizer::Tokenizer;

/// Where a manifest is served when nothing else is said: OpenRLHF's port, this machine only.
const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5000);

/// Arguments of `ppo-worker reward`.
#[derive(Debug, Args)]
pub struct RewardArgs {
    /// A PpoJob manifest (YAML) whose reward model and rules are served; `-` reads standard input. Without it this is a
    /// job's reward pod, told of its place by the operator, and serves the job's reward model.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Address to listen on. Default: 127.0.0.1:5000, in a pod port 8000 of every address.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where /metrics, /healthz and /readyz are served without a token. Default in a pod: port 9400 of every address.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    access: AccessArgs,
    /// /metrics needs no token.
    #[arg(long)]
    open_metrics: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl RewardArgs {
    /// Where a manifest is served, and whom it lets in.
    fn door(&self) -> Result<(SocketAddr, Door)> {
        let listen = self.listen.unwrap_or(OWN);
        let token = self.access.token()?;
        let lets = "have samples scored";
        self.access.check(listen.ip(), token.as_deref(), lets)?;
        Ok((listen, Door::new(token.as_deref(), self.open_metrics).at(listen.ip())))
    }
}

/// Serves until SIGTERM or Ctrl-C, then answers what it has taken.
///
/// # Errors
/// When there is nothing to serve, a model cannot be loaded, or an address is taken.
pub fn main(args: RewardArgs) -> Result<()> {
    args.device.settle("the reward model")?;
    match &args.file {
        Some(file) => own(&args, file),
        None => pod(&args),
    }
}

/// The reward of a manifest, model and rules.
fn own(args: &RewardArgs, file: &Path) -> Result<()> {
    let config = Manifest::read(file)?.resolve()?;
    if config.reward.model.is_none() && config.reward.rules.is_empty() {
        let words = format!(
            "spec.roles.reward of {} has neither a model nor rules: there is nothing to serve",
            file.display()
        );
        return Err(Invalid::new(words).into());
    }
    let (listen, door) = args.door()?;
    let limits = limits();
    let service = Service::new(&config.name, door, &limits)?;
    let routers = (router::api(&service), router::observed(&service));
    let loading = serving::load(move || {
        let (source, tokenizer) = sources(&config)?;
        service.ready(source, tokenizer)
    });
    serving::run(listen, args.metrics_addr, limits, routers, loading)
}

/// The reward model of a job. Its rules are the trainer's own calls: they need no pod.
fn pod(args: &RewardArgs) -> Result<()> {
    let place = Place::read(Role::Reward)?;
    place.announce("reward");
    let Some(model) = place.config.reward.model.clone() else {
        let words = "this run has no reward model (spec.roles.reward.model): rules and remote rewards need no pod";
        return Err(Invalid::new(words.into()).into());
    };
    let limits = limits();
    let door = Door::new(Some(&place.peers.token), args.open_metrics);
    let service = Service::new(&place.job, door, &limits)?;
    let routers = (router::api(&service), router::observed(&service));
    let at = |port| SocketAddr::new(everywhere(), port);
    let listen = args.listen.unwrap_or_else(|| at(port::HTTP));
    let observe = args.metrics_addr.unwrap_or_else(|| at(port::METRICS));
    let loading = serving::load(move || {
        // Its own scores, unweighted: the trainer weighs them beside its rules.
        let alone = RewardConfig {
            model: Some(RewardModel { weight: 1.0, ..model }),
            rules: Vec::new(),
            remote: None,
        };
        service.ready(RewardSource::new(&alone, loaded(&alone, &place.config)?)?, None)
    });
    serving::run(listen, Some(observe), limits, routers, loading)
}

/// What one request, and all of them together, may ask for.
fn limits() -> Limits {
    Limits {
        samples: MOST_SAMPLES,
        body_bytes: 64 << 20,
        shorter_body: "send fewer samples at once",
        request_timeout: ANSWERS_WITHIN,
        ..Limits::default()
    }
}

fn loaded(reward: &RewardConfig, config: &RunConfig) -> Result<Option<Reward>> {
    let model = reward.model.as_ref();
    let load = |model: &RewardModel| {
        let loaded = super::load(&model.source, config.dtype(Role::Reward), &config.model.policy)?;
        anyhow::Ok(loaded.refusing_beyond(config.longest_sequence()))
    };
    Ok(model.map(load).transpose()?.map(Reward::Here))
}

/// Model and rules; a remote source is left out: a server that calls another one would only add a hop.
fn sources(config: &RunConfig) -> Result<(RewardSource, Option<Arc<Tokenizer>>)> {
    let reward = RewardConfig {
        remote: None,
        ..config.reward.clone()
    };
    let source = RewardSource::new(&reward, loaded(&reward, config)?)?;
    let policy = resolve_location(&config.model.policy).context("model.policy");
    let policy = policy.and_then(|folder| named::found("model.policy", Tokenizer::load(&folder)));
    let tokenizer = match policy {
        Ok(tokenizer) => Some(Arc::new(tokenizer)),
        Err(error) if source.needs_tokens() => return Err(error.context("a length rule counts the policy's tokens")),
        Err(error) => {
            tracing::warn!("no tokenizer of the policy ({error:#}), so an end token stays in the text that rules read");
            None
        }
    };
    Ok((source, tokenizer))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ppo_crds::report::exit_code;

    use super::*;
    use crate::outcome;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RewardArgs,
    }

    fn args(words: &[&str]) -> RewardArgs {
        Line::try_parse_from([&["reward"], words].concat()).unwrap().args
    }

    fn door(words: &[&str]) -> Result<(SocketAddr, Door)> {
        args(words).door()
    }

    #[test]
    fn without_a_token_only_this_machine_may_call() {
        assert_eq!(door(&[]).unwrap(), (OWN, Door::new(None, false).at(OWN.ip())));
        let open = ["--listen", "0.0.0.0:5000"];
        let refused = door(&open).unwrap_err();
        let words = "lets anybody have samples scored: give --api-key-file or PPO_TOKEN";
        assert!(refused.to_string().contains(words), "{refused}");
        assert_eq!(outcome::code(&refused), exit_code::BAD_CONFIGURATION);
        for given in [
            &["--allow-anonymous"][..],
            &["--api-key", "secret"],
            &["--token", "secret"],
        ] {
            door(&[&open[..], given].concat()).unwrap();
        }
    }

    #[test]
    fn metrics_ask_for_the_token_too_unless_they_are_opened() {
        let key = ["--api-key", "secret"];
        assert_eq!(door(&key).unwrap().1, Door::new(Some("secret"), false));
        let opened = door(&[&key[..], &["--open-metrics"]].concat()).unwrap();
        assert_eq!(opened.1, Door::new(Some("secret"), true));
    }

    #[test]
    fn a_manifest_with_nothing_to_serve_is_the_fault_of_whoever_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let text = "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {name: j}, spec: {model: {policy: {path: p}}, \
                    prompts: {source: {path: d.jsonl}}, roles: {reward: {remote: {urls: ['http://127.0.0.1:1/']}}}}}";
        std::fs::write(&file, text).unwrap();
        let refused = own(&args(&[]), &file).unwrap_err();
        assert!(refused.to_string().contains("there is nothing to serve"), "{refused}");
        assert_eq!(outcome::code(&refused), exit_code::BAD_CONFIGURATION);
    }
}
