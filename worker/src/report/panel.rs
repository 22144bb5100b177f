//! Which curves a report shows, and the picture for a README.

use std::collections::BTreeSet;

use super::chart::Chart;
use super::number::short;
use super::run::Run;
use super::series::Series;
use crate::telemetry::{Metric, SetReport, Unit, reward_source};

/// The charts that have something to show, most telling first.
pub(super) fn charts(run: &Run) -> Vec<Chart> {
    let first = [reward(run), held_out(run)].into_iter().flatten();
    let charts = [
        lines(run, "KL to the reference", &[("KL", Metric::Kl)]).map(|chart| chart.note(coefficient_note(run))),
        response_length(run),
        lines(run, "Policy loss", &[("policy loss", Metric::PolicyLoss)]),
        lines(run, "Value loss", &[("value loss", Metric::ValueLoss)]),
        lines(run, "Entropy", &[("entropy", Metric::Entropy)]),
        lines(
            run,
            "Clip fraction",
            &[("policy", Metric::ClipFraction), ("value", Metric::ValueClipFraction)],
        ),
        lines(
            run,
            "Gradient norm",
            &[("actor", Metric::ActorGradNorm), ("critic", Metric::CriticGradNorm)],
        ),
        lines(
            run,
            "Explained variance of the critic",
            &[("explained variance", Metric::ExplainedVariance)],
        ),
        lines(run, "KL of the update", &[("approximate KL", Metric::ApproxKl)]),
        lines(
            run,
            "Log-prob difference, engine to actor",
            &[("mean", Metric::LogprobDifference)],
        ),
        staleness(run),
        lines(
            run,
            "Throughput",
            &[
                ("generation", Metric::GenerationTokensPerSecond),
                ("whole step", Metric::TokensPerSecond),
            ],
        ),
        lines(
            run,
            "Advantages",
            &[("std", Metric::AdvantageStd), ("mean", Metric::AdvantageMean)],
        ),
        reward_sources(run),
        lines(run, "Groups of equal scores", &[("share", Metric::GroupsEqual)]),
        coefficient(run),
    ];
    let steps = run_steps(run);
    first
        .chain(test_sets(run))
        .chain(charts.into_iter().flatten())
        .map(|chart| Chart {
            steps: steps.clone(),
            ..chart
        })
        .collect()
}

/// First and last step anything is known of.
fn run_steps(run: &Run) -> Vec<f64> {
    let steps = run
        .steps
        .iter()
        .map(|report| report.step)
        .chain(run.evaluations.iter().map(|report| report.step));
    let (first, last) = (steps.clone().min(), steps.max());
    first.into_iter().chain(last).map(|step| step as f64).collect()
}

fn reward(run: &Run) -> Option<Chart> {
    lines(
        run,
        "Reward",
        &[("score", Metric::Score), ("reward with KL penalty", Metric::Reward)],
    )
}

fn held_out(run: &Run) -> Option<Chart> {
    let last = run.evaluations.last()?;
    let accuracy = run.evaluations.iter();
    let accuracy = accuracy.map(|report| (report.step as f64, report.pass_rate));
    // With another n it would be another number.
    let n = last.n_samples_per_prompt;
    let alike = run.evaluations.iter().filter(|report| report.n_samples_per_prompt == n);
    let any = alike.filter_map(|report| Some((report.step as f64, report.pass_at_n?)));
    let series = vec![
        Series::sparse("accuracy", accuracy.collect()),
        Series::sparse(format!("pass@{n}"), any.collect()),
    ];
    let each = if n > 1 {
        format!(", {n} samples of each")
    } else {
        String::new()
    };
    let note = format!("{} prompts the policy does not train on{each}", last.prompts);
    Some(Chart::new("Held-out accuracy (pass@1)", series)?.shares().note(note))
}

/// The accuracy on each test set of the last evaluation, four to a chart.
fn test_sets(run: &Run) -> Vec<Chart> {
    let sets = run.evaluations.last().map(|report| &report.sets);
    // One set alone is all of them again.
    let sets: Vec<_> = sets.filter(|sets| sets.len() > 1).into_iter().flatten().collect();
    let line = |name: &str| {
        let points = run.evaluations.iter().filter_map(|report| {
            let of_set = report.sets.get(name)?;
            Some((report.step as f64, of_set.pass_rate))
        });
        Series::sparse(name, points.collect())
    };
    let chart = |sets: &[(&String, &SetReport)]| {
        let series = sets.iter().map(|(name, _)| line(name)).collect();
        let prompts = |(name, report): &(&String, &SetReport)| format!("{name}: {} prompts", report.prompts);
        let note = sets.iter().map(prompts).collect::<Vec<_>>().join(", ");
        Some(Chart::new("Held-out accuracy by test set", series)?.shares().note(note))
    };
    sets.chunks(4).filter_map(chart).collect()
}

