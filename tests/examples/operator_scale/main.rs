//! The operator beside its peers: how each stands many jobs. `make bench-operator` runs all of it.
//!
//! Every cell, one system at one setting, has a control plane of its own with kwok's fake nodes. Figures are kept in
//! `figures.json` after each cell; at the end `figures.md` is written and printed.
//!
//! `cargo run --release -p ppo-tests --example operator_scale -- [--systems ours,job] [--settings 300x8,1x150] [--out DIR] [--add]`

mod cell;
mod driver;
mod figures;
mod machine;
mod options;
mod process;
mod report;
mod requests;
mod setting;
mod systems;

use anyhow::Result;

use crate::figures::{Cell, Figures};
use crate::options::Options;

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let mut figures = Figures::open(&options)?;
    for (system, setting) in options.cells() {
        if figures.has(system, setting) {
            continue;
        }
        eprintln!("operator_scale: {setting} {} ...", system.name());
        let load = machine::load()?;
        let measured = cell::measure(system, setting).await;
        if let Err(error) = &measured {
            eprintln!("operator_scale: {setting} {}: {error:#}", system.name());
        }
        figures.add(Cell::new(system, setting, load, measured))?;
    }
    let text = report::markdown(&figures);
    std::fs::write(options.out.join("figures.md"), &text)?;
    println!("{text}");
    Ok(())
}
