//! A real Kubernetes for tests: etcd, API server, controller manager and scheduler as processes of this machine, kwok's fake
//! nodes with GPUs, and what a test does with them. The programs are pinned and built in `tests/cluster`.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! let cluster = ppo_tests::ControlPlane::shared().await?;
//! let namespace = cluster.namespace("example").await?;
//! namespace.gpu_nodes(2, 8).await?;
//! let jobs = namespace.api::<ppo_crds::PpoJob>();
//! # Ok(())
//! # }
//! ```
//!
//! With `PPO_TEST_KUBECONFIG` set the tests use that cluster and start nothing (fake nodes then need kwok in it). With
//! `PPO_TEST_KEEP` set folders and logs of a control plane stay behind, and so do namespaces. With `PPO_TEST_SKIP=never` a test
//! fails that this machine cannot run.

mod actor;
mod audit;
mod command;
mod component;
mod control_plane;
mod crd;
mod credentials;
mod fake_kubelet;
mod faults;
mod gang;
mod go_module;
mod gpus;
mod image;
mod machine;
mod namespace;
mod node;
mod nodes;
mod operator;
mod options;
mod pods;
mod ports;
mod programs;
mod prometheus;
mod service_account;
mod simulated_gpu;
mod skip;
mod state;
mod supervisor;
mod wait;

pub use actor::Actor;
pub use audit::{AuditEvent, ObjectRef, Requests, ResponseStatus, User};
pub use command::{Finished, run};
pub use component::Component;
pub use control_plane::ControlPlane;
pub use crd::install_crd;
pub use faults::{Fault, Faults, Moment, Process};
pub use gang::GangScheduler;
pub use go_module::definitions;
pub use gpus::Gpus;
pub use image::Image;
pub use machine::lacking;
pub use namespace::Namespace;
pub use node::{NODE, RealCluster};
pub use nodes::NODE_LABEL;
pub use operator::Operator;
pub use options::{Kubernetes, Options};
pub use pods::{HOLD_START, HOLD_STOP, PodFailure};
pub use ports::free_port;
pub use programs::Programs;
pub use prometheus::{MONITORING, Prometheus, RELEASE};
pub use simulated_gpu::SimulatedGpus;
pub use skip::skipped;
pub use state::{State, state};
pub use wait::{PATIENCE, wait_for};
