use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::telemetry::{Metric, SampleRecord, Stage, StepReport, TokenRecord};

/// A run's folder with `steps` steps in which the score rises.
fn folder(steps: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (1..=steps).map(|step| line(&report(step, steps))).collect();
    std::fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
    folder
}

fn report(step: u64, total_steps: u64) -> StepReport {
    let mut report = StepReport {
        step,
        total_steps,
        wall: Duration::from_secs(2),
        ..StepReport::default()
    };
    report.set(Metric::Score, step as f64 / total_steps as f64);
    report.set(Metric::Kl, 0.01);
    report.set(Metric::ClipFraction, 0.1);
    report.stages.push((Stage::Generate, Duration::from_millis(1500)));
    report
}

fn line(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap() + "\n"
}

fn html(folder: &Path) -> String {
    let out = folder.join("report.html");
    write(folder, &out).unwrap();
    std::fs::read_to_string(out).unwrap()
}

#[test]
fn the_page_holds_all_it_needs_and_looks_up_no_address() {
    let folder = folder(50);
    let html = html(folder.path());
    for address in ["http:", "https:", "//cdn", "src=", "href=", "@import", "url("] {
        assert!(!html.contains(address), "{address} in the page");
    }
    assert!(html.contains("<svg class=\"chart\"") && html.contains("Where the time went"));
}

#[test]
fn what_a_model_wrote_is_inert() {
    const ATTACK: &str = "</script><img src=x onerror=alert(1)><script>alert(2)</script>\"'><!--";
    let folder = folder(3);
    let token = TokenRecord {
        text: ATTACK.into(),
        ..TokenRecord::default()
    };
    let sample = SampleRecord {
        prompt: ATTACK.into(),
        label: Some(ATTACK.into()),
        response: ATTACK.into(),
        finish_reason: ATTACK.into(),
        tokens: vec![token],
        ..SampleRecord::default()
    };
    let mut sample = serde_json::to_value(sample).unwrap();
    sample["step"] = 3.into();
    std::fs::write(folder.path().join("samples.jsonl"), line(&sample)).unwrap();
    let answer = json!({"response": ATTACK, "score": 0.0});
    let comparison = json!({"pass_score": 1.0, "accuracy_before": 0.1, "accuracy_after": 0.2, "prompts": 1,
        "rows": [{"prompt": ATTACK, "label": ATTACK, "before": answer, "after": answer}]});
    std::fs::write(folder.path().join("before_after.json"), comparison.to_string()).unwrap();
    let event = json!({"time": 0.0, "step": 1, "kind": ATTACK, "message": ATTACK});
    std::fs::write(folder.path().join("events.jsonl"), line(&event)).unwrap();
    std::fs::write(
        folder.path().join("run_config.json"),
        json!({"name": ATTACK}).to_string(),
    )
    .unwrap();
    let html = html(folder.path());
    assert!(!html.contains("<img"), "an element from a response");
    assert_eq!(html.matches("<script").count(), 2, "the data and the page's own script");
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<!--"), "a comment from a response");
    assert!(
        html.contains("script-src 'nonce-"),
        "scripts are limited to the page's own"
    );
    assert!(
        html.contains("&lt;/script&gt;&lt;img"),
        "the text is still there to read"
    );
}

