//! The page.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::chart::{Chart, Hover};
use super::html::{embed, escape};
use super::number::{percent, short};
use super::panel;
use super::run::Run;
use super::samples::{self, StepSamples};
use super::stages;
use crate::telemetry::{Answer, BeforeAfter, Metric, SetBeforeAfter, duration};

#[derive(Serialize)]
struct Data<'a> {
    charts: Vec<Hover>,
    samples: Vec<StepSamples<'a>>,
}

/// The whole report.
pub(super) fn page(run: &Run) -> String {
    let charts = panel::charts(run);
    let (cards, hovers): (Vec<String>, Vec<Hover>) = charts.iter().map(card).unzip();
    let data = embed(&Data {
        charts: hovers,
        samples: samples::of_steps(&run.samples),
    });
    // Only the script with this number runs: should anything a model wrote ever slip through as markup, it stays dead.
    // The number depends on all that was written, so no one who wrote a part of it could have known it.
    let nonce = Sha256::digest(&data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>();
    let mut body = header(run);
    body.push_str(&notices(run));
    body.push_str(&tiles(run));
    if !cards.is_empty() {
        body.push_str(&section(
            "curves",
            "Curves",
            &format!("<div class=\"charts\">{}</div>", cards.concat()),
        ));
    }
    if let Some(comparison) = run
        .before_after
        .as_ref()
        .filter(|comparison| !comparison.rows.is_empty())
    {
        body.push_str(&section(
            "held-out",
            "Held-out prompts, before and after",
            &before_after(comparison),
        ));
    }
    if !run.samples.is_empty() {
        body.push_str(&section("samples", "Samples", include_str!("samples.html")));
    }
    if let Some(times) = stages::section(&run.steps) {
        body.push_str(&section(
            "time",
            "Where the time went",
            &format!("<div class=\"card\">{times}</div>"),
        ));
    }
    body.push_str(&events(run));
    body.push_str(&configuration(run));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; form-action 'none'\">\n\
         <title>{} · PPO report</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <footer>Written by ppo-worker {}</footer>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script nonce=\"{nonce}\">\n{}</script>\n</body>\n</html>\n",
        escape(&run.name),
        include_str!("chart.css"),
        include_str!("page.css"),
        env!("CARGO_PKG_VERSION"),
        include_str!("page.js"),
    )
}

fn section(id: &str, title: &str, contents: &str) -> String {
    format!("<section id=\"{id}\"><h2>{title}</h2>{contents}</section>\n")
}

fn header(run: &Run) -> String {
    let facts = [
        (
            "model",
            text(run, "model/policy").map(|location| location.trim_start_matches("./").to_owned()),
        ),
        ("estimator", text(run, "algorithm/estimator")),
        ("profile", text(run, "algorithm/profile")),
        ("KL coefficient", text(run, "algorithm/kl/coef")),
        ("learning rate", text(run, "optimizer/actorLearningRate")),
        ("batch", batch(run)),
        ("seed", text(run, "seed")),
    ];
    let facts: String = facts
        .into_iter()
        .filter_map(|(name, value)| Some(format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value?))))
        .collect();
    format!(
        "<header><p class=\"kicker\">PPO run</p><h1>{}</h1><dl class=\"facts\">{facts}</dl></header>\n",
        escape(&run.name)
    )
}

/// A setting as text; a location (`{"path": ..}`, `{"hub": {"id": ..}}`) as what it points to.
fn text(run: &Run, path: &str) -> Option<String> {
    match run.setting(path)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.as_f64().map_or(number.to_string(), |value| {
            if value.fract() == 0.0 {
                number.to_string()
            } else {
                short(value)
            }
        })),
        Value::Object(location) => {
            let path = location.get("path").and_then(Value::as_str);
            path.or_else(|| location.get("hub")?.get("id")?.as_str())
                .map(str::to_owned)
        }
        _ => None,
    }
}

fn batch(run: &Run) -> Option<String> {
    let number = |name: &str| run.setting(&format!("batch/{name}")).and_then(Value::as_u64);
    let (prompts, samples) = (number("rolloutBatchSize")?, number("nSamplesPerPrompt")?);
    let epochs = number("ppoEpochs").map_or(String::new(), |epochs| format!(", {epochs} epochs"));
    Some(format!("{prompts} prompts × {samples} samples{epochs}"))
}

