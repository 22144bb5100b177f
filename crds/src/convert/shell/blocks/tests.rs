use crate::convert::shell::{all_commands, commands};

/// What `run` is given in a script; what is not known has the variable that is wanted in angle brackets.
fn run(script: &str) -> Vec<String> {
    let commands = commands(script, &|_| None).unwrap();
    let words = commands.into_iter().find(|words| words[0].text == "run").unwrap();
    let shown = |unknown: Option<String>| unknown.map(|what| format!("<{what}>")).unwrap_or_default();
    let words = words.into_iter().skip(1);
    words
        .map(|word| format!("{}{}", word.text, shown(word.unknown)))
        .collect()
}

#[test]
fn the_branch_that_texts_and_numbers_choose_is_followed() {
    let chosen = |mode: &str| {
        run(&format!(
            "M={mode}\nif [ \"$M\" = a ]; then N=1\nelif [ -n \"$M\" ] && [ $M -gt 4 ]; then\n N=2\nelse N=3; fi\nrun $N"
        ))
    };
    assert_eq!([chosen("a"), chosen("8"), chosen("")], [["1"], ["2"], ["3"]]);
    let case = |device: &str| {
        run(&format!(
            "D={device}\ncase \"$D\" in\n gpu | gb*)\n  N=8\n  ;;\n (npu) N=16 ;;\n *) N=1;;\nesac\nrun $N"
        ))
    };
    assert_eq!(
        [case("gpu"), case("gb200"), case("npu"), case("tpu")],
        [["8"], ["8"], ["16"], ["1"]]
    );
}

#[test]
fn a_default_for_what_nobody_sets_is_taken() {
    assert_eq!(run("if [ -z \"$N\" ]; then N=4; fi\nrun $N"), ["4"]);
    assert_eq!(run("[ -z \"$N\" ] && N=4\nrun $N"), ["4"]);
    assert_eq!(run("N=2\n[ -n \"$N\" ] || N=4\nrun $N"), ["2"]);
    assert_eq!(run("cd /x && N=4\nrun $N"), ["4"]);
}

#[test]
fn a_script_has_no_arguments_of_its_own() {
    let script = "N=1\nwhile [[ $# -gt 0 ]]; do\n case $1 in\n  --n) N=$2; shift 2 ;;\n esac\ndone\nrun $N";
    assert_eq!(run(script), ["1"]);
}

#[test]
fn what_only_some_branches_give_is_not_known() {
    for branch in [
        "if nvidia-smi; then N=8; fi",
        "if nvidia-smi; then\nN=8\nelse\nN=4\nfi",
        "nvidia-smi && N=8",
        "nvidia-smi ||\n N=8",
        "nvidia-smi && { N=8; }",
        "while nvidia-smi; do N=8; done",
        "if true; then if nvidia-smi; then N=8; fi; fi",
    ] {
        assert_eq!(run(&format!("N=1\n{branch}\nrun n=$N")), ["n=<$N>"], "{branch}");
    }
}

#[test]
fn what_a_command_changes_otherwise_is_not_known() {
    for command in [
        "((N += 2))",
        "((N++))",
        "let N+=2",
        "let \"N = N * 2\"",
        "M=$((N += 2))",
        "read -r N < f",
        "IFS=, read -ra N <<< a,b",
        "printf -v N %s 2",
        "for N in 1 2; do :; done",
        "for ((N = 0; N < 3; N++)); do :; done",
        "for((N = 0; N < 3; N++)); do :; done",
        "M=$((N += $(nproc)))",
        "if ((N > 3)); then N=2; fi",
    ] {
        assert_eq!(run(&format!("N=1\n{command}\nrun n=$N")), ["n=<$N>"], "{command}");
    }
    assert_eq!(run("N=1\n((N == 1)) || true\n((M = 2))\nrun $N"), ["1"]);
    assert_eq!(
        run("N=1\nunset -v N\nrun n=$N ${N:-4} ${N-4} \"$N\""),
        ["n=", "4", "4", ""]
    );
    assert_eq!(
        run("A=(b)\nunset A\nA+=(a.b=1)\nrun \"${A[@]}\" ${#A[@]}"),
        ["a.b=1", "1"]
    );
    assert_eq!(run("A=()\nrun \"${A[@]}\" \"$A\" \"${A[*]}\" x"), ["", "", "x"]);
    assert_eq!(run("A=(a b)\nA[0]=c\nrun x=${A[0]}"), ["x=<${A[0]}>"]);
    assert_eq!(run("N=1\n((true); (true)) && run $N"), ["1"]);
}

