//! What keeps two runs apart: one process per folder, one configuration per run.

use std::fs::File;

use anyhow::{Context, Result, bail};
use ppo_crds::RunConfig;
use serde::Deserialize;

use crate::telemetry::RunDir;

/// Takes the folder for this process, for as long as the file lives.
///
/// # Errors
/// When another process has it.
pub fn lock(folder: &RunDir) -> Result<File> {
    let path = folder.root().join(".lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            bail!(
                "another process runs in {}; wait for it, or give another --run-dir",
                folder.root().display()
            )
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// A checkpoint goes on only under the configuration that made it; how long, how often to look and to save may change.
pub fn refuse_other_run(saved: &serde_json::Value, now: &RunConfig) -> Result<()> {
    const MAY_CHANGE: [&str; 5] = ["length", "checkpoint", "telemetry", "evaluation", "rollout"];
    // One of an older version of this program lacks newer fields: it was made with what they default to.
    let filled = RunConfig::deserialize(saved).and_then(serde_json::to_value);
    let saved = filled.as_ref().unwrap_or(saved);
    let now = serde_json::to_value(now)?;
    let fields = now.as_object().into_iter().flatten();
    let changed: Vec<String> = fields
        .filter(|(name, _)| !MAY_CHANGE.contains(&name.as_str()))
        .filter(|(name, value)| saved.get(name) != Some(value))
        .map(|(name, value)| {
            format!(
                "{name}: was {}, is {value}",
                saved.get(name).unwrap_or(&serde_json::Value::Null)
            )
        })
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    bail!(
        "it was made under another configuration; restore the manifest, start anew with --fresh, or give another --run-dir\n{}",
        changed.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::spec::Overlap;
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;

    fn config() -> RunConfig {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "guard"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        resolve(&job, &here).unwrap()
    }

    #[test]
    fn a_checkpoint_from_before_a_field_was_there_goes_on_where_the_field_has_its_default() {
        let mut now = config();
        let mut saved = serde_json::to_value(&now).unwrap();
        saved.as_object_mut().unwrap().remove("overlap").unwrap();
        refuse_other_run(&saved, &now).unwrap();
        now.overlap = Overlap::OneStep;
        let words = refuse_other_run(&saved, &now).unwrap_err().to_string();
        assert!(words.contains("overlap: was \"none\", is \"oneStep\""), "{words}");
    }
}