/// What a reader must know before believing the rest.
fn notices(run: &Run) -> String {
    let mut notices = Vec::new();
    if run.steps.is_empty() {
        let shown = match run.evaluations.is_empty() {
            true => "there are no curves to show",
            false => "only held-out prompts are shown",
        };
        notices.push(format!("No step is recorded yet: {shown}."));
    }
    for (file, lines) in &run.unreadable {
        let (s, were) = if *lines == 1 { ("", "was") } else { ("s", "were") };
        notices.push(format!(
            "{lines} line{s} of {file} could not be read and {were} skipped."
        ));
    }
    for metric in Metric::ALL {
        let broken: Vec<u64> = run
            .steps
            .iter()
            .filter(|report| report.get(*metric).is_some_and(|value| !value.is_finite()))
            .map(|report| report.step)
            .collect();
        if let (Some(first), count) = (broken.first(), broken.len()) {
            let times = if count == 1 {
                String::new()
            } else {
                format!(" and {} more", count - 1)
            };
            notices.push(format!("{} was not finite at step {first}{times}.", metric.name()));
        }
    }
    if notices.is_empty() {
        return String::new();
    }
    let items: String = notices
        .iter()
        .map(|notice| format!("<li>{}</li>", escape(notice)))
        .collect();
    format!("<ul class=\"notices\" role=\"status\">{items}</ul>\n")
}

fn tiles(run: &Run) -> String {
    let mut tiles = Vec::new();
    if let Some((before, after)) = ends(run, Metric::Score).or_else(|| ends(run, Metric::Reward)) {
        tiles.push(tile(
            "score",
            &short(after),
            &format!("from {}: means of a tenth of the run", short(before)),
        ));
    }
    match (&run.before_after, run.evaluations.first(), run.evaluations.last()) {
        (Some(comparison), _, _) if comparison.prompts > 0 => tiles.push(tile(
            "held-out accuracy",
            &percent(comparison.accuracy_after),
            &format!("from {}", percent(comparison.accuracy_before)),
        )),
        (_, Some(first), Some(latest)) => {
            let from = match first.step < latest.step {
                true => format!("from {} ", percent(first.pass_rate)),
                false => String::new(),
            };
            tiles.push(tile(
                "held-out accuracy",
                &percent(latest.pass_rate),
                &format!("{from}at step {}", first.step),
            ));
        }
        _ => {}
    }
    let recent = |metric| ends(run, metric).map(|(_, after)| after);
    if let Some(kl) = recent(Metric::Kl) {
        tiles.push(tile("KL to the reference", &short(kl), "nats per response"));
    }
    if let Some(length) = recent(Metric::ResponseLength) {
        tiles.push(tile("response length", &short(length), "tokens"));
    }
    if let Some(rate) = recent(Metric::GenerationTokensPerSecond) {
        tiles.push(tile("generation", &short(rate), "tokens/s"));
    }
    if let Some(last) = run.steps.last() {
        let seconds = stages::total(&run.steps);
        let time = duration(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let total = if last.total_steps > 0 {
            format!("/{}", last.total_steps)
        } else {
            String::new()
        };
        tiles.push(tile("steps", &format!("{}{total}", last.step), &format!("in {time}")));
    }
    if tiles.is_empty() {
        return String::new();
    }
    format!("<div class=\"tiles\">{}</div>\n", tiles.concat())
}

fn tile(name: &str, value: &str, note: &str) -> String {
    format!(
        "<div class=\"tile\"><span>{name}</span><strong>{}</strong><small>{}</small></div>",
        escape(value),
        escape(note)
    )
}

/// Mean over the first and the last tenth of the run: one step alone is noise.
fn ends(run: &Run, metric: Metric) -> Option<(f64, f64)> {
    let values: Vec<f64> = run
        .metric(metric)
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| value.is_finite())
        .collect();
    let tenth = values.len().div_ceil(10);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    Some((
        mean(values.get(..tenth).filter(|some| !some.is_empty())?),
        mean(&values[values.len() - tenth..]),
    ))
}

fn card(chart: &Chart) -> (String, Hover) {
    let (svg, hover) = chart.draw();
    let legend: String = match chart.series.len() {
        1 => String::new(),
        _ => chart
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| format!("<span><i class=\"swatch s{index}\"></i>{}</span>", escape(&series.name)))
            .collect(),
    };
    let unit = if chart.unit.is_empty() {
        String::new()
    } else {
        format!(" <small>{}</small>", escape(chart.unit))
    };
    let html = format!(
        "<figure class=\"card\"><figcaption><h3>{}{unit}</h3><output>{}</output></figcaption>\
         <div class=\"under\"><span>{}</span><div class=\"legend\">{legend}</div></div>{svg}</figure>",
        escape(&chart.title),
        escape(&chart.latest()),
        escape(&chart.note),
    );
    (html, hover)
}

