//! A real vLLM container beside the door: on localhost, with the flags that our protocol needs.

use k8s_openapi::api::core::v1::{EnvVar, PodSpec};
use ppo_crds::Environment;
use ppo_crds::pod::{VLLM_CONTAINER, WORKER_CONTAINER, env as variable, port};
use ppo_crds::run_config::Location;

use super::images::Images;
use super::template::{SCRATCH, default_env, env, set_env};
use crate::containers::container;
use crate::job::Job;
use crate::settings::PodSettings;

/// The name under which vLLM serves the policy.
const SERVED_NAME: &str = "policy";

/// Variables of a proxy, in capitals or not.
const PROXY: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

/// Adds the container `vllm` and tells the door where it is.
pub fn add(spec: &mut PodSpec, job: &Job, settings: &PodSettings, images: Images<'_>) {
    let address = format!("127.0.0.1:{}", port::VLLM);
    set_env(container(spec, WORKER_CONTAINER), env(variable::VLLM, address));
    share(spec);
    let vllm = container(spec, VLLM_CONTAINER);
    vllm.image.get_or_insert_with(|| images.vllm.into());
    vllm.image_pull_policy
        .get_or_insert_with(|| settings.image_pull_policy.clone());
    if vllm.command.is_none() {
        vllm.command = Some(
            ["python3", "-m", "vllm.entrypoints.openai.api_server"]
                .map(str::to_string)
                .into(),
        );
    }
    // The template's own flags come last, where vLLM lets the last one win.
    let given = vllm.args.take().unwrap_or_default();
    vllm.args = Some(flags(job).into_iter().chain(given).collect());
    // Pause, resume and the weight update exist in this mode only. They check no key, hence the door.
    set_env(vllm, env("VLLM_SERVER_DEV_MODE", 1));
    default_env(vllm, env("HOME", SCRATCH));
    // The pod's user has no entry in the image's /etc/passwd, which Python asks where there is no name.
    default_env(vllm, env("USER", "ppo"));
}

/// Gives vLLM what the template gives the door for reading a model: of the two it is vLLM that reads one.
fn share(spec: &mut PodSpec) {
    let door = container(spec, WORKER_CONTAINER);
    let mounts = door.volume_mounts.clone().unwrap_or_default();
    let variables: Vec<EnvVar> = door
        .env
        .iter()
        .flatten()
        .filter(|known| is_shared(known))
        .cloned()
        .collect();
    let vllm = container(spec, VLLM_CONTAINER);
    let own = vllm.volume_mounts.get_or_insert_default();
    for mount in mounts {
        if own.iter().all(|known| known.mount_path != mount.mount_path) {
            own.push(mount);
        }
    }
    for variable in variables {
        default_env(vllm, variable);
    }
}

/// Whether a variable says how the hub is reached, and where its models are kept.
fn is_shared(variable: &EnvVar) -> bool {
    variable.name.starts_with("HF_") || PROXY.iter().any(|known| variable.name.eq_ignore_ascii_case(known))
}

