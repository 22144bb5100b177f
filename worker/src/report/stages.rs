//! Where the time went: seconds per stage, in all and over the run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::axis::Axis;
use super::html::escape;
use super::number::{percent, short};
use crate::telemetry::{Stage, StepReport, duration};

/// Bars over the run; a bar is the mean of its steps.
const MOST_BARS: usize = 60;
const WIDTH: f64 = 1140.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 54.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

/// A stage, or what lies between the stages.
type Part = Option<Stage>;

/// The bars over the run and the table of totals; None where no step took time.
pub(super) fn section(steps: &[StepReport]) -> Option<String> {
    let wall = total(steps);
    if wall <= 0.0 {
        return None;
    }
    let totals = seconds(steps);
    let mut order: Vec<(Part, f64)> = totals.into_iter().filter(|(_, seconds)| *seconds > 0.0).collect();
    // Largest first; what is between the stages last.
    order.sort_by(|a, b| {
        (a.0.is_none(), b.1)
            .partial_cmp(&(b.0.is_none(), a.1))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let parts: Vec<Part> = order.iter().map(|(part, _)| *part).collect();
    Some(format!("{}{}", bars(steps, &parts), table(&order, wall, steps.len())))
}

/// Seconds of all steps, and of what came between them.
pub(super) fn total(steps: &[StepReport]) -> f64 {
    seconds(steps).values().sum()
}

/// Seconds per part. Stages that overlap may sum to more than the step's wall-clock time; then nothing is between.
fn seconds(steps: &[StepReport]) -> BTreeMap<Part, f64> {
    let mut totals = BTreeMap::new();
    for report in steps {
        let stages = report.stage_seconds();
        let within = stages.iter().filter(|(stage, _)| !stage.is_between_steps());
        let within: f64 = within.map(|(_, seconds)| seconds).sum();
        let between = (report.wall.as_secs_f64() - within).max(0.0);
        for (stage, seconds) in stages {
            *totals.entry(Some(stage)).or_insert(0.0) += seconds;
        }
        *totals.entry(None).or_insert(0.0) += between;
    }
    totals
}

fn bars(steps: &[StepReport], parts: &[Part]) -> String {
    let per_bar = steps.len().div_ceil(MOST_BARS).max(1);
    let groups: Vec<&[StepReport]> = steps.chunks(per_bar).collect();
    let heights: Vec<BTreeMap<Part, f64>> = groups
        .iter()
        .map(|group| {
            seconds(group)
                .into_iter()
                .map(|(part, total)| (part, total / group.len() as f64))
                .collect()
        })
        .collect();
    let up = Axis::of_values(heights.iter().map(|bar| bar.values().sum()).chain([0.0]));
    let y = |seconds: f64| HEIGHT - BOTTOM - up.share(seconds) * (HEIGHT - TOP - BOTTOM);
    let slot = (WIDTH - LEFT) / groups.len() as f64;
    // One or two bars should not fill the page.
    let width = (slot * 0.82).min(48.0);
    let mut svg =
        format!("<svg class=\"wide\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Seconds per stage\">");
    for tick in &up.ticks {
        let (height, text) = (y(*tick), short(*tick));
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>"
        );
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text} s</text>",
            LEFT - 7.0,
            height + 3.5
        );
    }
    let label_every = groups.len().div_ceil(10);
    for (index, (group, bar)) in groups.iter().zip(&heights).enumerate() {
        let (first, last) = (group[0].step, group[group.len() - 1].step);
        let name = if first == last {
            format!("step {first}")
        } else {
            format!("steps {first}–{last}, mean")
        };
        let x = LEFT + slot * index as f64 + (slot - width) / 2.0;
        let mut base = 0.0;
        for part in parts {
            let Some(seconds) = bar.get(part).filter(|seconds| **seconds > 0.0) else {
                continue;
            };
            let (top, bottom) = (y(base + seconds), y(base));
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"><title>{name}: {} {} s</title></rect>",
                class(*part),
                bottom - top,
                label(*part),
                short(*seconds)
            );
            base += seconds;
        }
        if index % label_every == 0 {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{first}</text>",
                x + width / 2.0,
                HEIGHT - 9.0
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

fn table(order: &[(Part, f64)], wall: f64, steps: usize) -> String {
    let mut rows = String::new();
    for (part, seconds) in order {
        let share = seconds / wall;
        let _ = write!(
            rows,
            "<tr><td><i class=\"swatch {}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{} s</td>\
             <td class=\"meter\"><span class=\"{}\" style=\"width:{:.1}%\"></span></td></tr>",
            class(*part),
            escape(label(*part)),
            percent(share),
            duration(Duration::try_from_secs_f64(*seconds).unwrap_or_default()),
            short(seconds / steps as f64),
            class(*part),
            100.0 * share
        );
    }
    format!(
        "<table class=\"stages\"><thead><tr><th>stage</th><th class=\"n\">share</th><th class=\"n\">in all</th>\
         <th class=\"n\">per step</th><th class=\"meter\"></th></tr></thead><tbody>{rows}</tbody></table>"
    )
}

/// A colour of its own for each stage, so that two reports can be laid side by side.
fn class(part: Part) -> String {
    match part {
        Some(stage) => format!("stage-{}", stage.name()),
        None => "stage-between".into(),
    }
}

fn label(part: Part) -> &'static str {
    match part {
        Some(Stage::OldLogprobs) => "old log-probs",
        Some(Stage::UpdateActor) => "update actor",
        Some(Stage::UpdateCritic) => "update critic",
        Some(stage) => stage.name(),
        None => "between the stages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_of_a_step_is_accounted_for() {
        let report = StepReport {
            step: 1,
            wall: Duration::from_secs(10),
            stages: vec![
                (Stage::Generate, Duration::from_secs(6)),
                (Stage::UpdateActor, Duration::from_secs(1)),
                (Stage::UpdateActor, Duration::from_secs(1)),
            ],
            ..StepReport::default()
        };
        let totals = seconds(&[report.clone(), report]);
        assert_eq!(totals[&Some(Stage::Generate)], 12.0);
        assert_eq!(totals[&Some(Stage::UpdateActor)], 4.0);
        assert_eq!(totals[&None], 4.0);
    }

    #[test]
    fn evaluations_and_checkpoints_come_in_addition_to_the_time_of_steps() {
        let report = StepReport {
            step: 1,
            wall: Duration::from_secs(10),
            stages: vec![
                (Stage::Checkpoint, Duration::from_secs(5)),
                (Stage::Generate, Duration::from_secs(7)),
                (Stage::Evaluate, Duration::from_secs(20)),
            ],
            ..StepReport::default()
        };
        let steps = [report];
        assert_eq!(seconds(&steps)[&None], 3.0);
        assert_eq!(total(&steps), 35.0);
    }

    #[test]
    fn a_run_without_times_has_no_section() {
        assert_eq!(section(&[]), None);
        assert_eq!(
            section(&[StepReport {
                step: 1,
                ..StepReport::default()
            }]),
            None
        );
    }
}
