use std::path::Path;

use ppo_crds::spec::{ExactMatch, MathMatch, NumericMatch, RegexRule};
use proptest::prelude::*;

use super::*;

fn sample(response: &str, label: Option<&str>) -> ScoredSample {
    ScoredSample {
        index: 7,
        prompt: "prompt".into(),
        visible_prompt: "prompt".into(),
        messages: None,
        moment: None,
        has_ended: true,
        tokenizer: None,
        response: format!("{response}<eos>"),
        visible_response: response.into(),
        prompt_ids: vec![1].into(),
        response_ids: vec![2; response.split_whitespace().count()],
        label: label.map(Label::from),
    }
}

fn exact(ignore_case: bool) -> RewardRule {
    RewardRule {
        exact_match: Some(ExactMatch { ignore_case }),
        ..RewardRule::default()
    }
}

fn numeric(tolerance: f64) -> RewardRule {
    RewardRule {
        numeric_match: Some(NumericMatch { tolerance }),
        ..RewardRule::default()
    }
}

fn math() -> RewardRule {
    RewardRule {
        math_match: Some(MathMatch {}),
        ..RewardRule::default()
    }
}

fn regex(pattern: &str) -> RewardRule {
    RewardRule {
        regex: Some(RegexRule {
            pattern: pattern.into(),
        }),
        ..RewardRule::default()
    }
}

fn json(keys: &[&str]) -> RewardRule {
    let required_keys = keys.iter().map(|key| key.to_string()).collect();
    RewardRule {
        json: Some(JsonRule { required_keys }),
        ..RewardRule::default()
    }
}

fn length(min: u32, max: u32, slope: u32) -> RewardRule {
    RewardRule {
        length: Some(LengthRule { min, max, slope }),
        ..RewardRule::default()
    }
}

fn extracting(pattern: &str, rule: RewardRule) -> RewardRule {
    RewardRule {
        extract: Some(pattern.into()),
        ..rule
    }
}

fn score(rule: &RewardRule, response: &str, label: &str) -> f32 {
    Rule::new(rule).unwrap().score(&sample(response, Some(label))).unwrap()
}

#[test]
fn exact_match_compares_trimmed_text() {
    assert_eq!(score(&exact(false), " 42\n", "42 "), 1.0);
    assert_eq!(score(&exact(false), "Paris", "paris"), 0.0);
    assert_eq!(score(&exact(true), "PARÍS", "parís"), 1.0);
    assert_eq!(score(&exact(false), "", ""), 1.0);
}

