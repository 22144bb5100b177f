//! What a person sees who watches a run: a live line on a terminal, a line per step elsewhere, JSON or next to nothing on demand.

use std::io::{IsTerminal as _, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::{EvaluationReport, Metric, StepReport};
use crate::output::{show, tell};

/// How much a run says while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputMode {
    /// A live line on a terminal, a plain line per step elsewhere.
    #[default]
    Auto,
    /// Errors and the final summary.
    Quiet,
    /// One JSON object per step on stdout and nothing else there.
    Json,
}

/// The terminal's live area; whoever prints to stderr while a bar is up does so through it.
pub(crate) fn screen() -> &'static MultiProgress {
    static SCREEN: OnceLock<MultiProgress> = OnceLock::new();
    SCREEN.get_or_init(MultiProgress::new)
}

/// Shows the steps of a run.
pub(super) struct Progress {
    view: View,
    total_steps: u64,
}

enum View {
    Live(ProgressBar),
    Plain(Box<dyn Write + Send>),
    Json(Box<dyn Write + Send>),
    Quiet,
}

impl Progress {
    pub fn open(mode: OutputMode, completed_steps: u64, total_steps: u64) -> Progress {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let view = match mode {
            OutputMode::Quiet => View::Quiet,
            OutputMode::Json => View::Json(Box::new(std::io::stdout())),
            OutputMode::Auto if terminal => View::Live(bar(completed_steps, total_steps)),
            OutputMode::Auto => View::Plain(Box::new(std::io::stdout())),
        };
        Progress { view, total_steps }
    }

    /// A step is done; those to come take `eta`.
    pub fn step(&mut self, report: &StepReport, eta: Option<Duration>) -> Result<()> {
        match &mut self.view {
            View::Quiet => {}
            View::Live(bar) => {
                bar.set_position(report.step);
                bar.set_message(live_text(report, eta));
            }
            View::Plain(out) => show(out, &plain_line(report, eta)),
            View::Json(out) => {
                let line = serde_json::to_string(report).context("cannot encode the step's report")?;
                show(out, &line);
            }
        }
        Ok(())
    }

    pub fn evaluation(&mut self, report: &EvaluationReport) {
        let line = evaluation_line(report);
        match &mut self.view {
            View::Quiet | View::Json(_) => {}
            View::Live(bar) => bar.suspend(|| tell(&line)),
            View::Plain(out) => show(out, &line),
        }
    }

    pub fn finish(&mut self, summary: &str) {
        let summary = summary.trim_end();
        match &mut self.view {
            View::Live(bar) => {
                let (step, message) = (bar.position(), bar.message());
                bar.finish_and_clear();
                let mut out = std::io::stdout();
                show(&mut out, &format!("step {step}/{} {message}", self.total_steps));
                show(&mut out, summary);
            }
            View::Plain(out) => show(out, summary),
            View::Quiet => show(&mut std::io::stdout(), summary),
            View::Json(_) => tell(summary),
        }
    }
}

fn bar(completed_steps: u64, total_steps: u64) -> ProgressBar {
    let bar = screen()
        .add(ProgressBar::new(total_steps))
        .with_position(completed_steps);
    // Everything fits a terminal of 80 columns.
    let style = ProgressStyle::with_template("{bar:8.cyan/dim} {pos}/{len} {wide_msg} {took}");
    let took = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // A bar that cannot be drawn is no reason to stop a run.
        let _ = write!(out, "{}", duration(state.elapsed()));
    };
    // The template is a constant; the plain style is what remains should indicatif ever refuse it.
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("took", took).progress_chars("━╸─"));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// `step=12/150   reward=0.41   kl=0.013 ...`: padded behind the value, so that columns align and `grep reward=0.4` works.
fn plain_line(report: &StepReport, eta: Option<Duration>) -> String {
    let mut line = String::new();
    let steps = format!("{}/{}", report.step, report.total_steps);
    column(&mut line, "step", &steps, 2 * report.total_steps.to_string().len() + 1);
    for (name, value) in shown(report) {
        column(&mut line, name, &value, 8);
    }
    column(&mut line, "eta", &eta.map_or("?".into(), duration), 0);
    line.truncate(line.trim_end().len());
    line
}

/// `reward 0.41 kl 0.013 length 4.9 8123 tokens/s eta 2m10s`.
fn live_text(report: &StepReport, eta: Option<Duration>) -> String {
    let mut text = String::new();
    for (name, value) in shown(report) {
        text.push_str(&match name {
            "tokens/s" => format!("{value} {name} "),
            // The reward says it; a line of a terminal is short.
            "score" if report.get(Metric::Reward).is_some() => String::new(),
            _ => format!("{name} {value} "),
        });
    }
    text.push_str(&format!("eta {}", eta.map_or("?".into(), duration)));
    text
}

