use crate::convert::shell::{Unreadable, all_commands, commands};

/// What every `run` of a script is given; what is not known has the variable that is wanted in angle brackets.
fn runs(script: &str) -> Vec<String> {
    shown(commands(script, &|_| None).unwrap())
}

/// The same with what no branch chooses and nobody calls.
fn all_runs(script: &str) -> Vec<String> {
    shown(all_commands(script, &|_| None).unwrap())
}

fn shown(commands: Vec<Vec<super::Word>>) -> Vec<String> {
    let one = |word: &super::Word| match &word.unknown {
        Some(what) => format!("{}<{what}>", word.text),
        None => word.text.clone(),
    };
    let runs = commands.into_iter().filter(|words| words[0].text == "run");
    runs.map(|words| words[1..].iter().map(one).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn a_body_has_the_values_of_its_call() {
    assert_eq!(runs("N=1\nf(){ run $N; }\nN=2\nf"), ["2"]);
    assert_eq!(runs("f() {\n run ${N:-4}\n}\nf; N=8; f"), ["4", "8"]);
    assert_eq!(runs("function f\n{\n run $N\n}\nN=2 f\nrun x$N"), ["2", "x<$N>"]);
    assert_eq!(
        runs("N=1\nif true; then f() { run $N; }; fi\nN=2\nif true; then f; fi"),
        ["2"]
    );
    assert_eq!(runs("f() { run 1; }\nf() { run 2; }\nf"), ["2"]);
    assert_eq!(runs("f() { g() { run $1; }; }\nf\ng 3"), ["3"]);
    assert_eq!(runs("f() ( N=2; run $N )\nN=1\nf\nrun $N"), ["2", "1"]);
}

#[test]
fn arguments_reach_the_body_through_every_function() {
    assert_eq!(
        runs("main(){ train \"$@\"; }\ntrain(){ run --lr $1 --n $#; }\nmain 1e-6"),
        ["--lr 1e-6 --n 1"]
    );
    assert_eq!(runs("train(){ run a=$LR \"$@\"; }\nLR=1 train b=2"), ["a=1 b=2"]);
    assert_eq!(
        runs("f(){ case \"$1\" in\n a) run 1 ;;\n *) run 2 ;;\nesac; }\nf a\nf b"),
        ["1", "2"]
    );
    assert_eq!(runs("f(){ run \"x $*\"; }\nf a 'b c'"), ["x a b c"]);
    assert_eq!(
        runs("f(){ run \"${@:2}\" ${@:1:1} \"${@: -1}\" ${#}; }\nf a b c"),
        ["b c a c 3"]
    );
    assert_eq!(runs("f(){ run $10 ${10}; }\nf a b c d e f g h i j"), ["a0 j"]);
    assert_eq!(runs("f(){ run x$2 \"${2:-d}\" ${1:?is wanted}; }\nf a"), ["x d a"]);
    assert_eq!(runs("retry(){ \"$@\"; }\nretry run a"), ["a"]);
    assert_eq!(runs("f(){ for A in \"$@\"; do N=2; done; run $N; }\nf a"), ["2"]);
    assert_eq!(runs("N=1\nf(){ for A; do N=2; done; run $N; }\nf"), ["1"]);
}

#[test]
fn what_the_script_itself_would_be_given_is_asked_for_by_its_number() {
    assert_eq!(runs("main(){ run $1 \"$@\"; }\nmain \"$@\""), ["<$1>"]);
    assert_eq!(runs("main(){ run $1 x$2; }\nmain a \"$@\""), ["a x<$2>"]);
    assert_eq!(runs("main(){ run $1; }\nmain \"$1\""), ["<$1>"]);
    assert_eq!(runs("set -- a \"$@\"\nrun $1 $2 $#"), ["a <$2> 1"]);
}

#[test]
fn what_is_not_known_of_an_argument_is_named_and_those_behind_it_may_stand_elsewhere() {
    assert_eq!(runs("f(){ run $1; }\nf $(nproc)"), ["<$(...)>"]);
    assert_eq!(runs("f(){ run a=$1 b=$2; }\nf x/$W 2"), ["a=x/<$W> b=2"]);
    assert_eq!(runs("f(){ run $2; }\nf $(flags) 2"), ["<$@>"]);
    assert_eq!(
        runs("f(){ if [ \"$1\" = gpu ]; then N=8; else N=1; fi; run n=$N; }\nf $(detect)"),
        ["n=<$N>"]
    );
}

#[test]
fn arguments_are_set_and_shifted() {
    assert_eq!(runs("set -- a b\nrun $1 $2 $#\nshift\nrun $1 $#"), ["a b 2", "b 1"]);
    assert_eq!(
        runs("f(){ local A=$1; shift; run $A \"$@\"; }\nf a b c\nrun $#"),
        ["a b c", "0"]
    );
    assert_eq!(runs("f(){ shift 2; run \"$@\"; }\nf a b c"), ["c"]);
    assert_eq!(runs("f(){ shift 5; run \"$@\"; }\nf a"), ["a"]);
    assert_eq!(runs("f(){ nvidia-smi && shift; run n=$1 $#; }\nf a b"), ["n=<$@> <$#>"]);
    assert_eq!(
        runs("f(){ while [ $# -gt 1 ]; do shift; done; run n=$1; }\nf a b"),
        ["n=<$@>"]
    );
    assert_eq!(runs("f(){ shift; run $1; }\nfor I in 1 2; do f a b; done"), ["b"]);
}

#[test]
fn of_functions_the_one_that_is_called_is_read() {
    let two = "a(){ run 1; }\nb(){ run 2; }\n";
    assert_eq!(runs(&format!("{two}b")), ["2"]);
    assert_eq!(runs(&format!("{two}M=a\n$M")), ["1"]);
    assert_eq!(runs(&format!("{two}if [ x = x ]; then a; else b; fi")), ["1"]);
    assert_eq!(runs(&format!("{two}if nvidia-smi; then a; else b; fi")), ["1", "2"]);
    assert_eq!(runs(two), [""; 0]);
    assert_eq!(all_runs(two), ["2", "1"]);
    assert_eq!(all_runs("train(){ run $1; }\nmain(){ train 3; }"), ["3"]);
    assert_eq!(
        all_runs("train(){ run a=1 $1; }\n[ \"$1\" = go ] && train b=2"),
        ["a=1 b=2"]
    );
}

#[test]
fn a_function_that_branches_define_otherwise_is_read_as_both() {
    let script = "if nvidia-smi; then f(){ N=8; }; else f(){ N=1; }; fi\nf\nrun n=$N";
    assert_eq!(runs(script), ["n=<$N>"]);
    assert_eq!(runs("f(){ N=1; }\nif false; then f(){ N=8; }; fi\nf\nrun $N"), ["1"]);
}

#[test]
fn variables_of_a_function_are_its_own() {
    assert_eq!(
        runs("N=1\nf(){ local N=8 M; M=3; run $N $M; }\nf\nrun $N x$M"),
        ["8 3", "1 x<$M>"]
    );
    assert_eq!(
        runs("A=(a)\nf(){ local A=(b c); run ${A[@]}; }\nf\nrun ${A[@]}"),
        ["b c", "a"]
    );
    assert_eq!(runs("f(){ declare -g N=8; declare M=2; }\nf\nrun $N x$M"), ["8 x<$M>"]);
    assert_eq!(
        runs("f(){ local N=8; g; }\ng(){ run $N; N=9; }\nN=1\nf\nrun $N"),
        ["8", "1"]
    );
    assert_eq!(runs("f(){ local N; local N=$1; N+=0; run $N; }\nf 8"), ["80"]);
    assert_eq!(runs("f(){ N=8; M=${M:-2}; }\nf\nrun $N $M"), ["8 2"]);
}

#[test]
fn a_function_ends_where_it_returns_and_succeeds_as_it_says() {
    assert_eq!(
        runs("f(){ if [ $1 = a ]; then N=1; return; fi; N=2; }\nf a\nrun $N\nf b\nrun $N"),
        ["1", "2"]
    );
    assert_eq!(runs("f(){ return 1; run a; }\nf || run b"), ["b"]);
    assert_eq!(
        runs("is_a(){ [ \"$1\" = a ]; }\nif is_a b; then run 1; else run 2; fi"),
        ["2"]
    );
    assert_eq!(
        runs("is_a(){ [ \"$1\" = a ] && return 0; return 1; }\n! is_a b && run 1"),
        ["1"]
    );
    assert_eq!(runs("f(){ ( N=2; return 1 ); N=3; }\nN=1\nf\nrun $N"), ["3"]);
    assert_eq!(runs("set -- a\nshift 2 || N=2\nrun $N \"$1\""), ["2 a"]);
    let by_chance = "f(){ nvidia-smi && return 0; return 1; }\nN=1\nf && N=2\nrun n=$N";
    assert_eq!(runs(by_chance), ["n=<$N>"]);
    let checked = "f(){ [ $# -gt 0 ] || exit 1; if [ $# = 0 ]; then N=2; exit 1; fi; N=4; }";
    assert_eq!(runs(&format!("N=1\n{checked}\nf \"$@\"\nrun $N")), ["4"]);
    let exits = "usage(){ echo; exit 1; }\ncase $D in\n a) N=1 ;;\n *) usage ;;\nesac";
    assert_eq!(runs(&format!("D=a\n{exits}\nrun $N")), ["1"]);
    assert_eq!(
        runs(&format!(
            "D=$(detect)\nN=3\nif nvidia-smi; then N=2; exit; fi\n{exits}\nrun $N"
        )),
        ["1"]
    );
}

#[test]
fn what_is_set_in_a_subshell_or_a_pipe_is_not_set_outside() {
    assert_eq!(runs("N=1\n(N=2; run $N)\nrun $N"), ["2", "1"]);
    assert_eq!(
        runs("N=1\nf(){ N=2; run $N; }\nf | tee log\nrun $N\nf &\nrun $N"),
        ["2", "1", "2", "1"]
    );
    assert_eq!(
        runs("N=1\nif true; then (cd x && N=2); fi\ntrue && (N=3)\nrun $N"),
        ["1"]
    );
    assert_eq!(runs("case b in (a) N=1 ;; (b) (N=2); N=3 ;; esac\nrun $N"), ["3"]);
    assert_eq!(runs("false && (run 1)\n(run 2)"), ["2"]);
}

#[test]
fn a_branch_may_go_on_into_the_next() {
    let script = |value: &str, sign: &str| {
        runs(&format!(
            "case {value} in\n a) N=1 {sign}\n b) M=2 ;;\n *) N=3 ;;\nesac\nrun n=$N m=$M"
        ))
        .remove(0)
    };
    assert_eq!(script("a", ";&"), "n=1 m=2");
    assert_eq!(script("b", ";&"), "n=<$N> m=2");
    assert_eq!(script("c", ";&"), "n=3 m=<$M>");
    assert!(script("a", ";;&").starts_with("n=<$"));
    assert_eq!(script("b", ";;&"), "n=<$N> m=2");
}

#[test]
fn a_function_that_calls_itself_is_followed_to_an_end() {
    assert_eq!(runs("f(){ N=$((N + 1)); [ $N -lt 5 ] && f; }\nN=1\nf\nrun $N"), ["5"]);
    assert_eq!(runs("retry(){ run a || retry; }\nretry"), ["a"]);
    let doubles = "f(){ N=$((N * 2)); nvidia-smi && f; }\nN=1\nf\nrun n=$N";
    assert!(runs(doubles)[0].starts_with("n=<$"));
    let endless = commands("f(){ g; }\ng(){ f; }\nf", &|_| None).unwrap_err();
    assert!(matches!(endless, Unreadable::Calls(_)), "{endless}");
    assert!(endless.to_string().contains("calls itself without an end"), "{endless}");
}

#[test]
fn functions_that_double_their_calls_end_soon() {
    let mut script = String::from("f0(){ run a; }\n");
    for n in 1..15 {
        let before = n - 1;
        script += &format!("f{n}(){{ f{before}; f{before}; }}\n");
    }
    let error = commands(&format!("{script}f14"), &|_| None).unwrap_err();
    assert!(matches!(error, Unreadable::Calls(_)), "{error}");
    assert_eq!(runs(&format!("{script}f3")).len(), 8);
    let nested = "f(){ ".repeat(2000);
    assert_eq!(runs(&nested), [""; 0]);
    assert_eq!(all_runs(&format!("{nested} run a")).len(), 0);
}

#[test]
fn a_body_that_was_not_copied_whole_is_read_where_nothing_else_is() {
    assert_eq!(all_runs("f() {\n if true; then\n run a\n}\nf b"), ["a"]);
    assert_eq!(runs("f(){ run a; } > log 2>&1\nf | tee b\n"), ["a"]);
    assert_eq!(
        runs("f()\n{\n cat <<EOF\n}\nEOF\n run a\n}\nf <<EOF\nrun b\nEOF\nrun c"),
        ["a", "c"]
    );
    assert_eq!(runs("echo a()\nrun b"), ["b"]);
}