fn response_length(run: &Run) -> Option<Chart> {
    let lengths = [
        ("mean", Metric::ResponseLength),
        ("longest", Metric::ResponseLengthMax),
        ("shortest", Metric::ResponseLengthMin),
    ];
    lines(run, "Response length", &lengths)
}

/// Of more than four sources the first ones by name: a chart has no more colours.
fn reward_sources(run: &Run) -> Option<Chart> {
    const MOST: usize = 4;
    let names: BTreeSet<&String> = run.steps.iter().flat_map(|report| report.extra.keys()).collect();
    let names = names.into_iter();
    let sources: Vec<(&str, &String)> = names.filter_map(|name| Some((reward_source(name)?, name))).collect();
    let count = sources.len();
    let lines = sources.into_iter().take(MOST);
    let lines = lines.map(|(source, name)| Series::dense(source, run.extra(name)));
    // One source alone is the score again.
    let chart = Chart::new("Score by source", lines.collect()).filter(|_| count > 1)?;
    Some(match count > MOST {
        true => chart.note(format!("{MOST} of {count} sources; metrics.jsonl has all")),
        false => chart,
    })
}

/// Drawn only where samples are older than the policy.
fn staleness(run: &Run) -> Option<Chart> {
    let stale = run
        .metric(Metric::StalenessMax)
        .iter()
        .any(|(_, versions)| *versions > 0.0);
    let series = [("mean", Metric::Staleness), ("most", Metric::StalenessMax)];
    stale
        .then(|| lines(run, "Staleness, policy versions", &series))
        .flatten()
}

/// Drawn only where it moves.
fn coefficient(run: &Run) -> Option<Chart> {
    coefficient_range(run).filter(|(first, last)| first != last)?;
    lines(run, "KL coefficient", &[("coefficient", Metric::KlCoefficient)])
}

fn coefficient_range(run: &Run) -> Option<(f64, f64)> {
    let values = run.metric(Metric::KlCoefficient);
    Some((values.first()?.1, values.last()?.1))
}

fn coefficient_note(run: &Run) -> String {
    match coefficient_range(run) {
        Some((first, last)) if first == last => format!("coefficient {}", short(first)),
        Some((first, last)) => format!("coefficient {} → {}", short(first), short(last)),
        None => String::new(),
    }
}

/// A chart of catalogue metrics; the first one's unit is the chart's.
fn lines(run: &Run, title: &str, metrics: &[(&str, Metric)]) -> Option<Chart> {
    let series = metrics
        .iter()
        .map(|(name, metric)| Series::dense(*name, run.metric(*metric)))
        .collect();
    let unit = metrics[0].1.unit();
    let chart = Chart::new(title, series)?.unit(unit.label());
    Some(if unit == Unit::Ratio { chart.shares() } else { chart })
}

/// The reward and, where there is one, the held-out accuracy, as one picture that needs no page around it.
pub(super) fn headline_svg(run: &Run) -> String {
    const HEAD: f64 = 34.0;
    let steps = run_steps(run);
    let charts = [reward(run), held_out(run)].into_iter().flatten();
    let charts: Vec<Chart> = charts
        .map(|chart| Chart {
            steps: steps.clone(),
            ..chart
        })
        .collect();
    let (width, height) = Chart::size();
    let mut groups = String::new();
    for (index, chart) in charts.iter().enumerate() {
        let legend: String = chart
            .series
            .iter()
            .enumerate()
            .filter(|_| chart.series.len() > 1)
            .map(|(line, series)| {
                format!(
                    "<tspan class=\"key s{line}\" dx=\"12\">●</tspan><tspan dx=\"4\">{}</tspan>",
                    super::html::escape(&series.name)
                )
            })
            .collect();
        groups.push_str(&format!(
            "<g transform=\"translate({} 0)\"><text class=\"title\" x=\"20\" y=\"26\">{}</text>\
             <text class=\"legend\" x=\"{}\" y=\"26\" text-anchor=\"end\">{legend}</text>\
             <g transform=\"translate(0 {HEAD})\">{}</g></g>",
            index as f64 * width,
            super::html::escape(&chart.title),
            width - 12.0,
            chart.group()
        ));
    }
    if charts.is_empty() {
        groups = "<text class=\"title\" x=\"20\" y=\"26\">No step is recorded yet</text>".into();
    }
    let width = width * charts.len().max(1) as f64 + 8.0;
    let height = height + HEAD + 6.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Reward and held-out accuracy over steps\"><style>{}</style>\
         <rect class=\"card\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>{groups}</svg>\n",
        include_str!("chart.css"),
        width - 1.0,
        height - 1.0
    )
}
