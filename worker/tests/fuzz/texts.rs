//! What people and peers write: manifests, a pod's configuration, requests.

use std::path::Path;

use ppo_crds::convert::{Framework, convert};
use ppo_crds::spec::RewardRule;
use ppo_crds::{Environment, Geometry, Plan, RunConfig, fill, parse_manifest, render_plan, resolve, validate};
use ppo_worker::reward::{Rule, ScoreRequest, ScoreResponse, ScoredSample};
use ppo_worker::rollout::protocol::GenerateRequest;
use ppo_worker::rollout::refused;
use serde_json::json;

use crate::harness::survives;

fn configs(names: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    names
        .iter()
        .map(|name| std::fs::read(folder.join(name)).unwrap())
        .collect()
}

const MANIFESTS: [&str; 4] = ["math-rloo-8gpu.yaml", "quickstart.yaml", "minimal.yaml", "illegal.yaml"];

#[test]
fn a_manifest() {
    survives("manifest", 800, configs(&MANIFESTS), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Ok(job) = parse_manifest(&text, "job.yaml") else {
            return;
        };
        let environment = Environment::meant_by(&job, Path::new("/jobs"));
        let _ = (fill(&job), Geometry::of(&job));
        if validate(&job, &environment).is_ok() {
            // What is valid can be planned.
            render_plan(&Plan::of(&job, &environment, None).unwrap());
        }
    });
}

#[test]
fn the_configuration_of_a_pod() {
    let seeds = configs(&MANIFESTS[..2]).into_iter().map(|text| {
        let job = parse_manifest(std::str::from_utf8(&text).unwrap(), "job.yaml").unwrap();
        serde_json::to_vec(&resolve(&job, &Environment::meant_by(&job, Path::new("/jobs"))).unwrap()).unwrap()
    });
    survives("run-config", 800, seeds.collect(), |bytes| {
        if let Ok(config) = serde_json::from_slice::<RunConfig>(bytes) {
            // What was read is written and read again as the same, but for numbers that JSON does not know.
            let again = serde_json::to_vec(&config).unwrap();
            assert_eq!(serde_json::from_slice::<RunConfig>(&again).unwrap(), config);
        }
    });
}

#[test]
fn a_command_line_to_convert() {
    let seeds = [
        "python -m openrlhf.cli.train_ppo_ray --pretrain a/b --remote_rm_url http://x/y --prompt_data /d.jsonl \\\n --max_len 2048 --eps_clip_low_high 0.2 0.3",
        "A=(--sft_model_path \"$M\" --per_device_train_batch_size 8)\naccelerate launch --num_processes 8 ppo.py ${A[@]} --total_episodes 1000",
        "verl.trainer.main_ppo data.train_files=\"['/a.parquet']\" actor_rollout_ref.rollout.n=5 data.train_batch_size=64 trainer.nnodes=2",
    ];
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    survives("convert", 600, seeds, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for framework in Framework::ALL {
            if let Ok(conversion) = convert(framework, &text, &|name| Some(format!("/{name}"))) {
                assert_eq!(parse_manifest(&conversion.manifest, "printed").unwrap(), conversion.job);
            }
        }
    });
}

#[test]
fn requests_and_answers() {
    let seeds = [
        r#"{"model": "m", "prompt": [[1, 2, 3], [4]], "n": 4, "max_tokens": 32, "temperature": 0.7, "seed": -5, "stop": ["a", "b"], "logprobs": 3, "stream_options": {"include_usage": true}}"#,
        r#"{"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 2, "logit_bias": {"5": -100}}"#,
        r#"{"query": ["a", "b"], "prompts": ["a", "b"], "labels": [null, ["1", {"x": 2.5}]], "policy": {"tokenizer": "t", "prompt_ids": [[1], []], "response_ids": [[2], [3, 4]], "visible_prompts": ["a", "b"], "visible_responses": ["c", ""], "messages": [[{"role": "user", "content": "a"}], null], "moment": 1700000000, "has_ended": [true, false]}}"#,
        r#"{"rewards": [0.5, true], "scores": [[1e30], [-1]], "extra_logs": {"x": [1, null]}}"#,
    ];
    // Damage is done to what can be read.
    let [.., asked, answered] = seeds;
    serde_json::from_str::<ScoreRequest>(asked).unwrap();
    serde_json::from_str::<ScoreResponse>(answered).unwrap();
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    survives("requests", 1500, seeds, |bytes| {
        if let Ok(asked) = serde_json::from_slice::<GenerateRequest>(bytes) {
            let _ = refused::check(&asked);
        }
        let _ = serde_json::from_slice::<ScoreRequest>(bytes);
        let _ = serde_json::from_slice::<ScoreResponse>(bytes);
    });
}

#[test]
fn an_answer_of_mathematics() {
    let rules: Vec<RewardRule> =
        serde_json::from_value(json!([{"mathMatch": {}}, {"mathMatch": {}, "extract": "(?s)(.*)"}])).unwrap();
    let rules = Rule::all(&rules).unwrap();
    let label = r"x = -\frac{\sqrt[3]{2}}{1 + 2^{n}}, \left[0, \sin^2 y\right) \cup \{|z|, 50\%\}";
    let seeds = [
        format!(r"So it is $\boxed{{{label}}}$."),
        r"The answer is \begin{pmatrix} 1{,}000 & \log_2 3 \\ 5\text{ cm}^2 & 10^{-3} \end{pmatrix}".to_owned(),
        r"#### 2\frac12 \pm 3.50e2 \times x_{12} \le \pi/4 \text{ or } (1, \infty]".to_owned(),
    ];
    survives("math-answer", 1500, seeds.map(String::into_bytes).to_vec(), |bytes| {
        let sample = |response: &str, label: &str| ScoredSample {
            index: 0,
            prompt: String::new(),
            visible_prompt: String::new(),
            messages: None,
            moment: None,
            response: response.to_owned(),
            visible_response: response.to_owned(),
            has_ended: true,
            tokenizer: None,
            prompt_ids: [].into(),
            response_ids: Vec::new(),
            label: Some(label.into()),
        };
        let text = String::from_utf8_lossy(bytes);
        for rule in &rules {
            rule.score(&sample(&text, label)).unwrap();
            let _ = rule.score(&sample(label, &text));
        }
    });
}
