//! The blocks of the question, each answered by the function the trainer calls.

use anyhow::{Context, Result};
use ppo_crds::run_config;
use ppo_crds::spec::{Estimator, Profile};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::block::Block;
use super::names;
use crate::ppo::advantage::Advantages;
use crate::ppo::shape::Shaped;

/// The settings of the whole question, and what later blocks may take from earlier ones.
pub(super) struct Question {
    pub profile: Profile,
    pub kind: Kind,
    pub shape: Option<ShapeBlock>,
    pub advantage: Option<AdvantageBlock>,
}

pub(super) struct ShapeBlock {
    pub logprobs: Tensor,
    pub mask: Tensor,
    pub score: run_config::Score,
    pub shaped: Shaped,
}

pub(super) struct AdvantageBlock {
    pub estimator: Estimator,
    pub mask: Tensor,
    pub values: Option<Tensor>,
    pub result: Advantages,
}

/// The blocks in the order they are answered.
const BLOCKS: [&str; 7] = [
    "shape",
    "advantage",
    "policyLoss",
    "valueLoss",
    "kl",
    "klController",
    "whiten",
];

pub(super) fn answer(json: &Value) -> Result<Value> {
    let known: Vec<&str> = ["profile", "dtype"].into_iter().chain(BLOCKS).collect();
    let top = Block::new("input", json, &known, Kind::Double)?;
    let mut question = Question {
        profile: top
            .text("profile")?
            .map_or(Ok(Profile::Default), |name| names::profile(&top.path("profile"), name))?,
        kind: top
            .text("dtype")?
            .map_or(Ok(Kind::Double), |name| names::dtype(&top.path("dtype"), name))?,
        shape: None,
        advantage: None,
    };
    let mut answers = Map::new();
    for name in BLOCKS {
        let Some(value) = top.value(name) else {
            continue;
        };
        let answer = match name {
            "shape" => question.shape(value),
            "advantage" => question.advantage(value),
            "policyLoss" => question.policy_loss(value),
            "valueLoss" => question.value_loss(value),
            "kl" => question.kl(value),
            "klController" => question.kl_controller(value),
            _ => question.whiten(value),
        }?;
        answers.insert(name.into(), answer);
    }
    Ok(Value::Object(answers))
}

impl Question {
    pub(super) fn earlier_mask(&self) -> Option<&Tensor> {
        let advantage = self.advantage.as_ref().map(|advantage| &advantage.mask);
        advantage.or(self.shape.as_ref().map(|shape| &shape.mask))
    }
}

pub(super) fn required_mask(block: &Block, earlier: Option<&Tensor>) -> Result<Tensor> {
    let mask = block.mask("mask")?.or(earlier.map(Tensor::shallow_clone));
    mask.with_context(|| format!("{}.mask is missing", block.name))
}
