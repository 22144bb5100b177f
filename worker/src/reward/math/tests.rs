//! Answers that are the same, and answers that are not: label and response's answer, whatever they were found by.

use proptest::prelude::*;

use super::*;

fn accepts(label: &str, given: &str) -> bool {
    let label = Answer::of_label(label).unwrap();
    Answer::of_label(given).is_ok_and(|given| label.accepts(&given))
}

const SAME: &[(&str, &str)] = &[
    // A tie in a text, as NuminaMath's letters have.
    (r"\mathrm{~B}", "B"),
    (r"\text{~B}", r"\text{(B)}"),
    // What LaTeX leaves at the end.
    ("2", r"2\;"),
    ("2", r"2\,"),
    ("2", r"2\ "),
    ("12", r"12\$"),
    ("12", r"$12\,$."),
    (r"x \le 2", "x <= 2"),
    (r"[1,\infty)", "x >= 1"),
    // Units.
    ("1", "1 liter"),
    ("2", "2 kilograms"),
    ("12", "12 ounces"),
    // Numbers.
    ("42", "42."),
    ("1234", "1,234"),
    ("1,234,567", r"1{,}234{,}567"),
    ("10000", r"10,\!000"),
    ("12345", r"12\,345"),
    ("073", "73"),
    ("5", "5.0"),
    ("0.5", ".5"),
    ("-3", "\u{2212}3"),
    ("7", "+7"),
    ("0.001", "10^{-3}"),
    ("602000", r"6.02 \times 10^5"),
    ("6.02e23", r"6.02 \cdot 10^{23}"),
    ("$18", "18"),
    ("18", r"\$18.00"),
    // Fractions.
    ("0.5", r"\frac12"),
    (r"\frac{1}{2}", r"\dfrac{1}{2}"),
    (r"\frac{1}{2}", "1/2"),
    (r"\frac{1}{2}", r"\tfrac{2}{4}"),
    (r"\frac{1}{72}", r"\frac1{72}"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"),
    (r"-\frac{3}{4}", "-0.75"),
    (r"\frac{5}{2}", r"2\frac{1}{2}"),
    ("2.5", "2 1/2"),
    (r"-1\frac12", "-3/2"),
    // Signs and words around a number.
    (r"50\%", "50"),
    ("50", r"50\%"),
    (r"50\%", "0.5"),
    ("12.5%", r"\frac{1}{8}"),
    (r"28\%", "28 percent"),
    (r"90^\circ", "90"),
    ("90", r"90^{\circ}"),
    ("30", "30 degrees"),
    (r"5\text{ cm}", "5"),
    ("5", r"5\,\mathrm{cm}^{2}"),
    ("12", "12 square units"),
    ("72", r"72 \text{ clips}"),
    // Roots, powers and constants.
    (r"\sqrt{2}", r"\sqrt2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    (r"2\sqrt{3}", "2*sqrt(3)"),
    (r"\sqrt{2}", "1.41421356237"),
    (r"2\pi", r"\pi \cdot 2"),
    (r"2\pi", "2π"),
    (r"\frac{3\pi}{4}", r"\frac{3}{4}\pi"),
    (r"\pi", "3.1415926536"),
    (r"2^{2015} - 1", r"2 \cdot 2^{2014} - 1"),
    (r"3^{100}", "3^100"),
    ("e^2", "e^{2}"),
    ("3+4i", "4i + 3"),
    (r"\frac{1}{1+i}", r"\frac{1-i}{2}"),
    (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
    (r"\sin 2x", r"2 \sin x \cos x"),
    (r"\cos^2 x", r"1 - \sin^{2}(x)"),
    // Variables.
    ("x^2+1", "1 + x^{2}"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x^2+2x+1", r"\left(x+1\right)\left(x+1\right)"),
    (r"\frac{x}{2}", r"\frac{1}{2}x"),
    (r"a\sqrt{b}", r"\sqrt{b} \cdot a"),
    ("n^2 - n", "n(n-1)"),
    ("2^{n+1}", r"2 \cdot 2^n"),
    (r"x_1 + x_2", "x_{2}+x_{1}"),
    (r"\frac{\theta}{2}", r"\theta/2"),
    ("|x-1|", r"\lvert 1 - x \rvert"),
    // Equations and names.
    ("5", "x = 5"),
    ("x=5", "5"),
    (r"\frac{3}{2}", r"x = \frac{6}{4} = \frac{3}{2}"),
    ("7", "3 + 4 = 7"),
    ("12", r"\text{Area} = 12"),
    ("2x+3", "f(x) = 2x + 3"),
    ("(1,2)", "(x, y) = (1, 2)"),
    ("[0,1]", r"x \in [0, 1]"),
    ("y = 2x+3", "2x + 3 = y"),
    ("x > 5", "5 < x"),
    (r"0 \le x < 1", r"0\leq x<1"),
    // Inequalities and intervals.
    ("(1,2]", r"1 < x \le 2"),
    (r"[1,\infty)", r"x \geq 1"),
    (r"x < \frac12", r"(-\infty, 0.5)"),
    (r"(-\infty,\pi]", r"\pi \ge t"),
    (r"(-\infty, 0) \cup (1, \infty)", r"x > 1 \text{ or } x < 0"),
    // Tuples, intervals and sets.
    (r"(3, \frac{1}{2})", r"\left( 3, 0.5 \right)"),
    ("[0,1)", r"[0, 1)"),
    (r"(-\infty, 2]", r"(-\infty,2.0]"),
    (r"(-\infty, 0) \cup (1, \infty)", r"(1,+\infty) \cup (-\infty,0)"),
    (r"\{1,2\}", r"\left\{2, 1\right\}"),
    ("1, 2", r"2 \text{ and } 1"),
    ("1,2", r"\{1, 2\}"),
    ("2, 3", r"x = 3 \text{ or } x = 2"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
    (r"\pm 3", "-3, 3"),
    (r"\emptyset", r"\{\}"),
    (
        r"\begin{pmatrix} 1 \\ 0.5 \end{pmatrix}",
        r"\begin{bmatrix}1\\\frac{1}{2}\end{bmatrix}",
    ),
    // Words.
    (r"\text{(B)}", "B"),
    ("B", r"\text{(b)}"),
    (r"\textbf{(C)}", "(C)"),
    (r"\text{Evelyn}", "Evelyn"),
    ("Saturday", r"\text{saturday}."),
    (r"\text{no solution}", "No solution"),
    // As it was written, where it is nothing that is known.
    ("3:4", r"3 : 4"),
    ("1011_2", "1011_{2}"),
    (r"\triangle ABC", r"\triangle\,ABC"),
    (r"7:30 \text{ p.m.}", r"$7 : 30\text{p.m.}$"),
];

const OTHER: &[(&str, &str)] = &[
    // Numbers.
    ("1", "12"),
    ("12", "1"),
    ("12", "1 2"),
    ("42", "-42"),
    ("42", "4.2"),
    ("1234", "1.234"),
    ("1000", "1,000,000"),
    ("0.001", "10^{3}"),
    ("12345678901234567890", "12345678901234567891"),
    ("0.3333333333", r"\frac{1}{3}"),
    (r"\frac{1}{3}", "0.33"),
    ("3.14", r"\pi"),
    ("5", ""),
    ("5", "$$"),
    // Fractions.
    (r"\frac{3}{4}", r"\frac{1}{4}"),
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    (r"\frac{3}{4}", "3"),
    (r"\frac{3}{4}", "34"),
    (r"\frac{1}{2}", r"\frac{1}{0}"),
    (r"\frac{1}{2}", r"\frac{1}{2"),
    (r"2\frac{1}{2}", "1"),
    // Signs and words around a number.
    (r"50\%", "5"),
    ("50", "0.5"),
    ("0.5", "50"),
    (r"5\%", "0.5"),
    ("5", r"5\%\%"),
    ("5", r"5\text{ million}"),
    ("5", "5 or 7"),
    ("5", r"5 \text{ or less}"),
    ("5", "5 apples and 3 pears"),
    (r"7 \text{ a.m.}", r"7 \text{ p.m.}"),
    // Not worked out.
    ("7", "3+4"),
    ("72", "48/2 + 48"),
    ("2", r"\frac{4}{2}"),
    ("1024", "2^{10}"),
    ("4", r"\sqrt{16}"),
    (r"\frac{1}{2}", r"1 - \frac{1}{2}"),
    ("0.5", r"\sin \frac{\pi}{6}"),
    // Roots, powers and constants.
    (r"\sqrt{2}", r"\sqrt{3}"),
    (r"\sqrt{2}", "2"),
    (r"\sqrt{2}", r"-\sqrt{2}"),
    (r"\sqrt{2}", "1.4142"),
    (r"\sqrt{2}", r"\sqrt[3]{2}"),
    (r"\sqrt{12}", r"\sqrt12"),
    ("2\\pi", "2"),
    ("2\\pi", r"\pi^2"),
    (r"\pi", r"\frac{22}{7}"),
    (r"\frac{1000000007\pi}{3}", r"\frac{1000000008\pi}{3}"),
    (r"1000000007\sqrt{2}", r"1000000008\sqrt{2}"),
    ("2^{2015}-1", "2^{2015}"),
    (r"10^{20} + \sqrt{2}", r"10^{20} + \sqrt{3}"),
    ("0", r"\sqrt{10^{18} + 1} - 10^9"),
    ("0", r"10^{-400}\sqrt{2}"),
    ("3+4i", "3-4i"),
    ("i", "1"),
    ("e", r"\pi"),
    (r"\ln 2", r"\log 2"),
    (r"\sin x", r"\cos x"),
    (r"\sin^{-1} x", r"\frac{1}{\sin x}"),
    // Variables.
    ("x", "y"),
    ("x", "X"),
    ("x", "2x"),
    ("x^2", "2x"),
    ("x^2+1", "x^2-1"),
    (r"\sqrt{x^2}", "x"),
    ("1/(2x)", "1/2x"),
    ("x^{2^3}", "x^2^3"),
    ("x_1", "x_2"),
    ("|x|", "x"),
    ("a-b", "b-a"),
    // Equations and names.
    ("5", "x^2 = 5"),
    ("5", "-x = 5"),
    ("y = 3", "x = 3"),
    ("5", "x > 5"),
    ("x > 5", r"x \ge 5"),
    ("x > 5", "5 > x"),
    ("(1,2)", r"1 \le x < 2"),
    (r"(1,\infty)", "x < 1"),
    (r"(-\infty, 0) \cup (1, \infty)", "x > 1"),
    ("4", "3 = 4"),
    // Tuples, intervals and sets.
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "(1,2]"),
    ("(1,2)", "1,2"),
    ("(1,2)", "(1,2,3)"),
    ("(1,234)", "1234"),
    ("[0,1)", "[0,2)"),
    (r"\{1,2\}", r"\{1,3\}"),
    (r"\{1,2\}", r"\{1,2,2\}"),
    ("1,1,2", "1,2,2"),
    ("1, 2", "1"),
    ("1", "1, 2"),
    (r"1 \pm \sqrt{2}", r"1 + \sqrt{2}"),
    (r"(0,1) \cup (2,3)", "(0,1)"),
    (r"\emptyset", r"\{0\}"),
    (
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        r"\begin{pmatrix} 1 & 2 \end{pmatrix}",
    ),
    // Words.
    (r"\text{(B)}", r"\text{(C)}"),
    (r"\text{Evelyn}", "Eve"),
    (r"\text{east}", "seat"),
    ("no", "on"),
    (r"\text{yes}", r"\text{yes and no}"),
    ("June 5", "5"),
    // What is nothing that is known.
    ("3:4", "6:8"),
    ("1011_2", "1011"),
    (r"\triangle ABC", r"\angle ABC"),
    (r"\star 1", r"\star 2"),
];

#[test]
fn answers_that_are_the_same_are_right() {
    let wrong: Vec<_> = SAME.iter().filter(|(label, given)| !accepts(label, given)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(SAME.len() >= 60);
}

#[test]
fn answers_that_are_not_the_same_are_not_right() {
    let wrong: Vec<_> = OTHER.iter().filter(|(label, given)| accepts(label, given)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(OTHER.len() >= 60);
}

#[test]
fn every_answer_is_itself() {
    for (label, given) in SAME.iter().chain(OTHER) {
        assert!(accepts(label, label), "{label}");
        assert!(given.trim_matches('$').is_empty() || accepts(given, given), "{given}");
    }
}

#[test]
fn an_answer_that_is_very_long_or_deep_is_refused_in_no_time() {
    for part in [
        "(",
        "{",
        r"\{",
        "|",
        "-",
        r"\sqrt",
        r"\frac",
        "x^",
        "2^{",
        r"\sin",
        r"\text{",
        r"\begin{pmatrix}",
        "9^9",
        "1,",
        "x=",
        r"\pm",
        "[0,",
        "%",
        "1%",
        "*1%",
        "1_{",
        r"\log_",
    ] {
        for times in [20, 45, 200, 100_000] {
            assert!(!accepts("3", &part.repeat(times)), "{part}");
            accepts("x", &format!("{} x", part.repeat(times)));
        }
    }
}

/// A rational number in one of its spellings.
fn spelled(top: i64, bottom: i64) -> impl Strategy<Value = String> {
    let sign = if top < 0 { "-" } else { "" };
    let (top, over) = (top.unsigned_abs(), bottom);
    prop_oneof![
        Just(format!("{sign}{top}/{over}")),
        Just(format!(r"{sign}\frac{{{top}}}{{{over}}}")),
        Just(format!(r"\dfrac{{{sign}{top}}}{{{over}}}")),
        Just(format!(r"$x = {sign}\frac {{{top}}} {{{over}}}$.")),
        Just(format!(r"\left({sign}\tfrac{{{top}}}{{{over}}}\right)")),
        (2..9_i64).prop_map(move |by| format!("{sign}{}/{}", top * by.unsigned_abs(), over * by)),
    ]
}

proptest! {
    #[test]
    fn a_rational_number_is_itself_however_it_is_written_and_no_other(
        (number, one, other) in (-99_999..100_000_i64, 2..1000_i64)
            .prop_flat_map(|(top, bottom)| (Just((top, bottom)), spelled(top, bottom), spelled(top, bottom)))
    ) {
        // Whole numbers have to be worked out.
        prop_assume!(number.0 % number.1 != 0);
        prop_assert!(accepts(&one, &other), "{one} and {other}");
        let near = format!("{}/{}", number.0 + 1, number.1);
        prop_assert!(!accepts(&one, &near), "{one} and {near}");
    }

    #[test]
    fn a_decimal_is_its_fraction(number in -1_000_000_000_i64..1_000_000_000, places in 1..9_usize) {
        let digits = format!("{:0>width$}", number.unsigned_abs(), width = places + 1);
        let (whole, decimals) = digits.split_at(digits.len() - places);
        let sign = if number < 0 { "-" } else { "" };
        let decimal = format!("{sign}{whole}.{decimals}");
        let fraction = format!(r"{sign}\frac{{{}}}{{10^{places}}}", number.unsigned_abs());
        prop_assert!(accepts(&decimal, &fraction), "{decimal} {fraction}");
        prop_assert!(!accepts(&decimal, &format!("{decimal}1")), "{decimal}");
    }

    #[test]
    fn any_text_is_compared_without_harm(
        label in "\\PC{0,20}|[-+*/^_(){}\\[\\]|,=<>0-9a-z .$%]{1,30}",
        given in "\\PC*|(\\\\(frac|sqrt|left|right|text|pi|pm|sin|log|begin|end|cup|boxed)|[-+*/^_(){}\\[\\]|,=<>0-9a-z .$%\\\\&]){0,60}",
    ) {
        if let Ok(answer) = Answer::of_label(&label) {
            prop_assert!(answer.accepts(&answer), "{label:?}");
            for given in [Answer::of_label(&given).ok(), Answer::of_response(&given)].into_iter().flatten() {
                answer.accepts(&given);
                given.accepts(&answer);
            }
        }
    }
}
