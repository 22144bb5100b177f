//! The before/after table for the terminal.

use std::borrow::Cow;

use console::{measure_text_width, truncate_str};

use super::before_after::rise;
use super::{Answer, BeforeAfter, SetBeforeAfter};

/// Least width of a column that had to give way.
const NARROWEST: usize = 6;
const GAP: &str = "  ";

/// The table and its summary line, no line wider than `width` terminal cells (where that leaves each column a few).
/// Control characters in prompts and responses are shown, not obeyed.
pub fn render(comparison: &BeforeAfter, width: usize) -> String {
    let mut text = block(&cells(comparison), width);
    if let Some(pass) = &comparison.pass_at_n {
        text.push_str(&format!("shown: the first of {} samples\n", pass.n_samples_per_prompt));
    }
    if !comparison.sets.is_empty() {
        text.push_str(&format!("\n{}", block(&cells_of_sets(comparison), width)));
    }
    text.push_str(&comparison.summary());
    text.push('\n');
    text
}

/// Rows under the first of them.
fn block(rows: &[Row], width: usize) -> String {
    let widths = fit(rows, width.saturating_sub(GAP.len() * 4));
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text.push_str(&line(row, &widths));
        if index == 0 {
            let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            text.push_str(rule.join(GAP).trim_end());
            text.push('\n');
        }
    }
    text
}

/// Width of the terminal behind stdout in cells; 100 where there is none.
pub fn terminal_width() -> usize {
    console::Term::stdout()
        .size_checked()
        .map_or(100, |(_, columns)| columns.into())
}

type Row = [String; 5];

fn cells(comparison: &BeforeAfter) -> Vec<Row> {
    let mark = |answer: &Answer| if comparison.passed(answer) { "✓" } else { "✗" };
    let header = ["prompt", "label", "before", "after", "score"].map(String::from);
    let rows = comparison.rows.iter().map(|row| {
        [
            visible(&row.prompt),
            visible(row.label.as_deref().unwrap_or("")),
            format!("{} {}", mark(&row.before), visible(&row.before.response)),
            format!("{} {}", mark(&row.after), visible(&row.after.response)),
            format!("{:.2} -> {:.2}", row.before.score, row.after.score),
        ]
    });
    std::iter::once(header).chain(rows).collect()
}

/// A row for each test set.
fn cells_of_sets(comparison: &BeforeAfter) -> Vec<Row> {
    let pass_at_n = comparison.pass_at_n.as_ref();
    let pass_at_n = pass_at_n.map_or(String::new(), |pass| format!("pass@{}", pass.n_samples_per_prompt));
    let [set, prompts, accuracy, score] = ["test set", "prompts", "accuracy", "score"].map(String::from);
    let rows = comparison.sets.iter().map(|(name, SetBeforeAfter { before, after })| {
        let shares = before.pass_at_n.zip(after.pass_at_n);
        [
            visible(name),
            after.prompts.to_string(),
            rise(before.pass_rate, after.pass_rate),
            format!("{:.2} -> {:.2}", before.score, after.score),
            shares.map_or(String::new(), |(before, after)| rise(before, after)),
        ]
    });
    let header = [set, prompts, accuracy, score, pass_at_n];
    std::iter::once(header).chain(rows).collect()
}

/// Column widths: as wide as the contents, then the widest of the text columns gives way until all fit.
fn fit(rows: &[Row], width: usize) -> [usize; 5] {
    let mut widths = [0; 5];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(measure_text_width(cell));
        }
    }
    while widths.iter().sum::<usize>() > width {
        let Some(widest) = widths[..4].iter_mut().filter(|width| **width > NARROWEST).max() else {
            break;
        };
        *widest -= 1;
    }
    widths
}

/// A cell of at most `width`. `truncate_str` adds up characters, and a sequence of them may be wider than they are, as a digit before U+FE0F.
fn shortened(cell: &str, width: usize) -> Cow<'_, str> {
    let mut shorter = (0..=width).rev().map(|width| truncate_str(cell, width, "…"));
    let fits = shorter.find(|text| measure_text_width(text) <= width);
    fits.unwrap_or_default()
}

