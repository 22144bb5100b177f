//! What the API server can refuse by itself: rules over several fields, and what is fixed at creation. Single-field limits
//! are in the schema; [`validate`](crate::validate) says all of it again, with better words and suggestions, and more.

use serde_json::{Value, json};

/// A CEL rule at a node of the schema. `rule` sees the node as `self`.
struct Rule {
    /// Field names from the root, joined by dots; `[]` steps into a list's items.
    at: &'static str,
    rule: &'static str,
    message: &'static str,
    /// The field of the node that a refusal names. Default: the node.
    field: Option<&'static str>,
}

const fn rule(at: &'static str, rule: &'static str, message: &'static str) -> Rule {
    Rule {
        at,
        rule,
        message,
        field: None,
    }
}

impl Rule {
    const fn naming(self, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..self
        }
    }
}

/// A block that a running job cannot change.
const fn fixed(at: &'static str) -> Rule {
    rule(at, "self == oldSelf", "fixed at creation: make a new PpoJob")
}

/// Where a model comes from.
const fn model_source(at: &'static str) -> Rule {
    rule(
        at,
        "(has(self.path) ? 1 : 0) + (has(self.pvc) ? 1 : 0) + (has(self.hub) ? 1 : 0) == 1",
        "give exactly one of path, pvc, hub",
    )
}

/// Where prompts come from.
const fn data_source(at: &'static str) -> Rule {
    rule(
        at,
        "(has(self.path) ? 1 : 0) + (has(self.paths) ? 1 : 0) + (has(self.pvc) ? 1 : 0) == 1",
        "give exactly one of path, paths, pvc",
    )
}

/// A path in a pod.
const fn absolute(at: &'static str) -> Rule {
    rule(
        at,
        "self.startsWith('/')",
        "is relative; in a pod only an absolute path has a meaning (or name a claim)",
    )
}

/// A path below the root of a volume.
const fn in_volume(at: &'static str) -> Rule {
    rule(
        at,
        "!self.split('/').exists(part, part == '..')",
        "must not contain '..'",
    )
}

/// Samples of a step, from the spec.
macro_rules! samples {
    () => {
        "(self.batch.rolloutBatchSize * self.batch.nSamplesPerPrompt)"
    };
}

/// Whether the estimator compares the samples of a group ([`Estimator::needs_group`](crate::spec::Estimator::needs_group)), from the spec.
macro_rules! needs_group {
    () => {
        "self.algorithm.advantage.estimator in ['rloo', 'grpo', 'drGrpo', 'reinforcePlusPlusBaseline']"
    };
}

/// Ranks of a role, from the spec: one a GPU, or one a pod without any.
macro_rules! ranks {
    ($role:literal) => {
        concat!(
            "(self.roles.",
            $role,
            ".nodes * (self.roles.",
            $role,
            ".gpusPerNode > 0 ? self.roles.",
            $role,
            ".gpusPerNode : 1))"
        )
    };
}

/// Whether a KL is measured, from the node of `algorithm`: a coefficient that is left out is the profile's.
macro_rules! measures_kl {
    ($algorithm:literal) => {
        concat!(
            "(has(",
            $algorithm,
            ".kl.coef) ? ",
            $algorithm,
            ".kl.coef > 0.0 : ",
            $algorithm,
            ".profile != 'verl')"
        )
    };
}

