//! `plan`: what a manifest would do, without doing it. Pods and GPUs, the batch arithmetic written out, memory, warnings, and
//! the manifest with every default filled in.

use std::fmt::Write as _;

use serde::Serialize;

use crate::disk::Disk;
use crate::geometry::Geometry;
use crate::memory::{Part, ProcessMemory, RoleMemory, Shapes, estimate};
use crate::resolve::{Environment, resolve};
use crate::run_config::{Batch, RunConfig};
use crate::spec::Overlap;
use crate::validate::{
    ValidationErrors, Warning, engine_without_gpu, lost_with_pods, short_of_cache, short_of_disk, short_of_memory,
    warnings,
};
use crate::{PpoJob, fill};

/// What a manifest would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `metadata.name` of the job.
    pub name: String,
    /// Batch and GPU arithmetic.
    pub geometry: Geometry,
    /// Names of all pods, role by role.
    pub pod_names: Vec<String>,
    /// The arithmetic written out, one equation a line.
    pub equations: Vec<String>,
    /// Memory of one rank of each role. Empty when no model shape is known.
    pub memory: Vec<RoleMemory>,
    /// Memory of all roles in the one process of `ppo-worker run`. None when the job is for pods, or no model shape is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessMemory>,
    /// What the run leaves on the disk of its checkpoints. None when no model shape is known.
    pub disk: Option<Disk>,
    /// What is allowed but most likely not meant.
    pub warnings: Vec<Warning>,
    /// The manifest with every default filled in.
    pub manifest: PpoJob,
}

impl Plan {
    /// Plans a job. `shapes` are those of its models, where their config.json could be read.
    ///
    /// # Errors
    /// Everything that is wrong with the job.
    pub fn of(job: &PpoJob, environment: &Environment, shapes: Option<&Shapes>) -> Result<Self, ValidationErrors> {
        let config = resolve(job, environment)?;
        let Some(geometry) = Geometry::of(job) else {
            // `resolve` refuses every job without a geometry.
            return Err(ValidationErrors { problems: Vec::new() });
        };
        let of_pods = match environment {
            Environment::Cluster { .. } => vec![lost_with_pods(&job.spec), engine_without_gpu(&job.spec.roles)],
            Environment::Laptop { .. } => Vec::new(),
        };
        let memory = shapes
            .map(|shapes| estimate(&config, &geometry, shapes))
            .unwrap_or_default();
        let is_here = matches!(environment, Environment::Laptop { .. });
        let process = shapes
            .filter(|_| is_here)
            .map(|shapes| ProcessMemory::of(&config, &geometry, shapes));
        let tight = shapes.and_then(|shapes| short_of_cache(&config, &geometry, shapes));
        let short = short_of_memory(&job.spec.roles, &memory);
        let disk = shapes.map(|shapes| Disk::of(&config, shapes));
        let full = disk.and_then(|disk| short_of_disk(&job.spec.checkpoint, disk));
        Ok(Self {
            pod_names: geometry
                .roles
                .iter()
                .flat_map(|role| role.pod_names(&config.name))
                .collect(),
            equations: equations(&config, &geometry),
            memory,
            process,
            disk,
            warnings: warnings(job)
                .into_iter()
                .chain(of_pods.into_iter().flatten())
                .chain(tight)
                .chain(short)
                .chain(full)
                .collect(),
            manifest: fill(job),
            name: config.name,
            geometry,
        })
    }
}

fn equations(config: &RunConfig, geometry: &Geometry) -> Vec<String> {
    let engines = config.rollout.replicas;
    let Batch {
        rollout_batch_size: prompts,
        n_samples_per_prompt: group,
        train_batch_size: train,
        micro_train_batch_size: micro,
        ppo_epochs: epochs,
        max_draws,
        ..
    } = &config.batch;
    let Geometry {
        samples_per_step: samples,
        updates_per_epoch: updates,
        actor_ranks: ranks,
        ..
    } = geometry;
    let mut equations = vec![
        format!("samples per step {samples} = {prompts} prompts x {group} samples"),
        format!(
            "prompts per engine {} = {prompts} / {engines} engines",
            geometry.prompts_per_engine
        ),
        format!(
            "samples per engine {} = {samples} / {engines} engines",
            geometry.samples_per_engine
        ),
        format!("updates per epoch {updates} = {samples} / {train}"),
        format!(
            "updates per step {} = {updates} x {epochs} epochs",
            geometry.updates_per_step
        ),
        format!(
            "accumulation {} = {train} / ({micro} x {ranks} ranks)",
            geometry.accumulation_steps
        ),
    ];
    if let Some(draws) = max_draws {
        let most = samples.saturating_mul(*draws);
        equations.push(format!(
            "samples drawn per step {samples} to {most} = {samples} x 1 to {draws} draws"
        ));
    }
    if config.overlap == Overlap::OneStep {
        equations.push("staleness 1 = step k learns while the engines draw step k + 1 (0 in the first step)".into());
    }
    equations
}

