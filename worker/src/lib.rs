//! The data plane of PPO post-training: generation, scoring, reward shaping, advantages, the clipped update, checkpoints
//! and metrics, on libtorch. This is the only crate that may name `tch`.

pub mod actor;
pub mod backoff;
pub mod cli;
pub mod contained;
pub mod convert;
pub mod data;
pub mod device;
pub mod disk;
pub mod engine;
pub mod http_client;
pub mod hub;
pub mod manifest;
pub mod math;
pub mod model;
pub mod native;
pub mod outcome;
pub mod output;
pub mod place;
pub mod plan;
pub mod ppo;
pub mod ranks;
pub mod reference;
pub mod report;
pub mod reward;
pub mod roles;
pub mod rollout;
pub mod run;
pub mod serving;
pub mod stages;
pub mod stop;
pub mod supervised;
pub mod telemetry;
pub mod tokenizer;
pub mod trainer;
pub mod vllm;
