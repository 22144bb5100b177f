//! Is the installed CRD the one this operator was built with? On another it touches nothing, and says so: a field that the
//! API server prunes, or that the operator does not know, could cost a run.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use ppo_crds::CONTRACT_ANNOTATION;
use tokio::sync::watch;

/// Name of the CRD.
pub const CRD: &str = "ppojobs.ppojob.dev";

/// What is known of the installed CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contract {
    /// Not looked at yet.
    Unknown,
    /// It is this operator's.
    Same,
    /// It is not there, or not this operator's: why, and what to do.
    Differs(String),
}

/// Follows the CRD until it is dropped.
pub async fn follow(client: Client, own: String, state: watch::Sender<Contract>) {
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("metadata.name={CRD}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(crd) | Event::InitApply(crd)) => {
                listed = true;
                set(
                    &state,
                    compare(&own, crd.annotations().get(CONTRACT_ANNOTATION).map(String::as_str)),
                );
            }
            Ok(Event::Init) => listed = false,
            Ok(Event::InitDone) if listed => {}
            Ok(Event::InitDone | Event::Delete(_)) => {
                let message = format!("the CRD {CRD} is not installed: apply crds/ppojob.yaml, or install the chart");
                set(&state, Contract::Differs(message));
            }
            Err(error) => tracing::warn!(%error, "the CRD cannot be watched; trying again"),
        }
    }
}

fn set(state: &watch::Sender<Contract>, contract: Contract) {
    let changed = *state.borrow() != contract;
    if !changed {
        return;
    }
    match &contract {
        Contract::Differs(why) => tracing::error!("{why}"),
        Contract::Same | Contract::Unknown => tracing::info!("the installed CRD is this operator's"),
    }
    state.send_replace(contract);
}

fn compare(own: &str, installed: Option<&str>) -> Contract {
    match installed {
        Some(installed) if installed == own => Contract::Same,
        installed => Contract::Differs(format!(
            "the CRD {CRD} has schema {}, this operator {} was built with {own}: it touches nothing until both are of one \
             version; apply the CRD that belongs to it (`ppo-operator crd`, or helm upgrade)",
            installed.unwrap_or("unknown"),
            env!("CARGO_PKG_VERSION"),
        )),
    }
}

/// Waits until the CRD was looked at.
///
/// # Errors
/// When it could not be within `deadline`.
pub async fn looked_at(mut state: watch::Receiver<Contract>, deadline: Duration) -> anyhow::Result<()> {
    let known = state.wait_for(|contract| *contract != Contract::Unknown);
    match tokio::time::timeout(deadline, known).await {
        Ok(_) => Ok(()),
        Err(_) => anyhow::bail!(
            "the CRD {CRD} could not be read for {} s; may the operator's service account get, list and watch it?",
            deadline.as_secs()
        ),
    }
}