#[test]
fn numbers_are_read_as_people_write_them() {
    let cases = [
        ("1,234", 1234.0),
        ("$5", 5.0),
        ("-$5", -5.0),
        ("$-5", -5.0),
        ("3/4", 0.75),
        ("-2.50", -2.5),
        ("6.02e23", 6.02e23),
        ("1E-3", 0.001),
        (".5", 0.5),
        ("5.", 5.0),
        ("+7", 7.0),
        ("\u{2212}3", -3.0),
        ("1,234,567.89", 1234567.89),
        ("50%", 50.0),
        ("12-5", 5.0),
        ("(2)-5", 5.0),
        ("x = -5", -5.0),
        ("12 + 30 = 42.", 42.0),
        ("#### 72", 72.0),
        ("1,2345", 2345.0),
        ("**42**", 42.0),
        ("-1/2", -0.5),
        ("1 / 4", 0.25),
        ("€1,000", 1000.0),
        ("007", 7.0),
        (r"\frac{3}{4}", 0.75),
        (r"\boxed{\dfrac{-3}{4}}.", -0.75),
        (r"-\tfrac34", -0.75),
        (r"\frac{1,000} 4", 250.0),
        (r"2\frac{1}{2}", 2.5),
        (r"-1 \frac{1}{2}", -1.5),
        (r"1\frac{1}{49}", 50.0 / 49.0),
        ("Step 3\n\\frac{1}{2}", 0.5),
        (r"1{,}234", 1234.0),
        (r"10,\!000", 10_000.0),
        (r"12\,345", 12_345.0),
        (r"\$1{,}234.50", 1234.5),
        (r"-\$5", -5.0),
        (r"50\%", 50.0),
        // Whatever stands behind the thousands.
        ("72,000km", 72_000.0),
        ("5,000円", 5000.0),
        ("一共3,200元", 3200.0),
        ("1,500m", 1500.0),
        ("1,234_567", 567.0),
        ("1,000_", 1000.0),
        ("12,345.5kg", 12_345.5),
        (r"1{,}234cm", 1234.0),
        ("1,234,5678", 5678.0),
        ("1234,567", 567.0),
        ("1.234,567", 567.0),
        ("-1,2345", 2345.0),
        ("1,200/1,000kg", 1.2),
        (r"72\text{ cm}", 72.0),
        // The stop of a sentence.
        ("So the answer is...42", 42.0),
        ("It costs Rs.5", 5.0),
        ("Answer.42", 42.0),
        ("$.50", 0.5),
        ("x=.5", 0.5),
        // A number and a part.
        ("2 1/2", 2.5),
        ("-1 1/2", -1.5),
        ("in 2024 10/5", 2.0),
        ("1 1/2 2/3", 2.0 / 3.0),
        ("1.5 1/2", 0.5),
        // Dashes, and a space behind a sign.
        ("x = \u{2013}5", -5.0),
        ("10\u{2013}15", 15.0),
        ("$x = - 5$", -5.0),
        ("Answer: \u{2212} 7", -7.0),
        ("12 - 5", 5.0),
        ("Items:\n- 5 apples", 5.0),
        (r"\boxed{- \frac{1}{2}}", -0.5),
        // Other groups of thousands.
        ("1,00,000", 100_000.0),
        ("₹12,34,567.50", 1_234_567.5),
        ("1'000'000", 1e6),
        ("5\u{a0}000\u{202f}000", 5e6),
        // Powers of ten, and exponents that are no numbers.
        (r"3 \times 10^{8}", 3e8),
        ("3 × 10⁸", 3e8),
        ("6.02 x 10^-23", 6.02e-23),
        (r"-10^{6}", -1e6),
        (r"3\,\cdot\,10^8", 3e8),
        ("1,234.5*10**3", 1_234_500.0),
        ("72 cm^2", 72.0),
        ("72 cm²", 72.0),
        (r"90^\circ", 90.0),
        ("2^3 = 8", 8.0),
        // Parts that are no numbers make no fraction.
        (r"\frac{x}{4}", 4.0),
        (r"\frac{34}{x}", 34.0),
    ];
    for (text, value) in cases {
        assert_eq!(last_number(text).map(|number| number.value), Some(value), "{text}");
    }
    for text in [
        "",
        "none",
        "1/0",
        r"\frac{1}{0}",
        "1e999",
        "-",
        "$",
        "½",
        "٣",
        "2^10",
        "5²",
        "x^2",
        "3.10^2",
        "10^999",
    ] {
        assert_eq!(last_number(text), None, "{text}");
    }
}

#[test]
fn the_end_of_a_number_is_not_the_number() {
    for (response, label) in [
        ("5,00,000", "1,00,000"),
        ("2e8", r"3 \times 10^{8}"),
        ("10 cm^2", "72 cm^2"),
        ("7'000", "1'000"),
    ] {
        assert_eq!(score(&numeric(0.0), response, label), 0.0, "{response} {label}");
    }
    assert_eq!(score(&numeric(0.0), "3 × 10⁸ m/s", "300,000,000"), 1.0);
    let refused = |label: &str| {
        let label = Label::from(label);
        let checked = Rule::new(&numeric(0.0)).unwrap().check_label(Some(&label));
        checked.err().map(|error| error.to_string())
    };
    for label in ["3,14", "1.234,56", "1 000 000", "1_000", "7 000 kg"] {
        let refused = refused(label).unwrap();
        assert!(refused.contains("the last digits alone"), "{refused}");
    }
    for label in [
        "1,234",
        "in 2024 10/5",
        "2 1/2",
        "#### 1,200.50",
        "12, 345",
        "1,200/1,000kg",
    ] {
        assert_eq!(refused(label), None, "{label}");
    }
}

#[test]
fn a_unit_right_behind_thousands_changes_no_score() {
    for (response, label, wanted) in [
        ("That is 72,000km", "#### 72,000", 1.0),
        ("5,000円", "1,000円", 0.0),
        ("一共3,200元", "200", 0.0),
        ("he walks 1,500m", "1500", 1.0),
    ] {
        assert_eq!(score(&numeric(0.0), response, label), wanted, "{response:?} {label:?}");
    }
}