#[test]
fn pass_at_n_is_drawn_and_compared_where_held_out_prompts_have_several_samples() {
    let folder = folder(3);
    let evaluation = |step: u64| json!({"step": step, "prompts": 30, "score": 0.25, "pass_rate": 0.25, "response_length": 3.0, "seconds": 0.1});
    let write_evaluations = |lines: [serde_json::Value; 2]| {
        let lines = lines.map(|evaluation| line(&evaluation)).concat();
        std::fs::write(folder.path().join("evaluation.jsonl"), lines).unwrap();
    };
    write_evaluations([0, 3].map(evaluation));
    let html_of_one = html(folder.path());
    assert!(html_of_one.contains("Held-out accuracy (pass@1)") && html_of_one.contains("30 prompts the policy"));
    assert!(!html_of_one.contains("pass@8") && !html_of_one.contains("samples of each"));

    write_evaluations([0, 3].map(|step| {
        let mut evaluation = evaluation(step);
        evaluation["n_samples_per_prompt"] = json!(8);
        evaluation["pass_at_n"] = json!(0.75);
        evaluation
    }));
    let answer = json!({"response": "46", "score": 1.0});
    let comparison = json!({"pass_score": 1.0, "accuracy_before": 0.1, "accuracy_after": 0.2, "prompts": 30,
        "pass_at_n": {"n_samples_per_prompt": 8, "before": 0.5, "after": 0.75},
        "rows": [{"prompt": "12+34=", "label": null, "before": answer, "after": answer}]});
    std::fs::write(folder.path().join("before_after.json"), comparison.to_string()).unwrap();
    let html = html(folder.path());
    assert!(html.contains("</i>pass@8</span>") && html.contains(", 8 samples of each"));
    assert!(
        html.contains("pass@8 <b>50 %</b> → <b>75 %</b>; the first of them is shown"),
        "the words above the table"
    );
}

/// A test set in an evaluation.
fn set(pass_rate: f64) -> serde_json::Value {
    json!({"prompts": 30, "score": pass_rate, "pass_rate": pass_rate, "response_length": 3.0})
}

/// The lines of evaluations after two steps, with these test sets.
fn evaluations_with(sets: &serde_json::Value) -> String {
    let of_step = |step: u64| {
        let mut evaluation = set(0.25);
        evaluation["step"] = step.into();
        evaluation["seconds"] = json!(0.1);
        evaluation["sets"] = sets.clone();
        line(&evaluation)
    };
    [0, 3].map(of_step).concat()
}

#[test]
fn every_test_set_has_a_line_four_to_a_chart_and_one_alone_has_none() {
    let folder = folder(3);
    let charts = |names: &[&str]| {
        let sets = names.iter().map(|name| ((*name).to_owned(), set(0.5))).collect();
        let text = evaluations_with(&serde_json::Value::Object(sets));
        std::fs::write(folder.path().join("evaluation.jsonl"), text).unwrap();
        html(folder.path())
    };
    const TITLE: &str = "<h3>Held-out accuracy by test set</h3>";
    assert!(!charts(&["GSM8K"]).contains(TITLE));
    let two = charts(&["AIME24", "GSM8K"]);
    assert_eq!(two.matches(TITLE).count(), 1);
    assert!(two.contains("</i>AIME24</span>") && two.contains("AIME24: 30 prompts, GSM8K: 30 prompts"));
    let five = charts(&["a", "b", "c", "d", "<e>"]);
    assert_eq!(five.matches(TITLE).count(), 2);
    assert!(five.contains("<span>&lt;e&gt;: 30 prompts, a: 30 prompts") && !five.contains("<e>"));
    // A line alone has no legend.
    assert!(five.contains("<span>d: 30 prompts</span>"));
}

#[test]
fn each_test_set_is_compared_in_a_row_of_its_own() {
    let folder = folder(3);
    let answer = json!({"response": "46", "score": 1.0});
    let mut comparison = json!({"pass_score": 1.0, "accuracy_before": 0.1, "accuracy_after": 0.2, "prompts": 60,
        "rows": [{"prompt": "12+34=", "label": null, "before": answer, "after": answer}]});
    let page = |comparison: &serde_json::Value| {
        std::fs::write(folder.path().join("before_after.json"), comparison.to_string()).unwrap();
        html(folder.path())
    };
    assert!(!page(&comparison).contains("<th>test set</th>"));
    comparison["sets"] = json!({"<AIME24>": {"before": set(0.25), "after": set(0.5)}});
    let of_one = page(&comparison);
    let row = "<td class=\"text\">&lt;AIME24&gt;</td><td class=\"n\">30</td><td class=\"n\">25 % → 50 %</td>";
    assert!(of_one.contains(row));
    comparison["pass_at_n"] = json!({"n_samples_per_prompt": 8, "before": 0.5, "after": 0.75});
    for (end, share) in [("before", 0.5), ("after", 0.75)] {
        comparison["sets"]["<AIME24>"][end]["pass_at_n"] = json!(share);
    }
    let of_eight = page(&comparison);
    assert!(of_eight.contains("<th class=\"n\">pass@8</th>") && of_eight.contains("<td class=\"n\">50 % → 75 %</td>"));
}

