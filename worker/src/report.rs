//! `ppo-worker report`: one HTML file with the curves, the times, the before/after table and the samples of a run. It
//! holds all it needs: no address is looked up, and nothing a model wrote can act in it.

mod axis;
mod chart;
mod html;
mod number;
mod page;
mod panel;
mod run;
mod samples;
mod series;
mod stages;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::output::print;
use crate::telemetry::RunDir;
use crate::telemetry::run_dir::write_whole;
use run::Run;

/// Write an HTML report of a run: curves, where the time went, before/after, samples.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Folder of the run, as given to `run --run-dir`.
    pub run_dir: PathBuf,
    /// Where to write the report [default: report.html in the run's folder].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Also write the reward and accuracy curves as a picture of their own.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Runs the command and says where the report lies.
///
/// # Errors
/// When the folder is not a run's, cannot be read, or the report cannot be written.
pub fn main(args: &ReportArgs) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| RunDir::new(&args.run_dir).report());
    let run = Run::read(&args.run_dir)?;
    write_whole(&out, page::page(&run).as_bytes())?;
    print(&format!("{}\n", out.display()))?;
    if let Some(svg) = &args.svg {
        write_whole(svg, panel::headline_svg(&run).as_bytes())?;
        print(&format!("{}\n", svg.display()))?;
    }
    Ok(())
}

/// Writes the report of the run in `run_dir` to `out`.
///
/// # Errors
/// When the folder is not a run's, cannot be read, or the report cannot be written.
pub fn write(run_dir: &Path, out: &Path) -> Result<()> {
    let run = Run::read(run_dir)?;
    write_whole(out, page::page(&run).as_bytes()).context("cannot write the report")
}

#[cfg(test)]
mod tests;
