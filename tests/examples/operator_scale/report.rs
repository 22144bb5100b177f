//! The figures as Markdown.

use std::fmt::Write as _;

use crate::figures::{Cell, Figures, Measured, Outcome};
use crate::requests;
use crate::setting::Setting;
use crate::systems::System;

const HOW: &str = "Each line is one system on a control plane of its own (etcd, kube-apiserver, kube-controller-manager, \
kube-scheduler, kwok's nodes), which share the machine with it. Seconds count from the first job's creation. Memory is the kernel's proportional set size: \
base after one job has come and gone, per pod what was added when all jobs run; CPU likewise; of JobSet and the Job controller the \
sum. Writes and requests are the system's own, from the audit log; at rest means for 60 s, without leases and renewed watches. A job of ours has two pods at least, one actor and one engine. \
Client limits: ours as shipped; peers 1000 requests a second, bursts of 2000, 16 reconciles at once. In brackets: how many times as good ours is.";

/// The whole report.
pub fn markdown(figures: &Figures) -> String {
    let loads: Vec<f64> = figures.cells.iter().map(|cell| cell.load_before).collect();
    let highest = loads.iter().copied().fold(0.0, f64::max);
    let mut text = format!(
        "{}, {}; highest load average before a cell {highest:.1}.\n\n{HOW}\n\n",
        figures.date, figures.machine
    );
    text.push_str(&main_table(figures));
    text.push_str(&writes_table(figures));
    text.push_str(&requests_table(figures));
    text
}

fn main_table(figures: &Figures) -> String {
    let mut text = String::from(
        "| jobs x pods | system | all pods, s | all run, s | pods/s | base MiB | KiB/pod | CPU ms/pod | writes/job | at rest | touch | delete |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in sorted(figures) {
        let title = title(&cell.system);
        let start = format!("| {} | {title} |", cell.setting.replace('x', " x "));
        match &cell.outcome {
            Outcome::Measured(measured) => {
                let ours = measured_of(figures, System::Ours.name(), &cell.setting);
                let _ = writeln!(text, "{start} {}", row(cell, measured, ours));
            }
            Outcome::Failed(reason) => {
                let reason = reason.lines().next().unwrap_or_default().replace('|', "/");
                let _ = writeln!(text, "{start} failed: {reason} | | | | | | | | | |");
            }
        }
    }
    text
}

fn row(cell: &Cell, measured: &Measured, ours: Option<&Measured>) -> String {
    let ours = ours.filter(|_| cell.system != System::Ours.name());
    let less = |figure: &dyn Fn(&Measured) -> f64, digits: usize| {
        let value = figure(measured);
        let ratio = ours.map(|ours| value / figure(ours));
        with_ratio(format!("{value:.digits$}"), ratio)
    };
    let rate = with_ratio(
        format!("{:.0}", measured.rate()),
        ours.map(|ours| ours.rate() / measured.rate()),
    );
    let writes =
        |measured: &Measured| requests::writes(&measured.requests).values().sum::<usize>() as f64 / cell.jobs as f64;
    let cells = [
        less(&|measured| measured.pods_exist, 1),
        less(&|measured| measured.all_run, 1),
        rate,
        less(&|measured| measured.base.kibibytes / 1024.0, 1),
        less(&Measured::kibibytes_per_pod, 1),
        less(&Measured::milliseconds_per_pod, 2),
        less(&writes, 1),
        measured.at_rest.map_or_else(String::new, |count| count.to_string()),
        measured.after_touch.to_string(),
        measured.after_deletion.to_string(),
    ];
    format!("{} |", cells.join(" | "))
}

/// A figure, and how many times as good ours is where that says something.
fn with_ratio(figure: String, ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio.is_finite() && ratio > 0.0 => format!("{figure} ({ratio:.1}x)"),
        _ => figure,
    }
}

/// What is written for a job, in the largest setting that all have.
fn writes_table(figures: &Figures) -> String {
    let mut text = format!(
        "\nWrites per job at {}:\n\n| system | writes |\n|---|---|\n",
        Setting::ALL[0]
    );
    for (cell, measured) in compared(figures) {
        let mut writes: Vec<(String, usize)> = requests::writes(&measured.requests).into_iter().collect();
        writes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let each = writes
            .iter()
            .map(|(what, count)| format!("{what} {:.2}", *count as f64 / cell.jobs as f64));
        let _ = writeln!(
            text,
            "| {} | {} |",
            title(&cell.system),
            each.collect::<Vec<_>>().join(", ")
        );
    }
    text
}

/// Who asked for what in the same setting.
fn requests_table(figures: &Figures) -> String {
    let mut text = format!(
        "\nRequests at {}, by user agent and verb:\n\n| system | user agent | requests |\n|---|---|---|\n",
        Setting::ALL[0]
    );
    for (cell, measured) in compared(figures) {
        for (agent, verbs) in &measured.by_agent {
            let verbs = verbs.iter().map(|(verb, count)| format!("{verb} {count}"));
            let verbs = verbs.collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "| {} | {agent} | {verbs} |", title(&cell.system));
        }
    }
    text
}

fn compared(figures: &Figures) -> impl Iterator<Item = (&Cell, &Measured)> {
    let setting = Setting::ALL[0].to_string();
    let cells = sorted(figures).into_iter().filter(move |cell| cell.setting == setting);
    cells.filter_map(|cell| match &cell.outcome {
        Outcome::Measured(measured) => Some((cell, &**measured)),
        Outcome::Failed(_) => None,
    })
}

/// By setting and system in the order of their lists; others behind them.
fn sorted(figures: &Figures) -> Vec<&Cell> {
    let place = |cell: &Cell| {
        let setting = Setting::ALL
            .iter()
            .position(|setting| setting.to_string() == cell.setting);
        let system = System::ALL.iter().position(|system| system.name() == cell.system);
        (setting.unwrap_or(usize::MAX), cell.setting.clone(), system)
    };
    let mut cells: Vec<&Cell> = figures.cells.iter().collect();
    cells.sort_by_key(|cell| place(cell));
    cells
}

fn measured_of<'f>(figures: &'f Figures, system: &str, setting: &str) -> Option<&'f Measured> {
    match &figures.cell(system, setting)?.outcome {
        Outcome::Measured(measured) => Some(measured),
        Outcome::Failed(_) => None,
    }
}

fn title(system: &str) -> String {
    system
        .parse::<System>()
        .map_or_else(|_| system.to_owned(), |system| system.title().to_owned())
}