fn evaluation_line(report: &EvaluationReport) -> String {
    let n = report.n_samples_per_prompt;
    let pass_at_n = report
        .pass_at_n
        .map_or(String::new(), |share| format!(" pass@{n}={share:.3}"));
    format!(
        "evaluation step={} score={} pass@1={:.3}{pass_at_n} length={:.1} prompts={}",
        report.step,
        decimal(report.score),
        report.pass_rate,
        report.response_length,
        report.prompts
    )
}

/// Name and text of what is worth a look at every step; what a run does not have is left out.
fn shown(report: &StepReport) -> Vec<(&'static str, String)> {
    let value = |metric| report.get(metric);
    let columns = [
        ("reward", value(Metric::Reward).map(decimal)),
        ("score", value(Metric::Score).map(decimal)),
        ("kl", value(Metric::Kl).map(decimal)),
        (
            "length",
            value(Metric::ResponseLength).map(|length| format!("{length:.1}")),
        ),
        (
            "tokens/s",
            value(Metric::GenerationTokensPerSecond).map(|rate| format!("{rate:.0}")),
        ),
    ];
    columns
        .into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}

fn column(line: &mut String, name: &str, value: &str, width: usize) {
    line.push_str(&format!("{name}={value:<width$} "));
}

/// Three significant digits or so, never an exponent for the sizes rewards and KL have.
fn decimal(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => value.to_string(),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.001 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// `45s`, `2m10s`, `3h05m`, `2d04h`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Screen {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    fn report(step: u64) -> StepReport {
        let mut report = StepReport {
            step,
            total_steps: 150,
            wall: Duration::from_secs(2),
            ..StepReport::default()
        };
        report.set(Metric::Reward, 0.41);
        report.set(Metric::Kl, 0.013);
        report.set(Metric::ResponseLength, 4.94);
        report.set(Metric::GenerationTokensPerSecond, 8123.4);
        report
    }

    #[test]
    fn a_plain_line_has_every_number_and_the_time_left() {
        let line = plain_line(&report(12), Some(Duration::from_secs(130)));
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "step=12/150",
                "reward=0.410",
                "kl=0.013",
                "length=4.9",
                "tokens/s=8123",
                "eta=2m10s"
            ]
        );
    }

    #[test]
    fn the_live_line_fits_a_narrow_terminal() {
        let text = live_text(&report(12), Some(Duration::from_secs(130)));
        assert_eq!(text, "reward 0.410 kl 0.013 length 4.9 8123 tokens/s eta 2m10s");
        assert!("━━━━━━━━ 150/150 ".chars().count() + text.len() + " 2m10s".len() <= 80);
    }

    #[test]
    fn plain_lines_align() {
        let mut large = report(150);
        large.set(Metric::Reward, -12.5);
        large.set(Metric::Kl, 123.456);
        let columns = |line: &str| ["kl=", "length=", "tokens/s=", "eta="].map(|name| line.find(name).unwrap());
        assert_eq!(
            columns(&plain_line(&report(1), None)),
            columns(&plain_line(&large, None))
        );
    }

    #[test]
    fn what_a_run_does_not_have_is_not_shown() {
        let mut report = report(1);
        report.metrics.remove(&Metric::Kl);
        assert!(!plain_line(&report, None).contains("kl="));
    }

    fn evaluation(n_samples_per_prompt: u64, pass_at_n: Option<f64>) -> EvaluationReport {
        EvaluationReport {
            step: 1,
            prompts: 4,
            n_samples_per_prompt,
            score: 0.5,
            pass_rate: 0.25,
            pass_at_n,
            response_length: 3.0,
            seconds: 0.1,
            sets: Default::default(),
        }
    }

    #[test]
    fn an_evaluation_of_several_samples_a_prompt_tells_how_many_prompts_any_of_them_passed() {
        assert_eq!(
            evaluation_line(&evaluation(1, None)),
            "evaluation step=1 score=0.500 pass@1=0.250 length=3.0 prompts=4"
        );
        assert_eq!(
            evaluation_line(&evaluation(8, Some(0.75))),
            "evaluation step=1 score=0.500 pass@1=0.250 pass@8=0.750 length=3.0 prompts=4"
        );
    }

    #[test]
    fn json_mode_prints_one_object_per_step_and_nothing_else() {
        let screen = Screen::default();
        let view = View::Json(Box::new(screen.clone()));
        let mut progress = Progress { view, total_steps: 150 };
        progress.step(&report(1), None).unwrap();
        progress.evaluation(&evaluation(1, None));
        progress.step(&report(2), None).unwrap();
        let steps: Vec<StepReport> = screen
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(steps, [report(1), report(2)]);
    }

    #[test]
    fn a_duration_reads_as_people_say_it() {
        let texts = [0, 59, 60, 130, 3_600, 11_100, 187_200].map(|s| duration(Duration::from_secs(s)));
        assert_eq!(texts, ["0s", "59s", "1m00s", "2m10s", "1h00m", "3h05m", "2d04h"]);
    }
}
