//! What a supervised run shows: a live line on a terminal, a line now and then elsewhere, JSON on demand.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::train::{HeldOut, Measure};
use crate::output::{show, tell};
use crate::telemetry::{OutputMode, screen};

/// The progress of a supervised run.
pub struct Progress {
    bar: Option<ProgressBar>,
    output: OutputMode,
    steps: u64,
    measure: Measure,
}

impl Progress {
    /// A bar on a terminal unless `output` says otherwise.
    pub fn open(output: OutputMode, steps: u64, measure: Measure) -> Self {
        let live =
            matches!(output, OutputMode::Auto) && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = screen().add(ProgressBar::new(steps));
            let style = ProgressStyle::with_template(
                "{bar:24.cyan/dim} step {pos}/{len} {wide_msg} {elapsed:>4} elapsed, {eta} left",
            );
            bar.set_style(
                style
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("━╸─"),
            );
            bar
        });
        Self {
            bar,
            output,
            steps,
            measure,
        }
    }

    /// A step is done, the last one where the run `ends`; `held_out` is the last evaluation, and of which step.
    pub fn step(&mut self, step: u64, loss: f64, held_out: Option<(u64, HeldOut)>, ends: bool) {
        let held_out_words = held_out.map_or(String::new(), |(measured, held_out)| {
            let at = match measured == step {
                true => String::new(),
                false => format!(" at step {measured}"),
            };
            format!(
                "  held-out loss {:.3} {} {:.0} %{at}",
                held_out.loss,
                self.measure.short,
                100.0 * held_out.right
            )
        });
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            bar.set_message(format!("loss {loss:.3}{held_out_words}"));
            return;
        }
        // Ten lines a run where nobody watches a bar.
        let due = ends || step.is_multiple_of((self.steps / 10).max(1));
        match self.output {
            OutputMode::Auto if due => line(&format!("step={step}/{} loss={loss:.4}{held_out_words}", self.steps)),
            OutputMode::Json if due => line(
                &json!({
                    "step": step, "totalSteps": self.steps, "loss": loss,
                    "heldOutStep": held_out.map(|(measured, _)| measured),
                    "heldOutLoss": held_out.map(|(_, held_out)| held_out.loss),
                    (self.measure.key): held_out.map(|(_, held_out)| held_out.right),
                })
                .to_string(),
            ),
            _ => {}
        }
    }

    /// The last words; on standard error where standard output is for JSON.
    pub fn finish(self, summary: &str) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
        match self.output {
            OutputMode::Json => tell(summary),
            OutputMode::Auto | OutputMode::Quiet => line(summary),
        }
    }
}

fn line(text: &str) {
    show(&mut std::io::stdout(), text);
}