/// The plan as text for a terminal.
pub fn render_plan(plan: &Plan) -> String {
    let mut text = format!("{}\n\n", plan.name);
    render_pods(plan, &mut text);
    text.push_str("\nBatch arithmetic\n");
    for equation in &plan.equations {
        line(&mut text, &format!("  {equation}"));
    }
    render_memory(plan, &mut text);
    if let Some(process) = &plan.process {
        text.push_str("\nMemory of ppo-worker run, estimated\n");
        render_all("all roles in one process", process.total, &process.parts, &mut text);
    }
    render_host(&plan.memory, &mut text);
    if let Some(disk) = &plan.disk {
        render_disk(disk, &mut text);
    }
    if !plan.warnings.is_empty() {
        text.push_str("\nWarnings\n");
        for warning in &plan.warnings {
            line(&mut text, &format!("  {warning}"));
        }
    }
    text.push_str("\nManifest with every default filled in\n---\n");
    text.push_str(
        &serde_yaml::to_string(&plan.manifest).unwrap_or_else(|error| format!("(cannot be written: {error})\n")),
    );
    text
}

fn render_pods(plan: &Plan, text: &mut String) {
    line(
        text,
        &format!(
            "{:<10} {:>5} {:>9} {:>6}  {}",
            "role", "pods", "GPUs/pod", "GPUs", "pod names"
        ),
    );
    for role in &plan.geometry.roles {
        let names: Vec<String> = role.pod_names(&plan.name).collect();
        let names = match names.as_slice() {
            [] => "none needed".to_string(),
            [one] => one.clone(),
            [first, .., last] => format!("{first} to {last}"),
        };
        let (name, pods, gpus) = (role.role.name(), role.pods, role.gpus());
        line(
            text,
            &format!("{name:<10} {pods:>5} {:>9} {gpus:>6}  {names}", role.gpus_per_pod),
        );
    }
    line(
        text,
        &format!(
            "{:<10} {:>5} {:>9} {:>6}",
            "total", plan.geometry.pods, "", plan.geometry.gpus
        ),
    );
}

fn render_memory(plan: &Plan, text: &mut String) {
    text.push_str("\nMemory per GPU (or process), estimated\n");
    if plan.memory.is_empty() {
        text.push_str("  not known: the model's config.json cannot be read from here");
        if let Some(claim) = &plan.manifest.spec.model.policy.pvc {
            let _ = write!(
                text,
                "; ppo-worker plan --volumes DIR reads DIR/{} as that claim",
                claim.claim_name
            );
        }
        text.push('\n');
    }
    for role in &plan.memory {
        render_all(role.role.name(), role.total, &role.parts, text);
    }
}

fn render_host(memory: &[RoleMemory], text: &mut String) {
    let mut pods = memory
        .iter()
        .filter_map(|role| Some((role.role, role.host.as_ref()?)))
        .peekable();
    if pods.peek().is_some() {
        text.push_str("\nHost memory per pod with GPUs, estimated\n");
    }
    for (role, host) in pods {
        render_all(role.name(), host.total, &host.parts, text);
    }
}

fn render_all(name: &str, total: u64, parts: &[Part], text: &mut String) {
    line(text, &format!("  {name:<28} {:>11}", human(total)));
    for part in parts {
        line(text, &format!("    {:<26} {:>11}", part.name, human(part.bytes)));
    }
}

