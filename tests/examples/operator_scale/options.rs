//! The command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::setting::Setting;
use crate::systems::System;

/// What is measured and where the figures go.
#[derive(Clone, Debug)]
pub struct Options {
    systems: Vec<System>,
    settings: Option<Vec<Setting>>,
    /// The folder of `figures.json` and `figures.md`.
    pub out: PathBuf,
    /// Whether cells that `figures.json` holds are kept instead of measured again.
    pub add: bool,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// What is wrong and what would fit.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            systems: System::ALL.to_vec(),
            settings: None,
            out: PathBuf::from("runs/bench-operator"),
            add: false,
        };
        while let Some(flag) = args.next() {
            if flag == "--add" {
                options.add = true;
                continue;
            }
            let value = args
                .next()
                .with_context(|| format!("{flag} needs a value, or is none of ours"))?;
            match flag.as_str() {
                "--systems" => options.systems = list(&value)?,
                "--settings" => options.settings = Some(list(&value)?),
                "--out" => options.out = value.into(),
                _ => bail!("{flag} is none of --systems, --settings, --out, --add"),
            }
        }
        Ok(options)
    }

    /// What is measured: systems side by side at each setting. A setting for ours alone is measured for others when it is asked for.
    pub fn cells(&self) -> Vec<(System, Setting)> {
        let settings = self.settings.clone().unwrap_or_else(|| Setting::ALL.to_vec());
        let wanted = |system, setting: Setting| {
            self.settings.is_some() || system == System::Ours || !setting.is_for_ours_alone()
        };
        let pairs = settings
            .iter()
            .flat_map(|&setting| self.systems.iter().map(move |&system| (system, setting)));
        pairs.filter(|&(system, setting)| wanted(system, setting)).collect()
    }
}

fn list<T: std::str::FromStr<Err = anyhow::Error>>(text: &str) -> Result<Vec<T>> {
    text.split(',').map(str::parse).collect()
}
