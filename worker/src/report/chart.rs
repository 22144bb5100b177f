//! A line chart as SVG, and the numbers its hover shows.

use std::fmt::Write as _;

use serde::Serialize;

use super::axis::Axis;
use super::html::escape;
use super::number::{apart, percent, percent_apart, short};
use super::series::{Point, Series};

/// Points per line; more would not be seen and would make a long run's report heavy.
pub(super) const MOST_POINTS: usize = 1000;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;
/// Characters of a tick's text that fit left of the plot.
const WIDEST_TICK: usize = 8;

/// One chart: up to four lines over steps on one scale.
#[derive(Debug)]
pub(super) struct Chart {
    pub title: String,
    /// Beside the title; empty for a bare number.
    pub unit: &'static str,
    /// Values are shares, shown as percentages.
    pub shares: bool,
    /// A sentence below the title; may be empty.
    pub note: String,
    pub series: Vec<Series>,
    /// First and last step of the run, so that all charts of a page share their steps; may be empty.
    pub steps: Vec<f64>,
}

/// What the page's script needs to answer the pointer.
#[derive(Debug, Serialize)]
pub(super) struct Hover {
    /// Plot area in the picture's coordinates: left, right, top, bottom.
    area: [f64; 4],
    /// Least and greatest step, least and greatest value.
    range: [f64; 4],
    shares: bool,
    lines: Vec<HoverLine>,
}

#[derive(Debug, Serialize)]
struct HoverLine {
    name: String,
    steps: Vec<f64>,
    /// Null where not finite.
    values: Vec<f64>,
    /// Absent for lines that are drawn as they are.
    smooth: Option<Vec<f64>>,
}

impl Chart {
    /// The lines that have something to show; a chart without any is not drawn.
    pub fn new(title: &str, series: Vec<Series>) -> Option<Chart> {
        let series: Vec<Series> = series.into_iter().filter(|series| !series.is_empty()).collect();
        let chart = Chart {
            title: title.into(),
            unit: "",
            shares: false,
            note: String::new(),
            series,
            steps: Vec::new(),
        };
        (!chart.series.is_empty()).then_some(chart)
    }

    /// Sets the unit.
    pub fn unit(self, unit: &'static str) -> Chart {
        Chart { unit, ..self }
    }

    /// The values are shares.
    pub fn shares(self) -> Chart {
        Chart { shares: true, ..self }
    }

    /// Sets the note.
    pub fn note(self, note: String) -> Chart {
        Chart { note, ..self }
    }

    /// The last finite value of the first line, smoothed, as text.
    pub fn latest(&self) -> String {
        let points = self.series[0].points(MOST_POINTS);
        points
            .iter()
            .rev()
            .find(|point| point.smooth.is_finite())
            .map_or(String::new(), |point| self.text(point.smooth))
    }