#[rustfmt::skip]
const RULES: &[Rule] = &[
    rule("", "size(self.metadata.name) <= 48 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must have at most 48 characters, lower-case letters, digits and '-', and start with a letter: pods are \
         named <job>-<role>-<index>"),

    rule("spec", "!(has(self.episodes) && has(self.steps))", "give episodes or steps, not both"),
    rule("spec.optimizer", "!has(self.warmupRatio) || self.warmupUpdates == 0", "give warmupRatio or warmupUpdates, not both"),
    rule("spec", concat!("!(", needs_group!(), ") || self.batch.nSamplesPerPrompt > 1"),
        "algorithm.advantage.estimator compares the samples of a prompt: batch.nSamplesPerPrompt must be above 1"),
    rule("spec", concat!("!has(self.batch.dynamicSampling) || ", needs_group!()),
        "batch.dynamicSampling is for algorithm.advantage.estimator rloo, grpo, drGrpo and reinforcePlusPlusBaseline: the others learn from \
         groups of equal scores, too"),
    rule("spec", "!has(self.model.critic) || self.algorithm.advantage.estimator == 'gae'",
        "model.critic is for algorithm.advantage.estimator: gae only; the other estimators have no critic"),
    rule("spec", concat!("!has(self.model.reference) || ", measures_kl!("self.algorithm")),
        "model.reference is not used where algorithm.kl.coef is 0, the default of profile verl; remove it or give a coefficient"),
    rule("spec.algorithm", concat!("!(has(self.kl.stopAbove) || has(self.kl.controller) && has(self.kl.controller.adaptive)) || ",
        measures_kl!("self")),
        "kl.stopAbove and kl.controller.adaptive need a KL, and kl.coef is 0, the default of profile verl; remove them or give a coefficient"),
    // AlpacaFarm's controller does not look at samples.
    rule("spec", concat!("!has(self.algorithm.kl.controller) || !has(self.algorithm.kl.controller.adaptive) || \
        self.algorithm.profile == 'alpacafarm' || self.algorithm.kl.controller.adaptive.horizon > 0.2 * double(", samples!(), ")"),
        "algorithm.kl.controller.adaptive.horizon must be above a fifth of batch.rolloutBatchSize x batch.nSamplesPerPrompt: one step could \
         take the coefficient to 0 or below"),
    rule("spec.model", "!(has(self.adapter) && has(self.reference))",
        "reference is not used with adapter: the reference is the policy without it; remove one of the two"),
    rule("spec", "!has(self.model.adapter) || !has(self.roles.reference.dtype) || self.roles.reference.dtype == self.model.dtype",
        "roles.reference.dtype is model.dtype with model.adapter: the reference is the policy without it, in the actor's own weights"),
    rule("spec.model.adapter.targets", "self.all(target, self.exists_one(other, other == target))",
        "name each projection once"),
    // Only at creation: a running job hands prompts out to however many engines there are, so scaling is free.
    rule("spec", "oldSelf.hasValue() || self.batch.rolloutBatchSize % self.roles.rollout.replicas == 0",
        "roles.rollout.replicas must divide batch.rolloutBatchSize"),
    rule("spec", "!has(self.batch.trainBatchSize) || \
        (self.batch.rolloutBatchSize * self.batch.nSamplesPerPrompt) % self.batch.trainBatchSize == 0",
        "batch.trainBatchSize must divide batch.rolloutBatchSize x batch.nSamplesPerPrompt"),
    rule("spec", concat!("!has(self.batch.trainBatchSize) || self.batch.trainBatchSize % ", ranks!("actor"), " == 0"),
        "batch.trainBatchSize must be a multiple of the actor's ranks (nodes x gpusPerNode)"),
    rule("spec", concat!("!has(self.batch.microTrainBatchSize) || (has(self.batch.trainBatchSize) ? self.batch.trainBatchSize : ",
        samples!(), ") % (self.batch.microTrainBatchSize * ", ranks!("actor"), ") == 0"),
        "batch.microTrainBatchSize x the actor's ranks (nodes x gpusPerNode) must divide batch.trainBatchSize, or the samples of a step where \
         that is left out"),
    // A default fits.
    rule("spec", concat!(samples!(), " % (", ranks!("actor"),
        " * (has(self.batch.microRolloutBatchSize) ? self.batch.microRolloutBatchSize : 1)) == 0"),
        "batch.rolloutBatchSize x batch.nSamplesPerPrompt must be a multiple of the actor's ranks (nodes x gpusPerNode) x \
         batch.microRolloutBatchSize"),
    rule("spec", "has(self.prompts.labelField) || !self.roles.reward.rules.exists(r, has(r.exactMatch) || has(r.numericMatch) || \
        has(r.mathMatch))", "exactMatch, numericMatch and mathMatch compare with a label: give prompts.labelField"),

    model_source("spec.model.policy"),
    model_source("spec.model.critic"),
    model_source("spec.model.reference"),
    model_source("spec.roles.reward.model.source"),
    rule("spec.prompts", "!has(self.chatTemplateVariables) || self.chatTemplate",
        "chatTemplateVariables are for the chat template: give chatTemplate: true"),
    data_source("spec.prompts.source"),
    rule("spec.evaluation", "self.nSamplesPerPrompt == 1 || self.temperature > 0.0",
        "greedy samples of a prompt are all equal: nSamplesPerPrompt above 1 needs a temperature above 0"),
    data_source("spec.evaluation.source"),
    rule("spec.checkpoint", "(has(self.path) ? 1 : 0) + (has(self.pvc) ? 1 : 0) + (has(self.volumeClaim) ? 1 : 0) <= 1",
        "give at most one of path, pvc, volumeClaim"),
    rule("spec.checkpoint.volumeClaim.accessModes", "size(self) == 0 || self.exists(mode, mode != 'ReadOnlyMany')",
        "ReadOnlyMany alone cannot be written, and checkpoints are: give ReadWriteOnce, or ReadWriteMany for several actor pods"),
    rule("spec", "self.roles.actor.nodes == 1 || !has(self.checkpoint.volumeClaim) || !has(self.checkpoint.volumeClaim.accessModes) || \
        size(self.checkpoint.volumeClaim.accessModes) == 0 || \
        self.checkpoint.volumeClaim.accessModes.all(mode, mode == 'ReadOnlyMany') || \
        self.checkpoint.volumeClaim.accessModes.exists(mode, mode == 'ReadWriteMany')",
        "checkpoint.volumeClaim.accessModes needs ReadWriteMany: roles.actor.nodes is above 1, and each actor pod writes there"),
    absolute("spec.model.policy.path"),
    absolute("spec.model.critic.path"),
    absolute("spec.model.reference.path"),
    absolute("spec.roles.reward.model.source.path"),
    absolute("spec.prompts.source.path"),
    absolute("spec.prompts.source.paths[]"),
    absolute("spec.evaluation.source.path"),
    absolute("spec.evaluation.source.paths[]"),
    absolute("spec.checkpoint.path"),
    in_volume("spec.model.policy.pvc.path"),
    in_volume("spec.model.critic.pvc.path"),
    in_volume("spec.model.reference.pvc.path"),
    in_volume("spec.roles.reward.model.source.pvc.path"),
    in_volume("spec.prompts.source.pvc.path"),
    in_volume("spec.evaluation.source.pvc.path"),

    rule("spec.generation", "self.minNewTokens <= self.maxNewTokens", "minNewTokens must be at most maxNewTokens"),
    rule("spec.algorithm.kl.controller", "has(self.fixed) != has(self.adaptive)", "give exactly one of fixed, adaptive"),
    rule("spec.algorithm", "self.ratio != 'sequence' || self.profile != 'trl' || self.advantage.estimator != 'rloo'",
        "ratio: sequence is not for rloo under trl, which has one ratio per sequence already: use token, or another profile"),
    rule("spec.algorithm", "self.surrogate != 'cispo' || self.profile != 'trl' || self.advantage.estimator != 'rloo'",
        "surrogate: cispo is not for rloo under trl, which takes a response as one action: use clipped, or another profile"),
    rule("spec.algorithm", "self.surrogate != 'cispo' || !has(self.clip.dual) || self.clip.dual == 0.0",
        "clip.dual is not for surrogate: cispo, which has no dual clip: remove it, or give 0"),
    rule("spec.algorithm", "!self.maskTruncated || (has(self.aggregation) ? self.aggregation != 'paddedMean' && \
        (self.profile != 'alpacafarm' || self.aggregation != 'tokenMean') : self.profile != 'alpacafarm')",
        "maskTruncated is not for means that count padding, paddedMean and the default of alpacafarm: give another aggregation"),
    rule("spec.algorithm.advantage", "self.deviation == 'group' || self.estimator == 'grpo'",
        "deviation: batch is for estimator: grpo; the others divide by no deviation"),
    rule("spec.algorithm", "!has(self.truncatedImportanceSampling) || !has(self.rolloutCorrection)",
        "give truncatedImportanceSampling or rolloutCorrection, not both"),
    rule("spec.algorithm.rolloutCorrection", "self.low < self.high", "low must be below high"),
    rule("spec.algorithm.rolloutCorrection", "self.level != 'geometric' || self.outside == 'mask'",
        "level: geometric is for outside: mask, which leaves responses out; with truncate use token or sequence"),
    rule("spec.algorithm.clip.dual", "self == 0.0 || self > 1.0", "must be above 1, or 0 for off"),
    rule("spec.algorithm.score.clip", "self.min < self.max", "min must be below max"),

    rule("spec.roles.rollout", "self.minReplicas <= self.replicas", "minReplicas must be at most replicas"),
    rule("spec.roles.rollout", "self.engine != 'builtin' || self.blockSize == 16",
        "blockSize is 16 with engine: builtin, whose kernels are made for it; leave it out"),
    rule("spec.roles.rollout", "self.engine != 'vllm' || self.maxBatchTokens >= self.maxSequences",
        "maxBatchTokens must be at least maxSequences with engine: vllm"),
    rule("spec.roles.reward", "has(self.model) || has(self.remote) || size(self.rules) > 0",
        "give at least one of model, rules, remote: there is no default reward"),
    rule("spec.roles.reward", "!(has(self.model) || has(self.remote) || size(self.rules) > 0) || \
        (has(self.model) && self.model.weight != 0.0) || (has(self.remote) && self.remote.weight != 0.0) || \
        self.rules.exists(r, (has(r.weight) ? r.weight : 1.0) != 0.0)",
        "every source has weight 0, so every score would be 0"),
    rule("spec.roles.reward.rules[]", "(has(self.exactMatch) ? 1 : 0) + (has(self.numericMatch) ? 1 : 0) + \
        (has(self.mathMatch) ? 1 : 0) + (has(self.regex) ? 1 : 0) + (has(self.length) ? 1 : 0) + (has(self.json) ? 1 : 0) == 1",
        "give exactly one of exactMatch, numericMatch, mathMatch, regex, length, json"),
    rule("spec.roles.reward.rules[].length", "(has(self.min) ? self.min : 0) <= self.max", "min must be at most max"),
    rule("spec.roles.reward.remote.urls", "self.all(url, url.lowerAscii().startsWith('http://') || url.lowerAscii().startsWith('https://'))",
        "each URL must start with http:// or https://"),

    // Its pods belong to the gang that they were made for.
    rule("", "!has(self.status) || !has(self.status.activeSince) || (self.spec.scheduling.gang == oldSelf.spec.scheduling.gang && \
        self.spec.scheduling.queue == oldSelf.spec.scheduling.queue)",
        "scheduling.gang and scheduling.queue change only while the job wants no pods: suspend it first (runPolicy.suspend: true), \
         change them, and resume it").naming(".spec.scheduling"),
    // What a running job cannot change. The deadlines, suspend, the clean-up, replicas, minReplicas, the priority class, the failure
    // policy and the pod templates (for pods made afterwards) may change.
    fixed("spec.model"),
    fixed("spec.prompts"),
    fixed("spec.generation"),
    fixed("spec.algorithm"),
    fixed("spec.batch"),
    fixed("spec.optimizer"),
    fixed("spec.seed"),
    fixed("spec.overlap"),
    fixed("spec.checkpoint"),
    fixed("spec.telemetry"),
    rule("spec", "has(self.evaluation) == has(oldSelf.evaluation) && (!has(self.evaluation) || self.evaluation == oldSelf.evaluation)",
        "evaluation is fixed at creation: make a new PpoJob"),
    rule("spec", "has(self.episodes) == has(oldSelf.episodes) && (!has(self.episodes) || self.episodes == oldSelf.episodes)",
        "episodes is fixed at creation: make a new PpoJob"),
    rule("spec", "has(self.steps) == has(oldSelf.steps) && (!has(self.steps) || self.steps == oldSelf.steps)",
        "steps is fixed at creation: make a new PpoJob"),
    rule("spec.runPolicy", "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "managedBy is fixed at creation: make a new PpoJob"),
    rule("spec.roles.actor", "self.nodes == oldSelf.nodes && self.gpusPerNode == oldSelf.gpusPerNode",
        "nodes and gpusPerNode are fixed at creation: make a new PpoJob"),
    rule("spec.roles.reference", "self.nodes == oldSelf.nodes && self.gpusPerNode == oldSelf.gpusPerNode",
        "nodes and gpusPerNode are fixed at creation: make a new PpoJob"),
    rule("spec.roles.reference", "has(self.dtype) == has(oldSelf.dtype) && (!has(self.dtype) || self.dtype == oldSelf.dtype)",
        "dtype is fixed at creation: make a new PpoJob"),
    rule("spec.roles.reward.placement", "self.nodes == oldSelf.nodes && self.gpusPerNode == oldSelf.gpusPerNode",
        "nodes and gpusPerNode are fixed at creation: make a new PpoJob"),
    fixed("spec.roles.reward.rules"),
    rule("spec.roles.reward", "has(self.model) == has(oldSelf.model) && (!has(self.model) || self.model == oldSelf.model)",
        "model is fixed at creation: make a new PpoJob"),
    rule("spec.roles.reward", "has(self.remote) == has(oldSelf.remote) && (!has(self.remote) || self.remote == oldSelf.remote)",
        "remote is fixed at creation: make a new PpoJob"),
    rule("spec.roles.rollout", "self.engine == oldSelf.engine && self.gpusPerReplica == oldSelf.gpusPerReplica && \
        self.blockSize == oldSelf.blockSize && self.maxBatchTokens == oldSelf.maxBatchTokens && \
        self.maxSequences == oldSelf.maxSequences && has(self.dtype) == has(oldSelf.dtype) && \
        (!has(self.dtype) || self.dtype == oldSelf.dtype) && has(self.kvCacheMebibytes) == has(oldSelf.kvCacheMebibytes) && \
        (!has(self.kvCacheMebibytes) || self.kvCacheMebibytes == oldSelf.kvCacheMebibytes)",
        "only replicas, minReplicas and template may change after creation"),
];

/// Adds the rules to the schema of the whole object.
pub(crate) fn insert(root: &mut Value) {
    for Rule {
        at,
        rule,
        message,
        field,
    } in RULES
    {
        let Some(node) = root.pointer_mut(&pointer(at)).and_then(Value::as_object_mut) else {
            continue;
        };
        let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Some(rules) = rules.as_array_mut() {
            let mut entry = json!({"rule": rule, "message": message});
            if let Some(field) = field {
                entry["fieldPath"] = json!(field);
            }
            // `oldSelf` is then an optional, absent at creation; without it a rule that names oldSelf runs on updates only.
            if rule.contains("oldSelf.hasValue()") {
                entry["optionalOldSelf"] = json!(true);
            }
            rules.push(entry);
        }
    }
}

/// `spec.rules[]` becomes `/properties/spec/properties/rules/items`.
fn pointer(at: &str) -> String {
    at.split('.')
        .filter(|name| !name.is_empty())
        .fold(String::new(), |path, name| match name.strip_suffix("[]") {
            Some(list) => format!("{path}/properties/{list}/items"),
            None => format!("{path}/properties/{name}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::has_kl;
    use crate::spec::{AlgorithmSpec, Profile};

    #[test]
    fn every_rule_has_found_its_place_in_the_schema() {
        let crd = serde_json::to_value(crate::crd().unwrap()).unwrap();
        let text = crd.to_string();
        let placed = text.matches(r#""rule":""#).count();
        assert_eq!(placed, RULES.len());
        for Rule { rule, message, .. } in RULES {
            assert!(message.len() < 2048, "the API server allows 2048 characters: {message}");
            assert!(!rule.contains("  "), "white space inside: {rule}");
        }
    }

    #[test]
    fn the_scheme_of_an_address_may_be_in_capitals_for_the_api_server_too() {
        let job = crate::manifest::tests::job("", "reward: {remote: {urls: ['HTTP://h/', 'HttpS://h/']}}");
        assert!(crate::validate(&job, &crate::Environment::cluster()).is_ok());
        let schemes = RULES.iter().filter(|rule| rule.rule.contains("://"));
        for Rule { rule, .. } in schemes {
            let starts = rule.matches(".startsWith(").count();
            assert_eq!(rule.matches(".lowerAscii().startsWith(").count(), starts, "{rule}");
        }
    }

    #[test]
    fn the_profile_that_the_rules_take_to_measure_no_kl_is_the_only_one() {
        for profile in [
            Profile::Default,
            Profile::Openrlhf,
            Profile::Verl,
            Profile::Trl,
            Profile::Alpacafarm,
        ] {
            let algorithm = AlgorithmSpec {
                profile,
                ..AlgorithmSpec::default()
            };
            assert_eq!(has_kl(&algorithm), profile != Profile::Verl, "{profile:?}");
        }
    }
}
