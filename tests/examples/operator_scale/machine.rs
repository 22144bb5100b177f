//! The machine on which it is measured.

use anyhow::{Context as _, Result};

/// Processor, cores and memory in words.
///
/// # Errors
/// When /proc cannot be read.
pub fn name() -> Result<String> {
    let processors = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let kibibytes = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kibibytes: f64 = kibibytes.context("no MemTotal in /proc/meminfo")?.parse()?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{model}, {cores} cores, {:.0} GiB",
        kibibytes / f64::from(1 << 20)
    ))
}

/// The load average of the last minute.
///
/// # Errors
/// When /proc cannot be read.
pub fn load() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let first = text.split_whitespace().next().context("/proc/loadavg is empty")?;
    Ok(first.parse()?)
}

/// Today, in UTC.
pub fn date() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}