#[test]
fn a_loop_over_no_words_is_not_run_and_the_items_of_others_are_not_known() {
    let arguments = "N=1\nfor A in \"$@\"; do case $A in --n=*) N=${A#*=} ;; esac; done\nrun $N";
    assert_eq!(run(arguments), ["1"]);
    assert_eq!(run("N=1\nfor A\ndo N=2; done\nrun $N"), ["1"]);
    let items = "N=1\nfor A in a b; do if [ -n \"$A\" ]; then N=2; fi; done\nrun n=$N";
    assert_eq!(run(items), ["n=<$A>"]);
    assert_eq!(run("for A in a b; do N=2; done\nrun $N"), ["2"]);
}

#[test]
fn what_a_loop_counts_or_adds_is_not_known() {
    for script in [
        "N=1\nfor A in 1 2 3; do N=$((N * 2)); done",
        "N=1\nfor A in 1 2 3\ndo\n  N=$((N + 1))\ndone",
        "N=1\nfor A in 1 2; do N+=0; done",
        "N=(1)\nfor A in 1 2; do N+=(2); done",
        "N=1\nfor A in $EXTRA; do N=2; done",
    ] {
        assert!(run(&format!("{script}\nrun n=$N"))[0].starts_with("n=<$"), "{script}");
    }
    assert_eq!(run("N=1\nM=2\nfor A in 1 2; do N=$((M + 1)); done\nrun $N"), ["3"]);
}

#[test]
fn what_a_function_is_given_or_sets_counts_where_it_is_called() {
    let called = |how: &str| run(&format!("train() {{\n run a=1 \"$@\"\n}}\n{how}"));
    assert_eq!(called("train"), ["a=1"]);
    assert_eq!(called("train b=2"), ["a=1", "b=2"]);
    assert_eq!(run("f() { local N=${1:-4}; run n=$N; }\nf"), ["n=4"]);
    assert_eq!(run("function f { local N=${1:-4}; run n=$N; }\nf 8"), ["n=8"]);
    assert_eq!(run("npu() { N=16; }\nN=8\nrun n=$N"), ["n=8"]);
    assert_eq!(run("N=8\nnpu() { N=16; }\nrun n=$N"), ["n=8"]);
    assert_eq!(run("N=8\nnpu() { N=16; }\nnvidia-smi || npu\nrun n=$N"), ["n=<$N>"]);
}

#[test]
fn what_is_asked_for_is_the_variable_that_decides() {
    let script = "D=$(detect)\nN=1\ncase $D in\n gpu) N=8 ;;\nesac\n[ \"$D\" = npu ] && M=1\nrun $N $M";
    assert_eq!(run(script), ["<$D>", "<$D>"]);
}

#[test]
fn what_every_branch_gives_is_known() {
    assert_eq!(run("if nvidia-smi; then N=8; else N=8; fi\nrun $N"), ["8"]);
    assert_eq!(run("N=8\nif nvidia-smi; then N=${N:-4}; fi\nrun $N"), ["8"]);
    let ends = "case $D in\n *) exit 1 ;;\nesac";
    assert_eq!(
        run(&format!("N=8\nif nvidia-smi; then N=4; exit 1; fi\n{ends}\nrun $N")),
        ["8"]
    );
    assert_eq!(
        run("usage() { N=1; exit 1; }\nN=8\nnvidia-smi || { N=2; exit 1; }\nrun $N"),
        ["8"]
    );
}

#[test]
fn a_command_sees_the_variables_of_its_own_branch() {
    assert_eq!(run("if nvidia-smi; then N=8; run $N; else N=1; fi"), ["8"]);
}