#[test]
fn the_checkpoint_after_the_last_step_is_in_the_time_of_the_run() {
    let folder = folder(3);
    let event =
        json!({"time": 0.0, "step": 3, "kind": "succeeded", "message": "3 steps", "stages": {"checkpoint": 4.0}});
    std::fs::write(folder.path().join("events.jsonl"), line(&event)).unwrap();
    let html = html(folder.path());
    assert!(html.contains("</i>checkpoint</td>"), "no row for it");
    assert!(html.contains("<small>in 10s</small>"), "three steps of 2 s, and 4 s");
}

#[test]
fn a_run_without_steps_says_so() {
    let folder = folder(0);
    let html = html(folder.path());
    assert!(html.contains("No step is recorded yet"));
    assert!(!html.contains("<svg"));
}

#[test]
fn an_evaluation_before_the_first_step_is_told_as_what_there_is() {
    let folder = folder(0);
    let of_step = |step: u64| {
        let mut evaluation = set(0.25);
        evaluation["step"] = step.into();
        evaluation["seconds"] = json!(0.1);
        line(&evaluation)
    };
    let page = |lines: String| {
        std::fs::write(folder.path().join("evaluation.jsonl"), lines).unwrap();
        html(folder.path())
    };
    let of_one = page(of_step(0));
    assert!(of_one.contains("<h3>Held-out accuracy") && of_one.contains("<svg"));
    assert!(of_one.contains("No step is recorded yet: only held-out prompts are shown."));
    assert!(!of_one.contains("no curves"));
    assert!(of_one.contains("<span>held-out accuracy</span><strong>25 %</strong><small>at step 0</small>"));
    assert!(!of_one.contains("<span>steps</span>"));
    let of_two = page([0, 3].map(of_step).concat());
    assert!(of_two.contains("<small>from 25 % at step 0</small>"));
}

#[test]
fn one_step_is_drawn_as_a_dot() {
    let folder = folder(1);
    assert!(html(folder.path()).contains("<circle class=\"dot s0\""));
}

#[test]
fn torn_lines_and_broken_numbers_are_named_and_skipped() {
    let folder = folder(5);
    let path = folder.path().join("metrics.jsonl");
    let mut broken = report(6, 6);
    broken.set(Metric::PolicyLoss, f64::NAN);
    let text = std::fs::read_to_string(&path).unwrap() + &line(&broken) + "{\"step\": 7, \"sco";
    std::fs::write(&path, text).unwrap();
    let html = html(folder.path());
    assert!(html.contains("1 line of metrics.jsonl could not be read"));
    assert!(html.contains("policy_loss was not finite at step 6."));
    assert!(!html.contains("<h3>Policy loss"), "a chart of nothing finite");
}

#[test]
fn a_line_of_huge_numbers_is_told_as_it_stands() {
    let folder = folder(2);
    let path = folder.path().join("metrics.jsonl");
    let most = u64::MAX;
    let huge = format!("{{\"step\": {most}, \"samples\": {most}, \"step_seconds\": 1e300, \"kl\": 1e300}}\n");
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + &huge).unwrap();
    let html = html(folder.path());
    assert!(html.contains(&format!("<strong>{most}</strong>")));
    assert!(html.contains(">5e299</text>") && !html.contains(">∞</text>"));
}