    /// The picture as an `<svg>` element of a page that has the style, and what its hover needs.
    pub fn draw(&self) -> (String, Hover) {
        let lines: Vec<Vec<Point>> = self.series.iter().map(|series| series.points(MOST_POINTS)).collect();
        let (across, up) = self.axes(&lines);
        let body = self.body(&lines, &across, &up);
        let svg = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">{body}\
             <line class=\"cursor\" y1=\"{TOP}\" y2=\"{}\" x1=\"0\" x2=\"0\"/></svg>",
            escape(&self.title),
            HEIGHT - BOTTOM
        );
        let hover = Hover {
            area: [LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM],
            range: [across.from, across.to, up.from, up.to],
            shares: self.shares,
            lines: self
                .series
                .iter()
                .zip(&lines)
                .map(|(series, points)| hover_line(series, points))
                .collect(),
        };
        (svg, hover)
    }

    /// The picture as a group for a larger one.
    pub fn group(&self) -> String {
        let lines: Vec<Vec<Point>> = self.series.iter().map(|series| series.points(MOST_POINTS)).collect();
        let (across, up) = self.axes(&lines);
        self.body(&lines, &across, &up)
    }

    /// Width and height of the picture.
    pub fn size() -> (f64, f64) {
        (WIDTH, HEIGHT)
    }

    /// A value in the chart's manner.
    pub fn text(&self, value: f64) -> String {
        if self.shares { percent(value) } else { short(value) }
    }

    fn axes(&self, lines: &[Vec<Point>]) -> (Axis, Axis) {
        let points = || lines.iter().flatten();
        let values = points().map(|point| point.value);
        let up = if self.shares {
            Axis::of_shares(values)
        } else {
            Axis::of_values(values)
        };
        let steps = points().map(|point| point.step).chain(self.steps.iter().copied());
        (Axis::of_steps(steps), up)
    }

    fn body(&self, lines: &[Vec<Point>], across: &Axis, up: &Axis) -> String {
        let x = |step: f64| LEFT + across.share(step) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - up.share(value) * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        let step = up.ticks.windows(2).map(|pair| pair[1] - pair[0]).next();
        for tick in &up.ticks {
            let class = if *tick == 0.0 { "zero" } else { "grid" };
            let text = self.tick_text(*tick, step.unwrap_or(f64::INFINITY));
            let (height, end) = (y(*tick), WIDTH - RIGHT);
            // Writing to a string cannot fail.
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>"
            );
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 7.0,
                height + 3.5
            );
        }
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">step</text>",
            LEFT - 7.0,
            HEIGHT - 9.0
        );
        for tick in &across.ticks {
            let anchor = if across.share(*tick) > 0.97 { "end" } else { "middle" };
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{tick}</text>",
                x(*tick),
                HEIGHT - 9.0
            );
        }
        for (index, (series, points)) in self.series.iter().zip(lines).enumerate() {
            let class = format!("s{index}");
            let raw = path(points.iter().map(|point| (point.step, point.value)), x, y);
            // A line of a few points would hardly be seen.
            if series.sparse || points.len() <= 3 {
                let _ = write!(svg, "<path class=\"line {class}\" d=\"{raw}\"/>");
                for point in points.iter().filter(|point| point.value.is_finite()) {
                    let _ = write!(
                        svg,
                        "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                        x(point.step),
                        y(point.value)
                    );
                }
            } else {
                let smooth = path(points.iter().map(|point| (point.step, point.smooth)), x, y);
                let _ = write!(
                    svg,
                    "<path class=\"raw {class}\" d=\"{raw}\"/><path class=\"line {class}\" d=\"{smooth}\"/>"
                );
            }
        }
        svg
    }

    /// With the digits that tell it from the next tick, as far as there is room for them.
    fn tick_text(&self, value: f64, step: f64) -> String {
        // 0.30000000000000004 is not a tick anyone asked for.
        let rounded = (value * 1e12).round() / 1e12;
        let value = if rounded.is_finite() { rounded } else { value };
        let text = if self.shares {
            percent_apart(value, step)
        } else {
            apart(value, step)
        };
        if text.chars().count() <= WIDEST_TICK {
            text
        } else {
            self.text(value)
        }
    }
}

/// A path that is lifted at gaps. A lone point becomes a dot: a line of no length with a round cap.
fn path(points: impl Iterator<Item = (f64, f64)>, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    let mut down = false;
    for (step, value) in points {
        if !value.is_finite() {
            down = false;
            continue;
        }
        let (x, y) = (x(step), y(value));
        let _ = match down {
            true => write!(path, "L{x:.1} {y:.1}"),
            false => write!(path, "M{x:.1} {y:.1}h0"),
        };
        down = true;
    }
    path
}

fn hover_line(series: &Series, points: &[Point]) -> HoverLine {
    HoverLine {
        name: series.name.clone(),
        steps: points.iter().map(|point| point.step).collect(),
        values: points.iter().map(|point| rounded(point.value)).collect(),
        smooth: (!series.sparse).then(|| points.iter().map(|point| rounded(point.smooth)).collect()),
    }
}

/// Six significant digits: what a pointer can read, in a third of the bytes.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10f64.powf(5.0 - value.abs().log10().floor());
    if scale.is_finite() && scale > 0.0 {
        (value * scale).round() / scale
    } else {
        value
    }
}
