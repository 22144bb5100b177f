//! `kubectl ppo why`.

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::cli::WhyArgs;
use super::connection::Connection;
use super::explain::{Evidence, Finding, explain, healthy};
use super::output::Output;
use super::printer::visible;
use super::{printer, situation};

/// Exit code when something holds the job up.
const HELD_UP: u8 = 3;
/// Pods that are named; the rest is counted.
const NAMED: usize = 3;

/// Prints what holds the job up; exits with 3 when something does.
pub async fn main(connection: &Connection, args: &WhyArgs) -> Result<ExitCode> {
    let evidence = situation::read(connection, &args.name).await?;
    let now = Timestamp::now();
    let findings = explain(&evidence, now);
    let held_up = findings.iter().any(|finding| finding.blocks);
    let values = || json!({"heldUp": held_up, "findings": findings});
    match args.output {
        Some(Output::Json) => printer::print_json(&values())?,
        Some(Output::Yaml) => printer::print_yaml(&values())?,
        _ => printer::print_styled(&render(&evidence, &findings, now))?,
    }
    Ok(match held_up {
        true => ExitCode::from(HELD_UP),
        false => ExitCode::SUCCESS,
    })
}

/// The findings as text: what, and below it what would help.
fn render(evidence: &Evidence, findings: &[Finding], now: Timestamp) -> String {
    let (blocking, notes): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|finding| finding.blocks);
    let mut text = match blocking.is_empty() {
        true => format!("{}\n", visible(&healthy(evidence, now))),
        false => String::new(),
    };
    for (index, finding) in blocking.iter().enumerate() {
        let number = match blocking.len() {
            1 => String::new(),
            _ => format!("{}. ", index + 1),
        };
        text.push_str(&paragraph(&number, finding, AnsiColor::Red.on_default().bold()));
    }
    if !notes.is_empty() {
        text.push_str("\nAlso:\n");
    }
    for note in notes {
        text.push_str(&paragraph("- ", note, AnsiColor::Yellow.on_default()));
    }
    text
}

fn paragraph(mark: &str, finding: &Finding, style: Style) -> String {
    let indent = " ".repeat(mark.len());
    let pods = match finding.pods.as_slice() {
        [] => String::new(),
        pods => format!(" [{}]", visible(&names(pods))),
    };
    format!(
        "{mark}{style}{:?}{style:#}{pods}\n{indent}{}\n{indent}What helps: {}.\n",
        finding.cause,
        visible(&finding.what),
        visible(finding.fix.trim_end_matches('.'))
    )
}

fn names(pods: &[String]) -> String {
    match pods.len().saturating_sub(NAMED) {
        0 => pods.join(", "),
        more => format!("{} and {more} more", pods[..NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::explain::Cause;
    use super::*;

    #[test]
    fn many_pods_are_counted_not_listed() {
        let pods: Vec<String> = (0..5).map(|index| format!("a-rollout-{index}")).collect();
        assert_eq!(names(&pods), "a-rollout-0, a-rollout-1, a-rollout-2 and 2 more");
        assert_eq!(names(&pods[..2]), "a-rollout-0, a-rollout-1");
    }

    #[test]
    fn a_finding_says_its_cause_its_pods_what_is_wrong_and_what_helps() {
        let finding =
            Finding::blocking(Cause::Image, "The image cannot be pulled.", "correct the tag").of_pod("a-actor-0");
        let text = paragraph("", &finding, Style::new());
        assert_eq!(
            text,
            "Image [a-actor-0]\nThe image cannot be pulled.\nWhat helps: correct the tag.\n"
        );
    }
}