#[test]
fn numeric_match_takes_the_last_number_within_the_tolerance() {
    assert_eq!(score(&numeric(0.0), "First 41, then 42", "42"), 1.0);
    assert_eq!(score(&numeric(0.0), "42, not 41", "42"), 0.0);
    assert_eq!(score(&numeric(0.0), "0.75", "3/4"), 1.0);
    assert_eq!(score(&numeric(0.01), "0.333", "1/3"), 1.0);
    assert_eq!(score(&numeric(0.0), "0.333", "1/3"), 0.0);
    assert_eq!(score(&numeric(0.0), "I do not know", "42"), 0.0);
    assert_eq!(score(&numeric(0.0), r"\boxed{\frac{3}{4}}", r"\dfrac{3}{4}"), 1.0);
    assert_eq!(score(&numeric(0.0), r"\boxed{\frac{1}{4}}", r"\frac{3}{4}"), 0.0);
}

#[test]
fn whole_numbers_are_compared_by_their_digits_however_many_there_are() {
    for (response, label, wanted) in [
        ("12345678901234567891", "12345678901234567890", 0.0),
        ("12345678901234567890", "12345678901234567890", 1.0),
        ("9007199254740993", "9007199254740992", 0.0),
        ("-9007199254740993", "-9007199254740992", 0.0),
        ("-9007199254740993", "9007199254740993", 0.0),
        ("$9,007,199,254,740,993.00", "9007199254740993", 1.0),
        ("x = - 9007199254740993", "-09007199254740993.0", 1.0),
        ("It is...9007199254740993", "9007199254740992", 0.0),
        ("-0", "0.0", 1.0),
        ("007", "7", 1.0),
        // What is written otherwise is compared as a float.
        ("9.007199254740992e15", "9007199254740992", 1.0),
    ] {
        for tolerance in [0.0, 1e-6] {
            assert_eq!(
                score(&numeric(tolerance), response, label),
                wanted,
                "{response} {label}"
            );
        }
    }
    assert_eq!(score(&numeric(1.0), "41", "42"), 1.0);
    assert_eq!(score(&numeric(1.0), "40", "42"), 0.0);
}

#[test]
fn where_the_label_is_a_whole_number_a_fraction_that_comes_to_it_is_not_worked_out() {
    for (response, label, wanted) in [
        ("48/2", "#### 24", 0.0),
        (r"So it is $\frac{84}{2}$.", "42", 0.0),
        ("-84/2", "-42.0", 0.0),
        ("in 2024 10/5", "2", 0.0),
        (r"0\frac{84}{2}", "42", 0.0),
        (r"40\frac{4}{2}", "42", 0.0),
        (r"43\frac{-1}{1}", "42", 0.0),
        ("48/2 = 24", "24", 1.0),
        ("2.4e1", "24", 1.0),
        // Other labels have the value that they have.
        ("2/4", "0.5", 1.0),
        (r"\frac{2}{4}", "1/2", 1.0),
        ("24", "48/2", 1.0),
        ("48/2", "48/2", 1.0),
    ] {
        for tolerance in [0.0, 1.0] {
            assert_eq!(
                score(&numeric(tolerance), response, label),
                wanted,
                "{response:?} {label:?}"
            );
        }
    }
    // A number and a part are one number.
    for response in ["3 1/2", r"3\frac{1}{2}"] {
        assert_eq!(score(&numeric(0.5), response, "4"), 1.0, "{response}");
    }
}

#[test]
fn extract_reads_the_first_group_of_the_last_match() {
    let rule = extracting(r"answer is (\S+)", exact(false));
    assert_eq!(score(&rule, "The answer is 1. No, the answer is 42", "42"), 1.0);
    assert_eq!(score(&rule, "42", "42"), 0.0, "no match scores 0");
    assert_eq!(
        score(&extracting(r"\d+", exact(false)), "1 and 2", "2"),
        1.0,
        "without a group, the whole match"
    );
    assert_eq!(
        score(&extracting(r"(a)|\d+", exact(false)), "a 2", "2"),
        1.0,
        "a group that takes no part is none"
    );
}

