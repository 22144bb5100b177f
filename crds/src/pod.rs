//! What a role's pod and the processes in it agree on: names, labels, ports, environment. The operator writes them, the
//! worker reads them, people and dashboards select by them.

use crate::spec::Role;

/// Labels of every object that the operator makes.
pub mod label {
    /// `app.kubernetes.io/name`: [`NAME_VALUE`].
    pub const NAME: &str = "app.kubernetes.io/name";
    /// Value of [`NAME`].
    pub const NAME_VALUE: &str = "ppojob";
    /// `app.kubernetes.io/managed-by`: [`MANAGED_BY_VALUE`].
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`].
    pub const MANAGED_BY_VALUE: &str = "ppo-operator";
    /// Name of the job.
    pub const JOB: &str = "ppojob.dev/job";
    /// Role of a pod or Service.
    pub const ROLE: &str = "ppojob.dev/role";
    /// Index of a pod in its role.
    pub const INDEX: &str = "ppojob.dev/index";
}

/// Annotations of the operator's objects.
pub mod annotation {
    /// Attempt of a pod.
    pub const ATTEMPT: &str = "ppojob.dev/attempt";
    /// On an actor's pod: the engines below which it waits, as `PPO_MIN_REPLICAS` tells it.
    pub const MIN_REPLICAS: &str = "ppojob.dev/min-replicas";
    /// On a job's ConfigMap: the image of `ppo-worker` that reads its content, for templates that name none.
    pub const WORKER_IMAGE: &str = "ppojob.dev/worker-image";
    /// On a job's ConfigMap: the image of vLLM that goes with it, for templates that name none.
    pub const VLLM_IMAGE: &str = "ppojob.dev/vllm-image";
    /// On a PpoJob: a new value of `<role>` or `<role>=<anything>` restarts that role once.
    pub const RESTART: &str = "ppojob.dev/restart";
}

/// Names of the environment variables that the operator sets in the container `worker`.
pub mod env {
    /// Name of the job.
    pub const JOB: &str = "PPO_JOB";
    /// The pod's role.
    pub const ROLE: &str = "PPO_ROLE";
    /// Index of the pod in its role: the node rank.
    pub const INDEX: &str = "PPO_INDEX";
    /// Pods of the role.
    pub const NODES: &str = "PPO_NODES";
    /// Ranks in this pod: one per GPU, or one on the CPU.
    pub const RANKS_PER_NODE: &str = "PPO_RANKS_PER_NODE";
    /// Which of them a process is, from 0. The pod's first process sets it for those it starts.
    pub const LOCAL_RANK: &str = "PPO_LOCAL_RANK";
    /// Ranks of the role over all its pods.
    pub const WORLD_SIZE: &str = "PPO_WORLD_SIZE";
    /// `host:port` where the role's ranks meet.
    pub const RENDEZVOUS: &str = "PPO_RENDEZVOUS";
    /// The pod's attempt; a process of an older one is refused everywhere.
    pub const ATTEMPT: &str = "PPO_ATTEMPT";
    /// The job's attempt.
    pub const JOB_ATTEMPT: &str = "PPO_JOB_ATTEMPT";
    /// File of the [`RunConfig`](crate::RunConfig), as JSON.
    pub const CONFIG: &str = "PPO_CONFIG";
    /// The job's bearer token, which roles ask of each other.
    pub const TOKEN: &str = "PPO_TOKEN";
    /// GPUs of the pod's container that computes. A process that was promised some and finds none ends, and one that was promised
    /// none leaves a node's GPUs alone.
    pub const GPUS: &str = "PPO_GPUS";
    /// What the pod computes on, where its template says so: auto, cpu, cuda, or cuda:N.
    pub const DEVICE: &str = "PPO_DEVICE";
    /// Engines below which an actor waits, as the job says when the pod is made: it may have changed since the configuration was.
    pub const MIN_REPLICAS: &str = "PPO_MIN_REPLICAS";
    /// Seconds for which a pod waits for others and for what it loads: runPolicy.preRunningDeadlineSeconds when the pod is made.
    pub const READY_DEADLINE: &str = "PPO_READY_DEADLINE_SECONDS";
    /// Seconds that an actor's pod has from SIGTERM until it is killed: the terminationGracePeriodSeconds that it was made with.
    pub const GRACE: &str = "PPO_GRACE_SECONDS";
    /// `host:port` of the vLLM server that this pod is the door of.
    pub const VLLM: &str = "PPO_VLLM";

    /// `host:port` of a role's headless Service: its DNS name lists the pods that exist.
    pub fn service(role: super::Role) -> &'static str {
        match role {
            super::Role::Rollout => "PPO_ROLLOUT_SERVICE",
            super::Role::Actor => "PPO_ACTOR_SERVICE",
            super::Role::Reference => "PPO_REFERENCE_SERVICE",
            super::Role::Reward => "PPO_REWARD_SERVICE",
        }
    }

    /// Questions that each pod of a role computes at once: one on each of its ranks. None for roles that are not asked questions.
    pub fn ranks(role: super::Role) -> Option<&'static str> {
        match role {
            super::Role::Rollout | super::Role::Actor => None,
            super::Role::Reference => Some("PPO_REFERENCE_RANKS"),
            super::Role::Reward => Some("PPO_REWARD_RANKS"),
        }
    }
}

/// Ports of the role pods.
pub mod port {
    /// The role's service, by name `http`.
    pub const HTTP: u16 = 8000;
    /// `/metrics`, `/healthz`, `/readyz` and the actor's `/report`, by name `metrics`.
    pub const METRICS: u16 = 9400;
    /// Where the actor's ranks meet, by name `rendezvous`.
    pub const RENDEZVOUS: u16 = 29500;
    /// vLLM behind its door, on localhost only.
    pub const VLLM: u16 = 8001;
}

/// Name of the container in which `ppo-worker` runs.
pub const WORKER_CONTAINER: &str = "worker";
/// Name of the container in which vLLM runs.
pub const VLLM_CONTAINER: &str = "vllm";
/// Folder of the mounted [`RunConfig`](crate::RunConfig).
pub const CONFIG_FOLDER: &str = "/etc/ppo";
/// Its file's name, which is also the ConfigMap's key.
pub const CONFIG_FILE: &str = "run-config.json";
/// Scratch space of a pod: below it, by the job's name, lie the records, and checkpoints that have no other place.
pub const RUNS_FOLDER: &str = "/runs";
/// Key of the token in the job's Secret.
pub const TOKEN_KEY: &str = "token";

/// `<job>-<role>`: the role's headless Service.
pub fn service_name(job: &str, role: Role) -> String {
    format!("{job}-{}", role.name())
}

/// `<job>-<role>-<index>`: a pod, and its host name.
pub fn pod_name(job: &str, role: Role, index: u32) -> String {
    format!("{job}-{}-{index}", role.name())
}

/// `<job>-config`: the ConfigMap with the [`RunConfig`](crate::RunConfig).
pub fn config_name(job: &str) -> String {
    format!("{job}-config")
}

/// `<job>-token`: the Secret with the job's bearer token.
pub fn token_name(job: &str) -> String {
    format!("{job}-token")
}