/// vLLM 0.33's flags (`vllm/engine/arg_utils.py`).
fn flags(job: &Job) -> Vec<String> {
    let rollout = &job.spec.roles.rollout;
    let (prompt, response) = (job.spec.prompts.max_length, job.spec.generation.max_new_tokens);
    let length = u64::from(prompt).saturating_add(u64::from(response));
    let mut flags = match Environment::cluster().model(&job.spec.model.policy) {
        Location::Hub { id, revision } => vec![format!("--model={id}"), format!("--revision={revision}")],
        Location::Path(path) => vec![format!("--model={}", path.display())],
    };
    flags.extend([
        format!("--served-model-name={SERVED_NAME}"),
        "--host=127.0.0.1".into(),
        format!("--port={}", port::VLLM),
        format!("--tensor-parallel-size={}", rollout.gpus_per_replica.max(1)),
        // Published weights come in the actor's own format, and vLLM's loaders convert them.
        format!("--dtype={}", rollout.dtype.unwrap_or(job.spec.model.dtype).name()),
        format!("--max-model-len={length}"),
        format!("--block-size={}", rollout.block_size),
        format!("--max-num-batched-tokens={}", rollout.max_batch_tokens),
        format!("--max-num-seqs={}", rollout.max_sequences),
        // Log-probs of the distribution that was sampled from: after temperature and truncation.
        "--logprobs-mode=processed_logprobs".into(),
        // The job's sampling parameters, not the model's own file of them.
        "--generation-config=vllm".into(),
    ]);
    let gpus = u64::from(rollout.gpus_per_replica);
    if gpus > 0 {
        flags.push(r#"--weight-transfer-config={"backend":"nccl"}"#.into());
    }
    // Of each GPU; without it vLLM takes its share of the GPU's memory.
    if let Some(mebibytes) = rollout.engine.cache_mebibytes(gpus, rollout.kv_cache_mebibytes) {
        flags.push(format!("--kv-cache-memory-bytes={}", (mebibytes << 20) / gpus.max(1)));
    }
    flags
}

#[cfg(test)]
mod tests {
    use ppo_crds::parse_manifest;
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    /// The container `vllm` of an engine's pod with these containers in its template.
    fn vllm(containers: Value) -> Value {
        let text = "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {name: j}, spec: {model: {policy: {path: /models/p}}, \
                    prompts: {source: {path: /d.jsonl}}, roles: {rollout: {engine: vllm}, reward: {rules: [{json: {}}]}}}}";
        let job = Job::of(&parse_manifest(text, "job.yaml").unwrap());
        let settings = PodSettings::default();
        let mut spec: PodSpec = from_value(json!({"containers": containers})).unwrap();
        add(&mut spec, &job, &settings, Images::chosen(&settings));
        to_value(container(&mut spec, VLLM_CONTAINER)).unwrap()
    }

    #[test]
    fn vllm_has_the_folders_and_the_way_to_the_hub_that_the_template_gives_the_door() {
        let token =
            json!({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}});
        let proxy = json!({"name": "https_proxy", "value": "http://proxy:3128"});
        let models = json!({"name": "models", "mountPath": "/models", "readOnly": true});
        let worker = json!({
            "name": "worker", "volumeMounts": [models],
            "env": [token, proxy, {"name": "RUST_LOG", "value": "debug"}, {"name": "PPO_THREADS", "value": "1"}],
        });
        let made = vllm(json!([worker]));
        assert_eq!(made["volumeMounts"], json!([models]));
        let env = made["env"].as_array().unwrap();
        assert!(env.contains(&token) && env.contains(&proxy), "{env:?}");
        let strays = ["RUST_LOG", "PPO_THREADS", variable::VLLM];
        assert!(
            env.iter()
                .all(|known| !strays.iter().any(|stray| known["name"] == *stray)),
            "{env:?}"
        );
    }

    #[test]
    fn what_the_template_gives_vllm_itself_counts() {
        let worker = json!({
            "name": "worker", "env": [{"name": "HF_HOME", "value": "/a"}],
            "volumeMounts": [{"name": "a", "mountPath": "/models"}],
        });
        let own = json!({
            "name": "vllm", "env": [{"name": "HF_HOME", "value": "/b"}],
            "volumeMounts": [{"name": "b", "mountPath": "/models"}],
        });
        let made = vllm(json!([worker, own]));
        assert_eq!(made["volumeMounts"], own["volumeMounts"]);
        let homes: Vec<&Value> = made["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|known| known["name"] == "HF_HOME")
            .collect();
        assert_eq!(homes, [&json!({"name": "HF_HOME", "value": "/b"})]);
    }

    /// The flags that begin with `name`, of an engine with this in `model` and `rollout`.
    fn given(name: &str, model: &str, rollout: &str) -> Vec<String> {
        let text = format!(
            "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: j}}, spec: {{model: {{policy: {{path: /p}}{model}}}, \
             prompts: {{source: {{path: /d.jsonl}}}}, roles: {{rollout: {{engine: vllm{rollout}}}, reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
        );
        let mut flags = flags(&Job::of(&parse_manifest(&text, "job.yaml").unwrap()));
        flags.retain(|flag| flag.starts_with(name));
        flags
    }

    /// Left to itself on a CPU it would take nine tenths of the node's memory, whatever its container may have.
    #[test]
    fn vllm_is_told_the_size_of_its_cache_but_on_gpus_for_which_the_manifest_says_none() {
        let cache = |rollout: &str| given("--kv-cache-memory-bytes=", "", rollout);
        assert!(cache("").is_empty());
        assert_eq!(
            cache(", gpusPerReplica: 2, kvCacheMebibytes: 8"),
            ["--kv-cache-memory-bytes=4194304"]
        );
        assert_eq!(cache(", gpusPerReplica: 0"), ["--kv-cache-memory-bytes=4294967296"]);
        assert_eq!(
            cache(", gpusPerReplica: 0, kvCacheMebibytes: 8"),
            ["--kv-cache-memory-bytes=8388608"]
        );
    }

    #[test]
    fn vllm_draws_in_the_number_format_of_the_engines_and_without_one_in_the_actors() {
        let dtype = |model: &str, rollout: &str| {
            let given = given("--dtype=", model, rollout);
            assert_eq!(given.len(), 1, "{given:?}");
            given[0].clone()
        };
        assert_eq!(dtype("", ""), "--dtype=bfloat16");
        assert_eq!(dtype(", dtype: float32", ""), "--dtype=float32");
        assert_eq!(dtype(", dtype: float32", ", dtype: bfloat16"), "--dtype=bfloat16");
        assert_eq!(dtype("", ", dtype: float32"), "--dtype=float32");
    }
}
