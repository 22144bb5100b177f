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
use crate::serving::limits::ANSWERS_WITHIN;
use crate::serving::{self, Limits};

/// Tokens of one request at the most: more than any piece of a step has. They are computed a pass at a time.
const REQUEST_TOKENS: usize = 4 << 20;
/// Bytes of a token in JSON at the most: the digits of 32 bits, and a comma.
const TOKEN_BYTES: usize = 11;
/// What the pieces of a step are shorter with.
pub const SHORTER: &str = "lower batch.microRolloutBatchSize";

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
    let limits = limits();
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

/// What one request may ask for.
fn limits() -> Limits {
    Limits {
        request_timeout: ANSWERS_WITHIN,
        body_bytes: REQUEST_TOKENS * TOKEN_BYTES,
        shorter_body: SHORTER,
        ..Limits::default()
    }
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

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use axum::http::StatusCode;
    use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
    use serde_json::Value;

    use super::*;
    use crate::serving::body::{self, Bodies};

    #[tokio::test]
    async fn a_piece_that_is_too_long_is_refused_by_the_field_that_makes_it_shorter() {
        let announced = |bytes: usize| {
            let request = Request::builder().header(CONTENT_TYPE, "application/json");
            request.header(CONTENT_LENGTH, bytes).body(Body::empty()).unwrap()
        };
        let bodies = Bodies::new(limits());
        let longest = REQUEST_TOKENS * "4294967295,".len();
        body::json::<Value>(&bodies, announced(longest)).await.unwrap();
        let error = body::json::<Value>(&bodies, announced(longest + 1)).await.unwrap_err();
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(error.message.contains("batch.microRolloutBatchSize"), "{error}");
    }
}
