//! Pods that have a node and do not run as they should.

use super::*;

#[test]
fn an_image_that_cannot_be_pulled_shows_the_registrys_answer_even_while_backing_off() {
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"ghcr.io/a/worker:9\""}}),
        json!({}),
    ));
    evidence.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "Failed",
        "Failed to pull image \"ghcr.io/a/worker:9\": rpc error: code = NotFound desc = failed to resolve reference: ghcr.io/a/worker:9: not found",
    )];
    let finding = first(&evidence);
    says(
        &finding,
        Cause::Image,
        &[
            "ImagePullBackOff",
            "failed to resolve reference: ghcr.io/a/worker:9: not found",
            "tag",
        ],
    );
    assert_eq!(finding.pods, ["rloo-actor-0"]);
}

#[test]
fn an_image_that_the_template_does_not_name_is_the_one_that_the_job_began_with() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "ghcr.io/a/worker:9: not found"}});
    let mut pinned = actor(container(waiting, json!({})));
    says(
        &first(&pinned),
        Cause::Image,
        &[
            "naming one for container worker in spec.roles.actor.template",
            "annotation ppojob.dev/worker-image of ConfigMap rloo-config",
            "--worker-image is for jobs that begin later",
            "`kubectl ppo restart-role rloo actor`",
        ],
    );
    let template = json!({"spec": {"containers": [{"name": "worker", "image": "ghcr.io/a/worker:9"}]}});
    pinned.job.spec.roles.actor.template = serde_json::from_value(template).unwrap();
    assert_eq!(
        first(&pinned).fix,
        "correct the image's name or tag of container worker in spec.roles.actor.template; pods that wait take an edited template up by \
         `kubectl ppo restart-role rloo actor`"
    );
}

#[test]
fn a_crash_loop_shows_exit_code_last_words_and_restarts() {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=worker"}});
    let mut evidence = actor(container(
        waiting,
        json!({"terminated": {"exitCode": 2, "reason": "Error"}}),
    ));
    evidence
        .last_lines
        .insert("rloo-actor-0".into(), "error: /data/train.jsonl: no such file".into());
    says(
        &first(&evidence),
        Cause::Crashed,
        &[
            "exit code 2",
            "its last words: error: /data/train.jsonl: no such file",
            "restarted 4 times",
            "correct the manifest",
        ],
    );
}

#[test]
fn a_process_killed_for_its_memory_says_what_to_make_smaller() {
    let end = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    says(
        &first(&actor(container(end.clone(), json!({})))),
        Cause::OutOfMemory,
        &["OOMKilled", "microTrainBatchSize"],
    );
    // Once it runs again it is worth knowing, and no longer what holds the job up.
    let mut again = ready();
    again["containerStatuses"] = container(json!({"running": {}}), end)["containerStatuses"].clone();
    let findings = explain(&actor(again), now());
    assert_eq!(
        (findings.len(), findings[0].cause, findings[0].blocks),
        (1, Cause::OutOfMemory, false)
    );
}

#[test]
fn a_missing_secret_and_a_volume_that_cannot_be_attached_are_named() {
    let secret =
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"hub-token\" not found"}});
    says(
        &first(&actor(container(secret, json!({})))),
        Cause::Preparation,
        &["secret \"hub-token\" not found", "create the secret"],
    );
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ContainerCreating"}}),
        json!({}),
    ));
    assert_eq!(explain(&evidence, now()), [], "two minutes are normal");
    evidence.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "FailedAttachVolume",
        "Multi-Attach error for volume \"pvc-1\" Volume is already exclusively attached to one node and can't be attached to another",
    )];
    says(
        &first(&evidence),
        Cause::Preparation,
        &["Multi-Attach", "ReadWriteMany"],
    );
}

