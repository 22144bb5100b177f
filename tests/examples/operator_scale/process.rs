//! A process whose memory and CPU are measured.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};

/// Ticks of /proc/PID/stat: USER_HZ, which Linux has fixed at 100 for programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process whose memory and CPU are measured. It ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: std::path::PathBuf,
    child: Child,
}

/// What processes hold and have used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Kibibytes by the kernel's proportional set size: all that is resident, code too, what is shared by its share.
    pub kibibytes: f64,
    /// Seconds of CPU, user and system.
    pub cpu: f64,
}

impl Process {
    /// Starts one against a cluster. It logs beside the control plane's components.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(name: &str, argv: &[String], folder: &Path, kubeconfig: &Path) -> Result<Self> {
        let (program, args) = argv.split_first().context("no program")?;
        let log = folder.join(format!("{name}.log"));
        let file = fs::File::create(&log)?;
        let child = Command::new(program)
            .args(args)
            .env("KUBECONFIG", kubeconfig)
            .env("RUST_LOG", "warn")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        Ok(Self {
            name: name.to_owned(),
            log,
            child,
        })
    }

    /// What it holds and has used by now.
    ///
    /// # Errors
    /// When it has ended: its last words.
    pub fn usage(&mut self) -> Result<Usage> {
        self.check()?;
        let process = format!("/proc/{}", self.child.id().context("it has ended")?);
        let memory = fs::read_to_string(format!("{process}/smaps_rollup"))?;
        let line = memory.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next());
        let stat = fs::read_to_string(format!("{process}/stat"))?;
        // utime and stime are fields 14 and 15; counted after the name in parentheses, which may hold spaces.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks: f64 = [11, 12]
            .iter()
            .filter_map(|&at| fields.get(at)?.parse::<f64>().ok())
            .sum();
        Ok(Usage {
            kibibytes: kibibytes.context("no Pss in smaps_rollup")?.parse()?,
            cpu: ticks / TICKS_PER_SECOND,
        })
    }

    /// Nothing while it runs.
    ///
    /// # Errors
    /// When it has ended: its last words.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(());
        };
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(8)..].join("\n");
        bail!("{} has ended ({status}); its last words:\n{last}", self.name)
    }
}

impl Usage {
    /// Of all processes together.
    ///
    /// # Errors
    /// When one has ended.
    pub fn sum(processes: &mut [Process]) -> Result<Self> {
        let mut sum = Self::default();
        for process in processes {
            let usage = process.usage()?;
            sum.kibibytes += usage.kibibytes;
            sum.cpu += usage.cpu;
        }
        Ok(sum)
    }
}