fn line(row: &Row, widths: &[usize; 5]) -> String {
    let mut line = String::new();
    for (cell, width) in row.iter().zip(widths) {
        let cell = shortened(cell, *width);
        line.push_str(&cell);
        line.push_str(&" ".repeat(width.saturating_sub(measure_text_width(&cell)) + GAP.len()));
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// One line of printable text: a response must not move the cursor or recolour the terminal.
fn visible(text: &str) -> String {
    let mut out = String::new();
    for character in text.trim().chars() {
        match character {
            '\n' => out.push('⏎'),
            '\t' => out.push(' '),
            // Bidirectional overrides and isolates would reorder the rest of the line.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            control if control.is_control() => out.extend(control.escape_default()),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::telemetry::{BeforeAfterRow, PassAtN, SetReport};

    fn comparison(prompt: &str, response: &str) -> BeforeAfter {
        let row = BeforeAfterRow {
            prompt: prompt.into(),
            label: Some("46".into()),
            before: Answer {
                response: response.into(),
                score: 0.0,
            },
            after: Answer {
                response: "46".into(),
                score: 1.0,
            },
        };
        BeforeAfter {
            pass_score: 1.0,
            accuracy_before: 0.34,
            accuracy_after: 0.78,
            pass_at_n: None,
            prompts: 200,
            sets: BTreeMap::new(),
            rows: vec![row],
        }
    }

    /// A test set of which another share passes now.
    fn set(before: f64, after: f64, pass_at_n: Option<f64>) -> SetBeforeAfter {
        let report = |share: f64| SetReport {
            prompts: 30,
            score: share / 2.0,
            pass_rate: share,
            pass_at_n,
            response_length: 3.0,
        };
        SetBeforeAfter {
            before: report(before),
            after: report(after),
        }
    }

    #[test]
    fn the_table_shows_both_answers_and_ends_with_the_accuracy() {
        let text = render(&comparison("12+34=", "45"), 100);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["prompt", "label", "before", "after", "score"]
        );
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["12+34=", "46", "✗", "45", "✓", "46", "0.00", "->", "1.00"]
        );
        assert_eq!(lines[3], "accuracy 34 % -> 78 % on 200 held-out prompts");
    }

    #[test]
    fn of_several_samples_it_says_which_are_shown_and_how_many_prompts_any_of_them_passed() {
        let mut comparison = comparison("12+34=", "45");
        comparison.pass_at_n = Some(PassAtN {
            n_samples_per_prompt: 8,
            before: 0.6,
            after: 0.9,
        });
        let text = render(&comparison, 100);
        let last: Vec<_> = text.lines().skip(3).collect();
        assert_eq!(
            last,
            [
                "shown: the first of 8 samples",
                "accuracy 34 % -> 78 %, pass@8 60 % -> 90 % on 200 held-out prompts"
            ]
        );
    }

    #[test]
    fn each_test_set_has_a_row_between_the_prompts_and_the_accuracy_of_all() {
        let mut comparison = comparison("12+34=", "45");
        comparison.sets.insert("AIME24".into(), set(0.0, 0.1, None));
        comparison.sets.insert("openai/gsm8k".into(), set(0.5, 0.75, None));
        let rows = |comparison: &BeforeAfter| -> Vec<String> {
            let text = render(comparison, 100);
            let lines = text.lines().skip_while(|line| !line.starts_with("test set"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(
            rows(&comparison),
            [
                "test set      prompts  accuracy      score",
                "────────────  ───────  ────────────  ────────────",
                "AIME24        30       0 % -> 10 %   0.00 -> 0.05",
                "openai/gsm8k  30       50 % -> 75 %  0.25 -> 0.38",
                "accuracy 34 % -> 78 % on 200 held-out prompts"
            ]
        );
        comparison.sets = BTreeMap::from([("AIME24".into(), set(0.0, 0.1, Some(0.5)))]);
        comparison.pass_at_n = Some(PassAtN {
            n_samples_per_prompt: 8,
            ..PassAtN::default()
        });
        let rows = rows(&comparison);
        assert!(rows[0].ends_with("pass@8"), "{rows:?}");
        assert!(rows[2].ends_with("50 % -> 50 %"), "{rows:?}");
    }

    #[test]
    fn a_response_cannot_drive_the_terminal() {
        let text = render(&comparison("line one\nline two", "\u{1b}[31mred\u{7}\u{202e}"), 100);
        assert!(text.contains("line one⏎line two"));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(!text.contains('\u{202e}'));
    }

    #[test]
    fn a_sequence_that_is_wider_than_its_characters_fits_its_cell() {
        let cell = "0\u{fe0f}1\u{fe0f}2\u{fe0f}3";
        assert_eq!(measure_text_width(cell), 7);
        for width in 0..8 {
            assert!(measure_text_width(&shortened(cell, width)) <= width, "{width}");
        }
        assert_eq!(shortened(cell, 7), cell);
        assert_eq!(shortened("abc", 2), "a…");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(prompt in "\\PC{0,120}", response in "\\PC{0,120}", width in 60usize..140) {
            let mut comparison = comparison(&prompt, &response);
            comparison.sets.insert(prompt, set(0.0, 1.0, Some(1.0)));
            let text = render(&comparison, width);
            for line in text.lines() {
                prop_assert!(measure_text_width(line) <= width, "{} > {width}: {line}", measure_text_width(line));
            }
        }
    }
}
