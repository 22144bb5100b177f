//! How to fix a problem, chosen by the words that schedulers, kubelets and API servers use. `Finding::named`
//! replaces `<job>` and `<pod>`.
//!
//! Sources of the words: kube-scheduler's plugins (`pkg/scheduler/framework/plugins`), scheduler-plugins' coscheduling,
//! Volcano's gang plugin, kubelet's image manager and containerd's resolver.

use ppo_crds::spec::Gang;

use super::evidence::Evidence;
use super::{limit_range, taints};
use crate::plugin::pods;

/// A rule: when the words hold this, this helps.
type Rule = (&'static str, &'static str);

/// For a pod without a node, or a gang without its nodes.
pub fn of_scheduling(words: &str, evidence: &Evidence) -> String {
    const RULES: [Rule; 13] = [
        (
            "enough sibling pods",
            "the gang waits for its other pods to be created; if that lasts, see the operator's log",
        ),
        (
            "PodGroup not found",
            "the gang's PodGroup is gone: the operator makes it again; if that lasts, see the operator's log",
        ),
        (
            "unbound immediate PersistentVolumeClaims",
            "the claim has no volume: `kubectl get pvc`, and does its StorageClass exist?",
        ),
        (
            "is being deleted",
            "wait until the claim is gone and create it anew, or name another one: `kubectl get pvc`",
        ),
        (
            "persistentvolumeclaim",
            "create the claim, or correct its name in the manifest: `kubectl get pvc`",
        ),
        ("volume node affinity conflict", BOUND_ELSEWHERE),
        ("PersistentVolume's node affinity", BOUND_ELSEWHERE),
        (
            "available persistent volumes to bind",
            "the claim gets no volume on these nodes: `kubectl describe pvc`, and does its StorageClass make volumes where they are?",
        ),
        (
            "exceed max volume count",
            "the nodes have as many volumes as they can: add nodes",
        ),
        (
            "ReadWriteOncePod",
            "another pod holds the claim, whose access mode ReadWriteOncePod is for one pod alone: that pod has to end first",
        ),
        (
            "Insufficient cpu",
            "free CPUs, or ask for fewer in resources of spec.roles.<role>.template",
        ),
        (
            "Insufficient memory",
            "free memory, or ask for less in resources of spec.roles.<role>.template",
        ),
        ("Too many pods", "the nodes are full of pods: add nodes"),
    ];
    // Where no taint is left that a pod could tolerate.
    const BEYOND_TAINTS: [Rule; 3] = [
        (
            "node affinity/selector",
            "no node has the labels that spec.roles.<role>.template asks for: `kubectl get nodes --show-labels`",
        ),
        ("were unschedulable", taints::CORDONED),
        (
            "no nodes available to schedule pods",
            "the cluster has no nodes: add some",
        ),
    ];
    let taints = taints::of(words);
    // An extended resource, `Insufficient nvidia.com/gpu`, comes first: it is what such jobs lack, and other words follow.
    if let Some(resource) = insufficient(words).filter(|resource| resource.contains('/')) {
        let asked = evidence
            .living()
            .filter_map(|pod| pods::asked_for(pod, &resource))
            .max();
        let each = asked
            .map(|asked| format!(" (its pods ask for up to {asked} on one node)"))
            .unwrap_or_default();
        let gang = match evidence.job.spec.scheduling.gang {
            Gang::None => "",
            _ => ", all of them at once",
        };
        let free = format!(
            "free or add nodes with {resource}{each}{gang}; or ask for fewer: spec.roles.rollout.replicas, or in a new job gpusPerNode and \
             gpusPerReplica of spec.roles (`kubectl ppo plan {}` adds them up)",
            evidence.name()
        );
        return taints.beside(of_other_nodes(words, &taints, free));
    }
    let fix = known(&RULES, words).map(|fix| match words.contains("Insufficient ") {
        true => taints.beside(of_other_nodes(words, &taints, fix)),
        false => taints.beside(fix),
    });
    fix.or_else(|| taints.advice())
        .or_else(|| known(&BEYOND_TAINTS, words))
        .or_else(|| taints.at_last())
        .unwrap_or_else(|| "make room, or change what the pods ask for: `kubectl ppo plan <job>` shows it".into())
}

const BOUND_ELSEWHERE: &str =
    "the volume is bound to a zone or node without room: use a volume that every node can mount";

/// Where some nodes lack room, what keeps the pods from the others, which may have it: of a node the scheduler names its first obstacle
/// alone, and asks for room last but for volumes.
fn of_other_nodes(words: &str, taints: &taints::Taints<'_>, fix: String) -> String {
    const OTHERS: [Rule; 4] = [
        (
            "Pod's node affinity/selector",
            "nodes lack the labels that spec.roles.<role>.template asks for (`kubectl get nodes --show-labels`)",
        ),
        ("were unschedulable", taints::CORDONED),
        ("volume node affinity conflict", BOUND_ELSEWHERE),
        ("PersistentVolume's node affinity", BOUND_ELSEWHERE),
    ];
    let toleration = taints
        .toleration()
        .map(|toleration| format!("{toleration}: other nodes may have room"));
    let others = OTHERS.iter().filter(|(key, _)| words.contains(key));
    let others = toleration.into_iter().chain(others.map(|(_, fix)| (*fix).to_owned()));
    others.fold(fix, |said, other| format!("{said}; or, {other}"))
}