#[test]
fn math_match_compares_the_answer_of_a_response_with_the_labels() {
    for (response, label, wanted) in [
        (r"So it is $\boxed{\dfrac{\sqrt{3}}{2}}$.", r"\frac{\sqrt3}{2}", 1.0),
        (r"\boxed{1}, no: \boxed{ 0.5 }", r"Half: $\boxed{\frac{1}{2}}$", 1.0),
        (
            "The final answer is $(3, 1/2)$. I hope it is correct.",
            r"\left(3, \frac12\right)",
            1.0,
        ),
        ("48 + 1024\n#### 1072", "She sold 48 clips.\n#### 1,072", 1.0),
        (r"\boxed{\frac{1}{4}}", r"\frac{3}{4}", 0.0),
        (r"\boxed{\frac{3}{4}", r"\frac{3}{4}", 0.0),
        (r"It is \frac{3}{4}", r"\frac{3}{4}", 0.0),
        (r"\boxed{}", "0", 0.0),
        ("", "0", 0.0),
    ] {
        assert_eq!(score(&math(), response, label), wanted, "{response}");
    }
}

#[test]
fn math_match_reads_what_extract_found_as_it_reads_a_label() {
    let tagged = extracting("(?s)<answer>(.*?)</answer>", math());
    assert_eq!(score(&tagged, "<answer> 1/2 </answer>", "0.5"), 1.0);
    assert_eq!(score(&tagged, r"<answer>It is $\boxed{\frac12}$.</answer>", "0.5"), 1.0);
    assert_eq!(score(&tagged, r"\boxed{\frac12}", "0.5"), 0.0, "no match scores 0");
}

/// The row of a table of docs/model-and-reward.md that begins so.
fn row_of_the_page(first: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/model-and-reward.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut rows = page.lines().filter(|line| line.starts_with(&format!("| {first}")));
    rows.next().unwrap().to_owned()
}

#[test]
fn the_rules_of_the_page_read_the_labels_of_its_data_sets() {
    assert!(row_of_the_page("GSM8K").contains("`numericMatch`"));
    let gsm8k = "She sold 48/2 = <<48/2=24>>24 clips, 72 in all.\n#### 1,072";
    assert_eq!(score(&numeric(0.0), "The answer is 1072.", gsm8k), 1.0);
    assert!(row_of_the_page("GSM8K").contains("`extract: '#### (.*)'`"));
    let ends_so = extracting("#### (.*)", numeric(0.0));
    assert_eq!(score(&ends_so, "48 + 1024\n#### 1072", gsm8k), 1.0);
    assert_eq!(score(&ends_so, "The answer is 1072.", gsm8k), 0.0);

    assert!(row_of_the_page("DAPO").contains("`mathMatch` with `extract: '(?i)answer:(.*)'`"));
    let dapo = extracting("(?i)answer:(.*)", math());
    let response = |answer: &str| format!("Answer: 33? No, \\boxed{{33}}.\n\n**Answer:** {answer}\nin 2 steps");
    assert_eq!(score(&dapo, &response("$34$"), "34"), 1.0);
    assert_eq!(score(&dapo, &response(r"\boxed{34}."), "34"), 1.0);
    assert_eq!(score(&dapo, &response("33"), "34"), 0.0);

    for first in ["MATH", "AIME"] {
        assert!(row_of_the_page(first).ends_with("| `mathMatch` |"), "{first}");
    }
    assert_eq!(score(&math(), r"So $x = \boxed{2\sqrt{3}}$.", r"2\sqrt{3}"), 1.0);
    assert_eq!(score(&math(), r"\boxed{73}", "073"), 1.0);
}

#[test]
fn regex_matches_anywhere_unless_anchored() {
    assert_eq!(score(&regex("wor"), "hello world", ""), 1.0);
    assert_eq!(score(&regex("^world$"), "hello world", ""), 0.0);
}

#[test]
fn json_is_valid_and_has_its_keys() {
    assert_eq!(score(&json(&[]), "[1, 2]", ""), 1.0);
    assert_eq!(score(&json(&[]), "[1, 2", ""), 0.0);
    assert_eq!(score(&json(&["a"]), " {\"a\": null} ", ""), 1.0);
    assert_eq!(score(&json(&["a", "b"]), "{\"a\": 1}", ""), 0.0);
    assert_eq!(score(&json(&["a"]), "[\"a\"]", ""), 0.0);
    assert_eq!(
        score(&json(&[]), &"[".repeat(100_000), ""),
        0.0,
        "depth is no way to end the run"
    );
    assert_eq!(
        score(
            &extracting("(?s)```json(.*?)```", json(&["a"])),
            "So: ```json\n{\"a\": 1}\n```",
            ""
        ),
        1.0
    );
}