fn before_after(comparison: &BeforeAfter) -> String {
    let answer = |answer: &Answer| {
        let (class, mark) = if comparison.passed(answer) {
            ("pass", "✓")
        } else {
            ("fail", "✗")
        };
        format!(
            "<td class=\"{class}\"><b>{mark}</b> <span>{}</span></td>",
            escape(&answer.response)
        )
    };
    let labels = comparison.rows.iter().any(|row| row.label.is_some());
    let rows: String = comparison
        .rows
        .iter()
        .map(|row| {
            let label = if labels {
                format!("<td class=\"text\">{}</td>", escape(row.label.as_deref().unwrap_or("")))
            } else {
                String::new()
            };
            format!(
                "<tr><td class=\"text\">{}</td>{label}{}{}<td class=\"n\">{} → {}</td></tr>",
                escape(&row.prompt),
                answer(&row.before),
                answer(&row.after),
                short(row.before.score),
                short(row.after.score)
            )
        })
        .collect();
    let label = if labels { "<th>label</th>" } else { "" };
    let pass_at_n = comparison.pass_at_n.as_ref().map_or(String::new(), |pass| {
        format!(
            " With {n} samples of each, pass@{n} <b>{}</b> → <b>{}</b>; the first of them is shown.",
            percent(pass.before),
            percent(pass.after),
            n = pass.n_samples_per_prompt
        )
    });
    format!(
        "<p class=\"lead\">Accuracy <b>{}</b> → <b>{}</b> on {} held-out prompts.{pass_at_n}</p>{}<div class=\"card scroll\"><table>\
         <thead><tr><th>prompt</th>{label}<th>before</th><th>after</th><th class=\"n\">score</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>",
        percent(comparison.accuracy_before),
        percent(comparison.accuracy_after),
        comparison.prompts,
        test_sets(comparison)
    )
}

/// A table with a row for each test set, where there are any.
fn test_sets(comparison: &BeforeAfter) -> String {
    if comparison.sets.is_empty() {
        return String::new();
    }
    let of_n = comparison.pass_at_n.as_ref();
    let rows: String = comparison
        .sets
        .iter()
        .map(|(name, SetBeforeAfter { before, after })| {
            let shares = before.pass_at_n.zip(after.pass_at_n).filter(|_| of_n.is_some());
            let pass_at_n = shares.map_or(String::new(), |(before, after)| {
                format!("<td class=\"n\">{} → {}</td>", percent(before), percent(after))
            });
            format!(
                "<tr><td class=\"text\">{}</td><td class=\"n\">{}</td><td class=\"n\">{} → {}</td>{pass_at_n}\
                 <td class=\"n\">{} → {}</td></tr>",
                escape(name),
                after.prompts,
                percent(before.pass_rate),
                percent(after.pass_rate),
                short(before.score),
                short(after.score)
            )
        })
        .collect();
    let pass_at_n = of_n.map_or(String::new(), |pass| {
        format!("<th class=\"n\">pass@{}</th>", pass.n_samples_per_prompt)
    });
    format!(
        "<div class=\"card scroll lead\"><table><thead><tr><th>test set</th><th class=\"n\">prompts</th><th class=\"n\">accuracy</th>\
         {pass_at_n}<th class=\"n\">score</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
}

fn events(run: &Run) -> String {
    if run.events.is_empty() {
        return String::new();
    }
    // The newest are the ones that explain how the run ended.
    const MOST: usize = 200;
    let skipped = run.events.len().saturating_sub(MOST);
    let rows: String = run.events[skipped..]
        .iter()
        .map(|event| {
            format!(
                "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
                event.step,
                escape(&event.kind),
                escape(&event.message)
            )
        })
        .collect();
    let note = if skipped > 0 {
        format!("<p class=\"lead\">The latest {MOST} of {}.</p>", run.events.len())
    } else {
        String::new()
    };
    let table = format!(
        "{note}<div class=\"card scroll\"><table><thead><tr><th class=\"n\">step</th><th>event</th><th>what happened</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    );
    section("events", "Events", &table)
}

fn configuration(run: &Run) -> String {
    if run.config.is_null() {
        return String::new();
    }
    let json = serde_json::to_string_pretty(&run.config).unwrap_or_default();
    section(
        "configuration",
        "Configuration",
        &format!(
            "<details class=\"card\"><summary>run_config.json, every default filled in</summary><pre>{}</pre></details>",
            escape(&json)
        ),
    )
}