#[test]
fn flags_that_only_some_branches_add_are_kept_as_not_known() {
    let array = "A=(--x 1)\nif nvidia-smi; then A+=(--y 2); fi\nA+=(--z)\nrun \"${A[@]}\"";
    assert_eq!(run(array), ["--x", "1", "--y<$A>", "2<$A>", "--z"]);
    let text = "A=\"--x 1\"\nif nvidia-smi; then A+=\" --y 2\"; fi\nA+=\" --z\"\nrun $A";
    assert_eq!(run(text), ["--x", "1", "--y<$A>", "2<$A>", "--z"]);
    assert_eq!(run("nvidia-smi && A+=(a.b=1)\nrun ${A[@]}"), ["a.b=1<$A>"]);
    assert_eq!(run("A=(--x 1)\nnvidia-smi && A=(--x 2)\nrun ${A[@]}"), ["--x", "<$A>"]);
    assert_eq!(
        run("if nvidia-smi; then A=(--x); else A=(--y); fi\nrun ${A[@]}"),
        ["--x<$A>", "--y<$A>"]
    );
}

#[test]
fn blocks_that_were_not_copied_whole_change_nothing() {
    for script in ["fi\nN=1", "if [ a ]\nN=1", "done\n}\nesac\nN=1", "then N=1"] {
        assert_eq!(run(&format!("{script}\nrun $N")), ["1"], "{script}");
    }
}

#[test]
fn a_setting_whose_value_has_blanks_is_one_word_in_every_branch() {
    let script = "A=(a.b=null)\nif nvidia-smi; then A=(a.b=\"x -v y\"); fi\nrun \"${A[@]}\"";
    assert_eq!(run(script), ["a.b=x -v y<$A>", "a.b=null<$A>"]);
    let text = "A=\"a.b=1\"\nif nvidia-smi; then A+=\" c.d=2\"; fi\nrun $A";
    assert_eq!(run(text), ["a.b=1", "c.d=2<$A>"]);
}

#[test]
fn a_command_of_a_branch_that_is_not_taken_is_none() {
    assert_eq!(run("N=1\nif [ $N = 2 ]; then run a; else run b; fi"), ["b"]);
    assert_eq!(run("N=1\n[ $N = 2 ] && run a\nrun b"), ["b"]);
    assert_eq!(run("if false; then if nvidia-smi; then run a; fi; fi\nrun b"), ["b"]);
    assert_eq!(run("case x in\n y) run a ;;\n *) run b ;;\nesac"), ["b"]);
    let all = all_commands("if false; then run a; fi", &|_| None).unwrap();
    assert!(all.iter().any(|words| words[0].text == "run"), "{all:?}");
}

#[test]
fn tests_with_and_and_or_between_them_are_one_condition() {
    let chosen = |test: &str| run(&format!("A=x\nB=8\nN=1\nif [[ {test} ]]; then N=2; fi\nrun $N"));
    for (test, number) in [
        ("\"$A\" == x && $B -gt 4", "2"),
        ("\"$A\" == x && $B -gt 9", "1"),
        ("\"$A\" == y || $B -gt 4 &&\n ! $A == z", "2"),
        ("x == y || \"$A\" != \"x\"", "1"),
    ] {
        assert_eq!(chosen(test), [number], "{test}");
    }
    for test in ["$B < 9", "( $A == x )", "$A =~ ^(x|y)$"] {
        assert!(chosen(test)[0].starts_with('<'), "{test}");
    }
}

#[test]
fn each_word_of_a_text_is_known_or_not_by_itself() {
    assert_eq!(
        run("W=$(pwd)\nA=\"--n 1 --m $W/q\"\nrun $A"),
        ["--n", "1", "--m", "/q<$W>"]
    );
    assert_eq!(run("A=\"--n 1 $(flags) --m 2\"\nrun $A")[4], "<$A>");
}

#[test]
fn what_a_function_returns_with_and_what_stands_beside_a_name_alone_count() {
    assert_eq!(run("N=8\nf() { N=16; return 0; }\nf\nrun n=$N"), ["n=16"]);
    assert_eq!(run("N=4\nexport X N=8\nrun $N"), ["8"]);
    assert_eq!(run("N=4\nN=8 M=$N\nrun $M"), ["8"]);
    assert_eq!(run("N=4\nN=8 true $N\nrun $N"), ["4"]);
    assert_eq!(run("N=4\neval \"N=16\"\nrun n=$N"), ["n=<$N>"]);
    assert_eq!(run("A=(a b)\nIFS=,\nrun \"x=${A[*]}\""), ["x=<${A[*]}>"]);
}
