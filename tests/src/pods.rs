//! What happens to pods on fake nodes: the kubelet's part, played by the test.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{Component, Namespace, PATIENCE, wait_for};

/// A pod that has this annotation when it is bound does not start: put it into the pod template.
pub const HOLD_START: &str = "test.ppojob.dev/hold-start";

/// A deleted pod that has this annotation stays terminating.
pub const HOLD_STOP: &str = "test.ppojob.dev/hold-stop";

/// How a pod fails.
#[derive(Clone, Debug)]
pub struct PodFailure {
    /// Exit code of its containers.
    pub exit_code: i32,
    /// Reason of the containers' end: `Error`, `OOMKilled`.
    pub reason: &'static str,
    /// The containers' last words (`/dev/termination-log`).
    pub message: String,
    /// Reason of the pod's end, such as `Evicted`.
    pub pod_reason: Option<&'static str>,
    /// Reason of the condition `DisruptionTarget`, such as `PreemptionByScheduler` or `TerminationByKubelet`.
    pub disruption: Option<&'static str>,
}

impl PodFailure {
    /// The process ends with this code.
    pub fn exit(exit_code: i32) -> Self {
        Self {
            exit_code,
            reason: "Error",
            message: String::new(),
            pod_reason: None,
            disruption: None,
        }
    }

    /// The kernel kills the process because its memory limit is reached.
    pub fn out_of_memory() -> Self {
        Self {
            reason: "OOMKilled",
            ..Self::exit(137)
        }
    }

    /// The kubelet evicts the pod because its node is short of something.
    pub fn evicted() -> Self {
        Self {
            pod_reason: Some("Evicted"),
            disruption: Some("TerminationByKubelet"),
            ..Self::exit(137)
        }
    }

    /// The scheduler takes the node for a pod of higher priority.
    pub fn preempted() -> Self {
        Self {
            disruption: Some("PreemptionByScheduler"),
            ..Self::exit(143)
        }
    }

    /// With last words.
    pub fn saying(self, message: &str) -> Self {
        Self {
            message: message.to_owned(),
            ..self
        }
    }
}

impl Namespace<'_> {
    /// Waits until a pod is ready. Names the component that has ended, if it was that.
    ///
    /// # Errors
    /// When it is not in time, with its status.
    pub async fn wait_until_ready(&self, pod: &str) -> Result<Pod> {
        let what = format!("pod {pod} to be ready");
        let ready = wait_for(&what, PATIENCE, async || {
            let seen = self.pods().get(pod).await?;
            match condition(&seen, "Ready") {
                Some("True") => Ok(seen),
                _ => bail!("{}", serde_json::to_string(&seen.status)?),
            }
        });
        match ready.await {
            Ok(pod) => Ok(pod),
            Err(late) => {
                self.cluster.check().await?;
                Err(late.context(self.cluster.log_tail(Component::Kwok)))
            }
        }
    }

    /// Ends a pod's containers and the pod as a failure.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn fail_pod(&self, pod: &str, failure: &PodFailure) -> Result<()> {
        let seen = self.pods().get(pod).await?;
        let mut status = json!({
            "phase": "Failed",
            "reason": failure.pod_reason,
            "conditions": [not_ready()],
            "containerStatuses": ended(&seen, failure.exit_code, failure.reason, &failure.message),
        });
        if let (Some(reason), Value::Array(conditions)) = (failure.disruption, &mut status["conditions"]) {
            conditions.push(json!({"type": "DisruptionTarget", "status": "True", "reason": reason,
                "message": failure.message, "lastTransitionTime": now()}));
        }
        self.write_status(pod, status).await
    }

    /// Ends a pod's containers with code 0 and the pod as a success.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn complete_pod(&self, pod: &str) -> Result<()> {
        self.complete_pod_saying(pod, "").await
    }

    /// The same with a termination message.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn complete_pod_saying(&self, pod: &str, message: &str) -> Result<()> {
        let seen = self.pods().get(pod).await?;
        let status = json!({"phase": "Succeeded", "conditions": [not_ready()],
            "containerStatuses": ended(&seen, 0, "Completed", message)});
        self.write_status(pod, status).await
    }

    /// Keeps a pod's containers from starting, with the kubelet's reason, such as `ImagePullBackOff`. Its template needs the
    /// annotation [`HOLD_START`].
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn block_pod(&self, pod: &str, reason: &str, message: &str) -> Result<()> {
        let seen = self.pods().get(pod).await?;
        let waiting = json!({"waiting": {"reason": reason, "message": message}});
        self.write_status(pod, json!({"containerStatuses": container_statuses(&seen, &waiting)}))
            .await
    }

    /// Makes a running pod ready or not, as its readiness probe would.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn set_pod_ready(&self, pod: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": now()});
        self.write_status(pod, json!({"conditions": [condition]})).await
    }

    /// Keeps a pod terminating once it is deleted, as one that works through its grace period or whose node is lost.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn hold_stop(&self, pod: &str) -> Result<()> {
        self.annotate(pod, HOLD_STOP, json!("")).await
    }

    /// Lets a pod go that [`hold_stop`](Self::hold_stop) held.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn release_stop(&self, pod: &str) -> Result<()> {
        self.annotate(pod, HOLD_STOP, Value::Null).await
    }

    /// Lets a pod start that [`HOLD_START`] held.
    ///
    /// # Errors
    /// When there is no such pod.
    pub async fn release_start(&self, pod: &str) -> Result<()> {
        self.annotate(pod, HOLD_START, Value::Null).await
    }

    async fn annotate(&self, pod: &str, annotation: &str, value: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
        self.pods().patch(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn write_status(&self, pod: &str, status: Value) -> Result<()> {
        let patch = Patch::Strategic(json!({"status": status}));
        self.pods().patch_status(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// The status of a pod's condition.
pub(crate) fn condition<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == name)?;
    Some(&found.status)
}

fn not_ready() -> Value {
    json!({"type": "Ready", "status": "False", "reason": "PodFailed", "lastTransitionTime": now()})
}

fn ended(pod: &Pod, exit_code: i32, reason: &str, message: &str) -> Value {
    let terminated =
        json!({"exitCode": exit_code, "reason": reason, "message": message, "startedAt": now(), "finishedAt": now()});
    container_statuses(pod, &json!({"terminated": terminated}))
}

fn container_statuses(pod: &Pod, state: &Value) -> Value {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let status = |name: &str, image: Option<&String>| json!({"name": name, "image": image, "imageID": "", "ready": false, "started": false, "restartCount": 0, "state": state});
    containers
        .map(|container| status(&container.name, container.image.as_ref()))
        .collect()
}

fn now() -> Value {
    // The API server reads whole seconds.
    json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