/// For a job of Volcano's of which its scheduler says nothing: it passes jobs over whose queue it does not have.
pub fn of_volcanos_queue(evidence: &Evidence) -> Option<String> {
    let is_volcanos = evidence.living().any(|pod| pods::scheduler(pod) == "volcano");
    let queue = match evidence.job.spec.scheduling.queue.as_str() {
        "" => "default",
        named => named,
    };
    is_volcanos.then(|| {
        format!(
            "or, where Volcano has no open queue {queue} (`kubectl get queues.scheduling.volcano.sh`), make or open it, or name another \
             in spec.scheduling.queue while the job is suspended"
        )
    })
}

/// For pods that Kueue queues one by one, beside their job (`pkg/controller/jobs/pod/pod_webhook.go`).
pub const OF_PODS_QUEUED_TWICE: &str = "take `pod` out of integrations.frameworks in Kueue's configuration, or call the LocalQueue `default` of \
     this namespace otherwise, and suspend and resume the job; or have Kueue know PpoJobs (integrations.externalFrameworks: \
     [PpoJob.v1alpha1.ppojob.dev], with the right to get, list and watch them) and give the PpoJob the label kueue.x-k8s.io/queue-name";

/// For a pod that the API server refuses.
pub fn of_creation(words: &str) -> String {
    const RULES: [Rule; 10] = [
        // Volcano's webhook, of a PodGroup (pkg/webhooks/admission/podgroups).
        ("unable to find queue", OF_QUEUE),
        ("to queue with state", OF_QUEUE),
        ("ValidatingAdmissionPolicy", OF_POLICY),
        ("denied the request", OF_POLICY),
        (
            "failed calling webhook",
            "the webhook that is named does not answer: whoever runs the cluster starts what serves it; the job goes on by itself",
        ),
        (
            "belongs to",
            "delete the object that has the name, or give the job another name",
        ),
        (
            "has lost labels",
            "put the labels back by that command, or delete the object: the job goes on by itself",
        ),
        (
            "PodSecurity",
            "the namespace's pod security level forbids what spec.roles.<role>.template asks for",
        ),
        (
            "service account",
            "the service account that spec.roles.<role>.template names does not exist",
        ),
        (
            "no PriorityClass",
            "create the PriorityClass, or correct spec.scheduling.priorityClassName",
        ),
    ];
    of_quota(words)
        .or_else(|| limit_range::advice(words))
        .unwrap_or_else(|| first(&RULES, words, "correct what the API server objects to"))
}

/// Of a ResourceQuota that is used up, or that wants a pod to say what it asks for (plugin/pkg/admission/resourcequota).
fn of_quota(words: &str) -> Option<String> {
    let quota = |after: &str| words.split_once(after)?.1.split([',', ':', ' ']).next();
    let full = quota("exceeded quota: ").map(|name| {
        format!("raise the namespace's ResourceQuota {name}, or ask for less: `kubectl describe resourcequota {name}`")
    });
    full.or_else(|| {
        let name = quota("failed quota: ")?;
        Some(format!(
            "the ResourceQuota {name} takes no pod that leaves out what it counts: give each container what is named, in resources of \
             spec.roles.<role>.template; for all jobs a LimitRange of the namespace gives it, or the chart's value worker.podTemplate"
        ))
    })
}

const OF_POLICY: &str = "change what the cluster's policy objects to in spec.roles.<role>.template, or have whoever runs the cluster change the policy; \
                         the job goes on by itself";

const OF_QUEUE: &str = "make or open the queue (`kubectl get queues.scheduling.volcano.sh`), or suspend the job, name an open one in \
                        spec.scheduling.queue, and resume it";

/// For an image that cannot be pulled; `place` is where another one is named.
pub fn of_image(words: &str, place: &str) -> String {
    // Before what such answers have in common with others.
    const REFUSED: [Rule; 4] = [
        (
            "no match for platform",
            "the image has no build for the node's processor: another image, or the nodeSelector kubernetes.io/arch in spec.roles.<role>.template",
        ),
        ("failed to authorize", LOG_IN),
        ("Unauthorized", LOG_IN),
        ("403 Forbidden", LOG_IN),
    ];
    const MISNAMED: [Rule; 4] = [
        ("not found", "correct the image's name or tag"),
        ("manifest unknown", "correct the image's tag"),
        ("invalid reference format", "correct the image's name"),
        ("couldn't parse image", "correct the image's name"),
    ];
    const RULES: [Rule; 8] = [
        ("toomanyrequests", LIMITED),
        ("Too Many Requests", LIMITED),
        ("unauthorized", LOG_IN),
        ("denied", LOG_IN),
        ("authentication required", LOG_IN),
        (
            "no such host",
            "the node cannot find the registry: correct the image's name, or the node's DNS",
        ),
        ("no space left", "the node's disk is full: free space on it"),
        (
            "never",
            "the image is not on the node and may not be pulled: load it there, or change imagePullPolicy",
        ),
    ];
    if let Some(fix) = known(&REFUSED, words) {
        return fix;
    }
    if let Some((_, fix)) = MISNAMED.iter().find(|(key, _)| words.contains(key)) {
        return format!("{fix} {place}");
    }
    let words = words.replace("Never", "never");
    first(
        &RULES,
        &words,
        "make sure that the image exists and that the node reaches the registry",
    )
}