#[test]
fn ticks_of_an_axis_are_told_apart() {
    let folder = folder(0);
    let lines = (1..=40).map(|step| {
        let mut report = report(step, 40);
        let share = step as f64 / 40.0;
        report.set(Metric::GenerationTokensPerSecond, 25_860.0 + 150.0 * share);
        report.set(Metric::PolicyLoss, -120.0 - 0.1 * share);
        report.set(Metric::ClipFraction, 0.97 + 0.015 * share);
        line(&report)
    });
    std::fs::write(folder.path().join("metrics.jsonl"), lines.collect::<String>()).unwrap();
    let html = html(folder.path());
    for title in ["Throughput", "Policy loss", "Clip fraction"] {
        let chart = html.split(&format!("<h3>{title}")).nth(1).unwrap();
        let chart = chart.split("</figure>").next().unwrap();
        let texts = chart.split("text-anchor=\"end\">").skip(1);
        let mut texts: Vec<&str> = texts.map(|rest| rest.split('<').next().unwrap()).collect();
        let count = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert!(count > 3 && texts.len() == count, "{title}: {texts:?} of {count}");
    }
}

#[test]
fn of_many_sources_of_the_reward_it_says_how_many_are_drawn() {
    let page = |sources: u64| {
        let folder = folder(0);
        let mut report = report(1, 1);
        report.extra = (1..=sources)
            .map(|number| (format!("reward/regex{number}"), 0.5))
            .collect();
        report.extra.insert("reward/regex1/further".into(), 1.0);
        std::fs::write(folder.path().join("metrics.jsonl"), line(&report)).unwrap();
        html(folder.path())
    };
    assert!(!page(1).contains("<h3>Score by source"));
    let four = page(4);
    assert!(four.contains("<h3>Score by source") && !four.contains("sources; metrics.jsonl"));
    assert!(page(6).contains("4 of 6 sources; metrics.jsonl has all"));
}

#[test]
fn a_metric_that_was_never_reported_has_no_chart() {
    let folder = folder(5);
    let html = html(folder.path());
    assert!(html.contains("<h3>Clip fraction") && !html.contains("<h3>Value loss"));
}

#[test]
fn a_huge_run_makes_a_page_of_bounded_size_that_keeps_its_spike() {
    let folder = folder(0);
    let mut lines = String::new();
    for step in 1..=20_000 {
        let mut report = report(step, 20_000);
        if step == 12_345 {
            report.set(Metric::Kl, 98_765.0);
        }
        lines.push_str(&line(&report));
    }
    std::fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
    let html = html(folder.path());
    assert!(html.len() < 600_000, "{} bytes", html.len());
    assert!(html.contains("98765"));
}

#[test]
fn a_folder_that_is_no_run_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = write(folder.path(), &folder.path().join("report.html"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&folder.path().display().to_string()) && error.contains("metrics.jsonl"),
        "{error}"
    );
    let missing = folder.path().join("nowhere");
    assert!(
        write(&missing, &missing.join("report.html"))
            .unwrap_err()
            .to_string()
            .contains("nowhere")
    );
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_that_names_the_file() {
    let folder = folder(1);
    let out = folder.path().join("no such folder").join("report.html");
    let error = format!("{:#}", write(folder.path(), &out).unwrap_err());
    assert!(error.contains("no such folder/report.html"), "{error}");
}

#[test]
fn the_picture_for_a_readme_stands_alone() {
    let folder = folder(20);
    let svg = folder.path().join("curve.svg");
    let args = ReportArgs {
        run_dir: folder.path().into(),
        out: None,
        svg: Some(svg.clone()),
    };
    main(&args).unwrap();
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg xmlns") && svg.contains("<style>") && svg.contains("class=\"line s0\""));
    assert!(!svg.contains("<script"));
}
