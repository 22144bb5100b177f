//! `ppo-worker reference`: what the reference's pod runs.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::RunConfig;
use ppo_crds::listen::everywhere;
use ppo_crds::pod::port;
use ppo_crds::spec::Role;

use super::router::{self, Service};
use super::scorer::{Bounds, Scorer};
use crate::device::{self, DeviceArgs};
use crate::manifest::Invalid;
use crate::model::kind;
use crate::place::Place;
use crate::roles::ANSWERS_WITHIN;
use crate::serving::{self, Limits};

/// Tokens of one request at the most: more than any piece of a step has. They are computed a pass at a time.
const REQUEST_TOKENS: usize = 4 << 20;

/// Arguments of `ppo-worker reference`; the operator's environment says the rest.
#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// Address to listen on. Default: port 8000 of every address.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where /metrics, /healthz and /readyz are served without a token. Default: port 9400 of every address.
    #[arg(long, value_name = "ADDRESS")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Serves until SIGTERM or Ctrl-C, then answers what it has taken.
///
/// # Errors
/// When the model cannot be loaded, or an address is taken.
pub fn main(args: &ReferenceArgs) -> Result<()> {
    let place = Place::read(Role::Reference)?;
    place.announce("reference");
    args.device.settle("the reference")?;
    let limits = Limits {
        request_timeout: ANSWERS_WITHIN,
        ..Limits::default()
    };
    let service = Service::new(&place.job, &place.peers.token, &limits)?;
    let routers = (router::api(&service), router::observed(&service));
    let loading = serving::load(move || {
        service.ready(load(&place.config)?);
        Ok(())
    });
    let at = |port| SocketAddr::new(everywhere(), port);
    let listen = args.listen.unwrap_or_else(|| at(port::HTTP));
    let observe = args.metrics_addr.unwrap_or_else(|| at(port::METRICS));
    serving::run(listen, Some(observe), limits, routers, loading)
}

fn load(config: &RunConfig) -> Result<Scorer> {
    let Some(location) = &config.model.reference else {
        let words =
            "this run has no reference pod: algorithm.kl.coef is 0, or the actor holds the base of model.adapter";
        return Err(Invalid::new(words.into()).into());
    };
    let kind = kind(config.dtype(Role::Reference));
    let copies = device::on_each(|device| super::load(location, (kind, device).into()))?;
    let first = copies.first().context("there is nothing to compute on")?;
    if copies.len() > 1 {
        tracing::info!("a copy of the reference on each of {} GPUs", copies.len());
    }
    let model = first.config();
    let bounds = Bounds {
        vocabulary: u32::try_from(model.vocab).unwrap_or(u32::MAX),
        // The same sequences as in one process, where nothing asks for the reference's own context.
        longest: model.max_positions.max(config.longest_sequence()),
        tokens: REQUEST_TOKENS,
    };
    Scorer::start(copies, bounds)
}