#[test]
fn a_pod_that_loads_its_model_is_normal_and_one_that_does_so_for_ever_is_not() {
    let running = |started: &str| actor(container(json!({"running": {"startedAt": started}}), json!({})));
    let findings = explain(&running("2026-01-01T02:59:00Z"), now());
    assert_eq!((findings.len(), findings[0].blocks), (1, false), "{findings:?}");
    let mut late = running("2026-01-01T02:30:00Z");
    late.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
    )];
    says(
        &first(&late),
        Cause::NotReady,
        &[
            "30m after its start",
            "statuscode: 503",
            "`kubectl ppo logs rloo` shows",
        ],
    );
}

#[test]
fn preemption_and_eviction_are_told_from_crashes() {
    let preempted = json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "default-scheduler: preempting to accommodate a higher priority pod"}]});
    says(
        &first(&actor(preempted)),
        Cause::Disrupted,
        &["higher priority pod", "priorityClassName"],
    );
    let evicted =
        json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."});
    says(
        &first(&actor(evicted)),
        Cause::Disrupted,
        &["low on resource: ephemeral-storage", "resources"],
    );
    // With the condition that the kubelet sets beside it (eviction_manager.go).
    let marked = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": "The node was low on resource: memory."}]});
    says(
        &first(&actor(marked)),
        Cause::Disrupted,
        &["low on resource: memory", "ask for it in resources"],
    );
    // A node that is short of something takes no more pods: what this one asks for is not why.
    let refused = json!({"phase": "Failed", "reason": "Evicted",
        "message": "Pod was rejected: The node had condition: [DiskPressure]. "});
    let refused = first(&actor(refused));
    says(
        &refused,
        Cause::Disrupted,
        &["DiskPressure", "`kubectl describe node gpu-7`"],
    );
    // It sets none where a volume has grown too large, and kills the containers.
    let mut full = container(json!({"terminated": {"exitCode": 137, "reason": "Error"}}), json!({}));
    full["phase"] = json!("Failed");
    full["reason"] = json!("Evicted");
    full["message"] = json!("Usage of EmptyDir volume \"ppo-tmp\" exceeds the limit \"1Gi\". ");
    says(
        &first(&actor(full)),
        Cause::Disrupted,
        &["Usage of EmptyDir volume \"ppo-tmp\"", "ask for it in resources"],
    );
}

#[test]
fn an_image_that_may_not_be_pulled_or_has_no_build_for_the_node_is_not_called_misnamed() {
    let pulled = |answer: &str| {
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": answer}});
        first(&actor(container(waiting, json!({})))).fix
    };
    let token = "failed to resolve reference \"ghcr.io/a/worker:9\": failed to authorize: failed to fetch anonymous token: unexpected \
                 status from GET request to https://ghcr.io/token: 403 Forbidden";
    for (answer, helps) in [
        (token, "imagePullSecrets"),
        (
            "unexpected status from HEAD request to https://a.azurecr.io/v2/worker/manifests/9: 401 Unauthorized: not found",
            "imagePullSecrets",
        ),
        (
            "no match for platform in manifest: not found",
            "no build for the node's processor",
        ),
        ("unexpected status: 429 Too Many Requests", "limits pulls"),
        ("ghcr.io/a/worker:9: not found", "correct the image's name or tag"),
    ] {
        let fix = pulled(answer);
        assert!(fix.contains(helps), "{answer}: {fix}");
    }
}

#[test]
fn a_container_that_never_ran_has_no_log_to_be_read() {
    let ended = |message: &str| {
        let end = json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": message}});
        first(&actor(container(end, json!({})))).fix
    };
    for (message, helps) in [
        (
            "failed to create containerd task: exec: \"x\": executable file not found in $PATH",
            "the image lacks the program",
        ),
        (
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: no such file or directory",
            "NVIDIA driver",
        ),
        (
            "failed to create shim task: cgroups",
            "kubectl describe pod rloo-actor-0",
        ),
    ] {
        let fix = ended(message);
        assert!(fix.contains(helps) && !fix.contains("ppo logs"), "{message}: {fix}");
    }
}