#[test]
fn length_falls_linearly_outside_its_bounds() {
    let at = |rule: &RewardRule, tokens: usize| score(rule, &"t ".repeat(tokens), "");
    let rule = length(4, 6, 4);
    let scores: Vec<f32> = (0..12).map(|tokens| at(&rule, tokens)).collect();
    assert_eq!(scores, [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    assert_eq!([at(&length(0, 2, 0), 2), at(&length(0, 2, 0), 3)], [1.0, 0.0]);
}

#[test]
fn a_missing_or_useless_label_is_an_error_that_names_the_sample() {
    let error = |rule: RewardRule, label| {
        format!(
            "{:#}",
            Rule::new(&rule).unwrap().score(&sample("no match", label)).unwrap_err()
        )
    };
    assert_eq!(
        error(exact(false), None),
        "sample 7: rule exactMatch needs a label and there is none; set prompts.labelField, or give the row one"
    );
    assert_eq!(
        error(extracting("^$", numeric(0.0)), None),
        "sample 7: rule numericMatch needs a label and there is none; set prompts.labelField, or give the row one"
    );
    assert_eq!(
        error(numeric(0.0), Some("six")),
        "sample 7: label \"six\" holds no number for numericMatch: leave its row out, or use exactMatch"
    );
    assert_eq!(
        error(math(), Some(r"so \boxed{}")),
        r#"sample 7: label "so \\boxed{}" holds no answer: for mathMatch give the answer itself, or one in \boxed{}, or leave its row out"#
    );
    let essay = error(math(), Some(&"Let x be the number. ".repeat(100)));
    assert!(
        essay.contains("has 2099 bytes where an answer has at most 1000"),
        "{essay}"
    );
    assert!(essay.len() < 300, "{essay}");
}

#[test]
fn a_label_that_is_a_list_is_an_error_to_a_rule_that_compares_and_to_no_other() {
    let list = Label::of(serde_json::json!(["4"])).unwrap();
    let check = |rule: RewardRule| Rule::new(&rule).unwrap().check_label(list.as_ref());
    for (name, rule) in [
        ("exactMatch", exact(true)),
        ("numericMatch", numeric(0.0)),
        ("mathMatch", math()),
    ] {
        let refused = check(rule).unwrap_err().to_string();
        assert!(
            refused.contains(&format!(
                "rule {name} compares with a text, and the label is the list [\"4\"]"
            )),
            "{refused}"
        );
    }
    check(regex("a")).unwrap();
    let four = Label::of(serde_json::json!(4)).unwrap();
    let number = ScoredSample {
        label: four,
        ..sample("4", None)
    };
    assert_eq!(Rule::new(&exact(false)).unwrap().score(&number).unwrap(), 1.0);
}

#[test]
fn a_rule_has_exactly_one_kind_and_legal_patterns() {
    let error = |rule: RewardRule| format!("{:#}", Rule::new(&rule).unwrap_err());
    assert!(error(RewardRule::default()).contains("has 0 of exactMatch"));
    assert!(
        error(RewardRule {
            json: Some(JsonRule::default()),
            ..exact(false)
        })
        .contains("has 2 of exactMatch")
    );
    assert!(error(regex("(")).starts_with("regex.pattern: not a regular expression: unclosed group"));
    assert!(
        error(extracting("[", exact(false))).starts_with("extract: not a regular expression: unclosed character class")
    );
}

proptest! {
    #[test]
    fn any_response_scores_between_0_and_1(response in "\\PC*|[-+$€£0-9.,eE/ \u{2212}]*", label in "\\PC*") {
        let label = format!("{label} 1");
        for rule in [
            exact(true), numeric(0.5), math(), regex("a|1"), json(&["a"]), length(2, 3, 2),
            extracting(r"(?s)(\w*)$", numeric(0.0)), extracting("", json(&[])),
        ] {
            let score = score(&rule, &response, &label);
            prop_assert!((0.0..=1.0).contains(&score), "{score}");
        }
    }

    #[test]
    fn a_number_is_read_back_however_it_is_dressed(number in -1_000_000_000_i64..1_000_000_000, cents in 0..100) {
        let digits = number.unsigned_abs().to_string();
        let grouped: Vec<String> =
            digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned()).collect();
        let sign = if number < 0 { "-" } else { "" };
        let value: f64 = format!("{sign}{digits}.{cents:02}").parse().unwrap();
        for text in [format!("{sign}{digits}.{cents:02}"), format!("so: {sign}${}.{cents:02}.", grouped.join(","))] {
            prop_assert_eq!(last_number(&text).map(|number| number.value), Some(value), "{}", text);
        }
    }
}