const LIMITED: &str = "the registry limits pulls: log in by imagePullSecrets, or use a mirror";
const LOG_IN: &str = "give the pods credentials: imagePullSecrets in spec.roles.<role>.template (a private image that does not exist reads the same)";

/// For a pod that cannot be prepared: volumes, secrets, sandboxes.
pub fn of_preparation(words: &str) -> String {
    const RULES: [Rule; 9] = [
        // The object is there, and the kubelet's copy of it is not yet.
        ("failed to sync", "wait a little: the kubelet tries again by itself"),
        (
            "couldn't find key",
            "add the key that is named, or correct it in spec.roles.<role>.template",
        ),
        (
            "secret",
            "create the secret, or correct its name in spec.roles.<role>.template",
        ),
        (
            "configmap",
            "create the config map, or correct its name in spec.roles.<role>.template",
        ),
        (
            "Multi-Attach",
            "the volume is held by another node: the pod there must go first, or use a ReadWriteMany claim",
        ),
        (
            "AttachVolume",
            "the storage system cannot attach the volume: see its driver's logs",
        ),
        (
            "MountVolume",
            "the node cannot mount the volume: see the storage driver's pods on that node",
        ),
        (
            "runAsNonRoot",
            "the image runs as root, which the pods forbid: use an image with a user, or set runAsUser in spec.roles.<role>.template",
        ),
        (
            "sandbox",
            "the node's network or container runtime is not well: see the kubelet and CNI pods on that node",
        ),
    ];
    first(
        &RULES,
        words,
        "`kubectl describe pod <pod>` shows all events of the pod",
    )
}

/// For a job that failed, by the condition's reason.
pub fn of_failure(reason: &str, message: &str) -> String {
    const RULES: [Rule; 9] = [
        ("Diverged", DIVERGED),
        (
            "RewardFailed",
            "bring the reward's servers back, or raise spec.roles.reward.remote.maxRetries",
        ),
        ("DataError", "correct the line of the prompts that the message names"),
        (
            "NotRunningInTime",
            "make room first (`kubectl ppo plan <job>` shows what the job needs), or raise spec.runPolicy.preRunningDeadlineSeconds",
        ),
        (
            "Hung",
            "see what the named stage and pod waited for, or raise spec.runPolicy.progressDeadlineSeconds where stages are this long",
        ),
        (
            "DeadlineExceeded",
            "raise spec.runPolicy.activeDeadlineSeconds; the last checkpoint is a start for the next run",
        ),
        ("RestartsExhausted", BUDGET),
        (
            "InvalidSpec",
            "correct the manifest as the message says (`kubectl ppo plan -f FILE` checks it)",
        ),
        ("OOMKilled", OUT_OF_MEMORY),
    ];
    let found = RULES.iter().find(|(key, _)| reason == *key);
    let found = found.or_else(|| RULES.iter().find(|(key, _)| message.contains(key)));
    found
        .map_or("put right what the message names", |(_, fix)| fix)
        .to_string()
}

/// For a process that used more memory than its limit.
pub const OUT_OF_MEMORY: &str = "raise the memory limit in spec.roles.<role>.template (where that has none, a LimitRange of the namespace gave \
                                 it, or the chart's value worker.podTemplate), or make the pieces smaller: spec.batch.microTrainBatchSize, \
                                 microRolloutBatchSize, spec.roles.rollout.kvCacheMebibytes";
/// For a run that diverged.
pub const DIVERGED: &str = "lower spec.optimizer.actorLearningRate or raise spec.algorithm.kl.coef, and go on from a checkpoint of before; another try with the same numbers ends the same way";
/// For a job whose restarts are used up.
const BUDGET: &str =
    "put the failure itself right; spec.failurePolicy.maxRestarts allows more restarts where failures are expected";

fn first(rules: &[Rule], words: &str, otherwise: &str) -> String {
    known(rules, words).unwrap_or_else(|| otherwise.to_string())
}

/// The remedy of the first rule that fits.
pub fn known(rules: &[Rule], words: &str) -> Option<String> {
    let found = rules.iter().find(|(key, _)| words.contains(key));
    found.map(|(_, fix)| (*fix).to_string())
}

/// The resource in `5 Insufficient nvidia.com/gpu`; extended ones before cpu and memory.
fn insufficient(words: &str) -> Option<String> {
    let names = words.split("Insufficient ").skip(1);
    let mut names: Vec<&str> = names.filter_map(|rest| rest.split([' ', ',']).next()).collect();
    names.sort_by_key(|name| !name.contains('/'));
    names.first().map(|name| name.trim_end_matches('.').to_string())
}