#[test]
fn an_init_container_of_the_template_may_take_as_long_as_it_takes() {
    let waits = |state: Value| {
        let mut evidence = actor(container(json!({"waiting": {"reason": "PodInitializing"}}), json!({})));
        let mut pod = serde_json::to_value(&evidence.pods[4]).unwrap();
        pod["status"]["startTime"] = json!("2026-01-01T02:30:00Z");
        pod["status"]["initContainerStatuses"] = json!([{"name": "copy-model", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": state}]);
        pod["spec"]["initContainers"] = json!([{"name": "copy-model"}]);
        evidence.pods[4] = serde_json::from_value(pod).unwrap();
        explain(&evidence, now())
    };
    let found = waits(json!({"running": {"startedAt": "2026-01-01T02:40:00Z"}}));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(!found[0].blocks);
    assert!(
        found[0].what.starts_with("Init container copy-model has run for 20m"),
        "{}",
        found[0].what
    );
    assert!(found[0].fix.contains("--container copy-model"), "{}", found[0].fix);
    let found = waits(json!({"terminated": {"exitCode": 0, "startedAt": "2026-01-01T02:40:00Z"}}));
    assert!(
        found[0].what.contains("has prepared the pod for 30m"),
        "{}",
        found[0].what
    );
}

#[test]
fn an_init_container_that_cannot_start_is_the_cause_and_not_the_node_on_which_the_others_wait() {
    let mut evidence = actor(container(json!({"waiting": {"reason": "PodInitializing"}}), json!({})));
    let mut pod = serde_json::to_value(&evidence.pods[4]).unwrap();
    pod["status"]["startTime"] = json!("2026-01-01T02:30:00Z");
    pod["status"]["initContainerStatuses"] = json!([{"name": "copy-model", "image": "", "imageID": "", "ready": false,
        "restartCount": 6, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "message": "no such bucket"}}}]);
    pod["spec"]["initContainers"] = json!([{"name": "copy-model"}]);
    evidence.pods[4] = serde_json::from_value(pod).unwrap();
    let found: Vec<Cause> = explain(&evidence, now())
        .into_iter()
        .map(|finding| finding.cause)
        .collect();
    assert_eq!(found, [Cause::Crashed]);
    says(
        &first(&evidence),
        Cause::Crashed,
        &["copy-model", "no such bucket", "restarted 6 times"],
    );
}

#[test]
fn what_failed_before_the_pod_was_prepared_is_not_its_trouble_any_more() {
    let prepared = |is_prepared: &str| {
        let mut evidence = actor(container(
            json!({"waiting": {"reason": "ContainerCreating"}}),
            json!({}),
        ));
        let mut pod = serde_json::to_value(&evidence.pods[4]).unwrap();
        pod["status"]["conditions"] = json!([{"type": "PodReadyToStartContainers", "status": is_prepared}]);
        evidence.pods[4] = serde_json::from_value(pod).unwrap();
        let words =
            "MountVolume.SetUp failed for volume \"kube-api-access-x\": failed to sync configmap cache: timed out";
        evidence.events = vec![event("Pod", "rloo-actor-0", "FailedMount", words)];
        explain(&evidence, now())
    };
    assert_eq!(prepared("True"), []);
    let found = prepared("False");
    assert!(found[0].fix.contains("tries again by itself"), "{}", found[0].fix);
}

#[test]
fn two_containers_of_a_pod_that_wait_for_the_same_count_once() {
    let mut evidence = actor(container(
        json!({"waiting": {"reason": "ContainerCreating"}}),
        json!({}),
    ));
    let mut pod = serde_json::to_value(&evidence.pods[4]).unwrap();
    let mut other = pod["status"]["containerStatuses"][0].clone();
    other["name"] = json!("vllm");
    pod["status"]["containerStatuses"].as_array_mut().unwrap().push(other);
    evidence.pods[4] = serde_json::from_value(pod).unwrap();
    evidence.events = vec![event(
        "Pod",
        "rloo-actor-0",
        "FailedMount",
        "MountVolume.SetUp failed for volume \"x\"",
    )];
    assert_eq!(first(&evidence).pods, ["rloo-actor-0"]);
}