fn render_disk(disk: &Disk, text: &mut String) {
    text.push_str("\nDisk of the checkpoints, estimated\n");
    let each = human(disk.checkpoint);
    let parts = [
        (
            format!("{} checkpoints of {each}", disk.checkpoints),
            disk.checkpoint.saturating_mul(disk.checkpoints),
        ),
        ("trained model".to_owned(), disk.model),
    ];
    line(text, &format!("  {:<28} {:>11}", "all", human(disk.total)));
    for (name, bytes) in parts {
        line(text, &format!("    {name:<26} {:>11}", human(bytes)));
    }
}

fn line(text: &mut String, content: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", content.trim_end());
}

/// Bytes in the greatest binary unit below them, one decimal.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::job;
    use crate::memory::tests::LLAMA_8B;

    fn planned(roles: &str) -> String {
        let job = job("", &format!("{roles}, reward: {{rules: [{{json: {{}}}}]}}"));
        let shapes = Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        };
        render_plan(&Plan::of(&job, &Environment::cluster(), Some(&shapes)).unwrap())
    }

    #[test]
    fn what_a_pod_with_gpus_takes_of_its_node_is_written_below_what_its_gpus_hold() {
        let on_cpus = "actor: {gpusPerNode: 0}, reference: {gpusPerNode: 0}, rollout: {gpusPerReplica: 0}";
        assert!(!planned(on_cpus).contains("Host memory"));
        let text = planned("actor: {gpusPerNode: 8}, reference: {gpusPerNode: 0}, rollout: {gpusPerReplica: 0}");
        let (_, host) = text.split_once("\nHost memory per pod with GPUs, estimated\n").unwrap();
        let (host, _) = host.split_once("\n\nDisk of the checkpoints").unwrap();
        let lines: Vec<Vec<&str>> = host.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["actor", "29.1", "GiB"]);
        assert_eq!(lines[1], ["8", "processes", "with", "CUDA", "24.0", "GiB"]);
        assert!(lines.contains(&vec!["checkpoint", "being", "written", "264.0", "MiB"]));
        assert!(lines.len() == 7, "only the actor has GPUs: {host}");
    }

    #[test]
    fn what_a_run_on_one_machine_takes_in_its_one_process_is_written_and_of_pods_is_not() {
        let job = job("", "reward: {rules: [{json: {}}]}");
        let shapes = Shapes {
            policy: LLAMA_8B,
            critic: None,
            reward: None,
        };
        let written = |environment: &Environment| {
            let text = render_plan(&Plan::of(&job, environment, Some(&shapes)).unwrap());
            text.contains("\nMemory of ppo-worker run, estimated\n  all roles in one process ")
        };
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        assert!(written(&here));
        assert!(!written(&Environment::cluster()));
    }

    #[test]
    fn the_disk_is_written_below_the_memory_with_how_many_checkpoints_there_are() {
        let disk = Disk {
            checkpoint: 3 << 30,
            checkpoints: 5,
            model: 1 << 30,
            total: 16 << 30,
        };
        let mut text = String::new();
        render_disk(&disk, &mut text);
        let lines: Vec<&str> = text.lines().skip(2).map(str::trim).collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["all", "16.0", "GiB"]);
        assert!(lines[1].starts_with("5 checkpoints of 3.0 GiB ") && lines[1].ends_with(" 15.0 GiB"));
        assert!(lines[2].starts_with("trained model ") && lines[2].ends_with(" 1.0 GiB"));
    }

    #[test]
    fn a_model_in_a_claim_that_is_not_here_is_told_how_to_be_read() {
        let told = |source: &str| {
            let mut job = job("", "reward: {rules: [{json: {}}]}");
            job.spec.model.policy = serde_yaml::from_str(source).unwrap();
            let text = render_plan(&Plan::of(&job, &Environment::cluster(), None).unwrap());
            text.lines().find(|line| line.contains("not known")).unwrap().to_owned()
        };
        let words = "  not known: the model's config.json cannot be read from here";
        assert_eq!(told("{path: /models/p}"), words);
        assert_eq!(
            told("{pvc: {claimName: models, path: p}}"),
            format!("{words}; ppo-worker plan --volumes DIR reads DIR/models as that claim")
        );
    }

    #[test]
    fn sizes_are_written_in_the_unit_a_person_would_choose() {
        assert_eq!(human(512), "0.5 KiB");
        assert_eq!(human(3 << 20), "3.0 MiB");
        assert_eq!(human(80 << 30), "80.0 GiB");
        assert_eq!(human(u64::MAX), "16384.0 PiB");
    }
}
