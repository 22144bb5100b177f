use super::*;

fn words(script: &str) -> Vec<Vec<String>> {
    let home = |name: &str| (name == "HOME").then(|| "/root".to_owned());
    let commands = commands(script, &home).unwrap();
    let texts = |words: Vec<Word>| words.into_iter().map(|word| word.text).collect();
    commands.into_iter().map(texts).collect()
}

#[test]
fn quotes_comments_and_continued_lines_are_read_as_a_shell_does() {
    let script =
        "set -x # trace\npython -m a.b \\\n  --x 'it is $HOME' \\  \n  --y \"a \\\"b\\\" $HOME/c\" --z= \\\n  # end\n";
    let expected = [
        "python",
        "-m",
        "a.b",
        "--x",
        "it is $HOME",
        "--y",
        "a \"b\" /root/c",
        "--z=",
    ];
    assert_eq!(words(script), [vec!["set", "-x"], expected.to_vec()]);
    assert_eq!(words("a ''"), [["a", ""]]);
    assert_eq!(words("a $'x\\ny'"), [["a", "x\ny"]]);
}

#[test]
fn variables_and_arrays_of_the_script_are_put_in() {
    let script = "export D=/data F=\"['$HOME/a', '/b']\"\nA=(\n --x 1 # one\n --y \"$D\"\n)\nrun \"${A[@]}\" f=\"$F\" ${N:-8} $@";
    assert_eq!(
        words(script),
        [["run", "--x", "1", "--y", "/data", "f=['/root/a', '/b']", "8"]]
    );
}

#[test]
fn an_array_holds_every_kind_of_word() {
    assert_eq!(words("A=($'x\\ny' 'a b')\nrun \"${A[@]}\""), [["run", "x\ny", "a b"]]);
    let mut commands = commands("A=(n=`nproc`)\nrun \"${A[@]}\"", &|_| None).unwrap();
    assert_eq!(commands.remove(0).remove(1).unknown.as_deref(), Some("$A"));
}

#[test]
fn a_quoted_list_without_words_is_no_word() {
    let script = "A=()\nrun \"${A[@]}\" x \"$@\"";
    assert_eq!(words(script), [["run", "x"]]);
    assert_eq!(words("run \"\" \"a$@\" \"$@\""), [["run", "", "a"]]);
    assert_eq!(
        words("E=\nA=(a \"\" b)\nrun \"$E\" \"${A[@]}\""),
        [["run", "", "a", "", "b"]]
    );
}

#[test]
fn pipes_and_redirections_are_no_arguments() {
    assert_eq!(
        words("a --x 1 2>&1 | tee log.txt"),
        [vec!["a", "--x", "1"], vec!["tee", "log.txt"]]
    );
    assert_eq!(
        words("nohup a --x 1 > out.log 2>err.log &"),
        [["nohup", "a", "--x", "1"]]
    );
}

#[test]
fn what_only_a_shell_could_know_is_named() {
    let find = |script| commands(script, &|_| None).unwrap().remove(0).remove(1).unknown;
    assert_eq!(find("a $MODEL/x").as_deref(), Some("$MODEL"));
    assert_eq!(find("W=$(cd x && pwd)\na \"$W/x\"").as_deref(), Some("$W"));
    assert_eq!(find("a $(nproc)").as_deref(), Some("$(...)"));
    assert_eq!(find("a $((N * 2))").as_deref(), Some("$((N * 2))"));
}

#[test]
fn defaults_of_variables_and_sums_are_worked_out() {
    let script = "H=${H:-\"${HOME}/verl\"}\nP=$((1024 * 2))\nrun f=\"${F:-\"${H}/a b\"}\" n=$(((P + 1) / 3))";
    assert_eq!(words(script), [["run", "f=/root/verl/a b", "n=683"]]);
}

#[test]
fn a_variable_in_a_sum_may_be_written_as_everywhere() {
    let script = "N=4\nrun $(( ${N} * $N )) $((${M:-3} + 1)) $((-N + 10)) $(($# + $((1 + 1))))";
    assert_eq!(words(script), [["run", "16", "4", "6", "2"]]);
    let find = |script| commands(script, &|_| None).unwrap().remove(0).remove(1).unknown;
    assert_eq!(find("run $(($1 * 8))").as_deref(), Some("$1"));
    assert_eq!(find("run $((${M} * 8))").as_deref(), Some("$M"));
    assert_eq!(find("N=010\nrun $((N + 1))").as_deref(), Some("$((N + 1))"), "it is 8");
}

#[test]
fn texts_within_texts_are_read_to_a_depth() {
    let within = |depth: usize| {
        let text = (0..depth).fold("$(nproc)".to_owned(), |inside, end| {
            format!("$(cat <<E{end}\na {inside}\nE{end}\n)")
        });
        let mut commands = commands(&format!("run \"{text}\""), &|_| None).unwrap();
        commands.remove(0).remove(1)
    };
    assert_eq!(within(2).text.trim(), "a a");
    assert_eq!(within(60).unknown.as_deref(), Some("$(...)"));
}

#[test]
fn what_is_appended_stands_behind_what_was_there() {
    let script = "A=(a)\nA+=(b \"c d\" # not this\n e)\nF=x\nF+=\" y\"\nexport F+=z\nrun \"${A[@]}\" \"$F\"";
    assert_eq!(words(script), [["run", "a", "b", "c d", "e", "x yz"]]);
    assert_eq!(words("HOME+=/x\nB+=(b)\nrun $HOME ${B[@]}"), [["run", "/root/x", "b"]]);
}

#[test]
fn an_empty_variable_takes_the_default_that_has_a_colon() {
    let script = "E=\nrun ${E:-8} \"${E-8}\" ${E:=9} ${N:=4} $N $E ${HOME:?is not set}";
    assert_eq!(words(script), [["run", "8", "", "9", "4", "4", "9", "/root"]]);
}

#[test]
fn a_value_does_not_fall_apart_where_it_is_assigned() {
    assert_eq!(words("A=\"x y\"\nB=$A\nrun \"$B\" $B"), [["run", "x y", "x", "y"]]);
    assert_eq!(words("A=(x y)\nB=\"${A[@]} z\"\nrun \"$B\""), [["run", "x y z"]]);
}

#[test]
fn a_text_behind_the_command_is_no_command() {
    let script = "cat <<'EOF' > f\nif it isn't\nEOF\ncat <<-END\n\tdone\n\tEND\nrun <<< text a";
    assert_eq!(words(script), [vec!["cat"], vec!["cat"], vec!["run", "a"]]);
}

#[test]
fn a_quoted_word_is_read_back() {
    for word in ["", "a b", "it's", "$HOME", "a\\\nb"] {
        assert_eq!(words(&quote(word)), [[word]]);
    }
}

#[test]
fn a_line_that_was_not_copied_whole_is_refused() {
    for script in ["a 'b", "a \"b", "a ${b", "a $(b", "A=(b"] {
        assert!(commands(script, &|_| None).is_err(), "{script}");
    }
}

#[test]
fn a_variable_that_doubles_line_by_line_is_refused_by_its_name() {
    for (first, line) in [
        ("ab", "A=$A$A\n"),
        ("$(date)", "A=$A$A\n"),
        ("ab", "A+=$A\n"),
        ("ab", "A=(\"${A[@]}\" \"${A[@]}\")\n"),
        ("ab", "A=$(cat <<EOF\n$A$A\nEOF\n)\n"),
    ] {
        let script = format!("A={first}\n{}run $A\n", line.repeat(60));
        let error = commands(&script, &|_| None).unwrap_err();
        assert_eq!(error, Unreadable::TooLong("A".into()), "{line}");
        let words = error.to_string();
        assert!(words.starts_with("$A makes the script too long: "), "{words}");
    }
    let ten = format!("A=ab\n{}run $A\n", "A=$A$A\n".repeat(10));
    assert_eq!(words(&ten)[0][1].len(), 2048);
}

#[test]
fn a_comment_behind_a_backslash_does_not_end_the_command() {
    assert_eq!(
        words("run --a x \\  # [\"pow\"]\n --b y"),
        [["run", "--a", "x", "--b", "y"]]
    );
    assert_eq!(words("run a\\#b"), [["run", "a#b"]]);
}

#[test]
fn a_script_has_no_arguments_from_any_place_on() {
    assert_eq!(
        words("run \"${@:2}\" ${@:1:3} \"${*: -1}\" \"$*\" ${#} x"),
        [["run", "0", "x"]]
    );
}

#[test]
fn an_array_with_a_star_is_one_word_in_quotes() {
    let script = "A=(--x 1)\nE=()\nrun \"a=${A[*]}\" \"${A[*]}\" ${A[*]} \"${E[*]}\"";
    assert_eq!(words(script), [["run", "a=--x 1", "--x 1", "--x", "1", ""]]);
}

#[test]
fn a_text_of_a_script_is_a_variables_value() {
    let read = "read -r -d '' A <<EOF\n --x '$HOME' \\\n --y \\$1\nEOF\nrun $A \"$A\"";
    assert_eq!(
        words(read)[1],
        ["run", "--x", "'/root'", "--y", "$1", "--x '/root'  --y $1"]
    );
    assert_eq!(
        words("read A <<'EOF'\n$HOME a\nb\nEOF\nrun $A")[1],
        ["run", "$HOME", "a"]
    );
    assert_eq!(
        words("A=$(cat <<-'EOF'\n\t(a) b\n\tEOF\n)\nrun $A"),
        [["run", "(a)", "b"]]
    );
    assert_eq!(words("read A B <<EOF\nx y\nEOF\nrun z")[1], ["run", "z"]);
}

#[test]
fn what_is_done_to_a_value_that_is_known_is_worked_out() {
    let script = "M=org/Model-7B\nA=(x.y=1 x.y=2)\nrun ${M##*/} \"${M,,}\" ${M//\\//_} \"${A[@]//x.y/z}\" ${A[1]} ${#A[@]} ${#M}";
    assert_eq!(
        words(script),
        [[
            "run",
            "Model-7B",
            "org/model-7b",
            "org_Model-7B",
            "z=1",
            "z=2",
            "x.y=2",
            "2",
            "12"
        ]]
    );
    let flags = "F=\"\n a.b=1 \\\n a.c=2\"\nG=\"${F//a./d.}\"\nrun $G";
    assert_eq!(words(flags), [["run", "d.b=1", "d.c=2"]]);
}

#[test]
fn a_text_stands_in_place_of_a_value_that_is_there() {
    let script = "M=a\nE=\nrun ${M:+--x $M} ${E:+--y} ${E+--z} ${N:+--n} x${N+y}";
    assert_eq!(words(script), [["run", "--x", "a", "--z", "x"]]);
    let array = "A=(a \"b c\")\nrun ${A[@]+\"${A[@]}\"} \"${B[@]+\"${B[@]}\"}\" d";
    assert_eq!(words(array), [["run", "a", "b c", "d"]]);
    let find = |script| commands(script, &|_| None).unwrap().remove(0).remove(1).unknown;
    assert_eq!(find("W=$(pwd)\nrun ${W:+--x}").as_deref(), Some("$W"));
    assert_eq!(find("W=$(pwd)\nrun ${W##*/}").as_deref(), Some("${W##*/}"));
    assert_eq!(find("run ${#W[@]}").as_deref(), Some("${#W[@]}"));
}

#[test]
fn signs_of_commands_are_text_in_a_default() {
    for (script, word) in [
        (r#"run "${LAYOUT:-Et*6|t*6}""#, "Et*6|t*6"),
        ("run ${URL:-http://h:5/s?a=1&b=2}", "http://h:5/s?a=1&b=2"),
        (r#"run "${STOP:-</answer>}""#, "</answer>"),
        ("run ${X:-#a}", "#a"),
        ("run ${X:-(a; b)}", "(a; b)"),
    ] {
        assert_eq!(words(script)[0][1..].join(" "), word, "{script}");
    }
}

#[test]
fn a_default_in_double_quotes_is_read_as_they_are() {
    for (script, word) in [
        (r#"run "${F:-['$HOME/a', '$HOME/b']}""#, "['/root/a', '/root/b']"),
        (r#"run "${A:-'b'}""#, "'b'"),
        (r#"run "${A:-\d \$x}""#, r"\d $x"),
        (r#"run "${A:-"x  y"}""#, "x  y"),
        (r#"run "${A:-x  y}""#, "x  y"),
        (r#"run ${A:-'b'}"#, "b"),
    ] {
        assert_eq!(words(script), [["run", word]], "{script}");
    }
}

#[test]
fn a_command_put_in_the_place_of_a_file_ends_nothing() {
    let read = commands("run --x <(cat f; cat g) --y 1 < <(cat h) --z", &|_| None).unwrap();
    let texts: Vec<&str> = read[0].iter().map(|word| word.text.as_str()).collect();
    assert_eq!(texts, ["run", "--x", "", "--y", "1", "--z"]);
    assert_eq!(read[0][2].unknown.as_deref(), Some("<(...)"));
}

#[test]
fn what_only_a_running_shell_knows_is_not_known() {
    for what in ["$$", "$!", "$?"] {
        let read = commands(&format!("run a=/b_{what}"), &|_| None).unwrap();
        assert_eq!(read[0][1].unknown.as_deref(), Some(what));
    }
}

#[test]
fn a_word_that_is_not_known_is_kept_before_a_redirection() {
    let read = commands("run $ARGS>log", &|_| None).unwrap();
    assert_eq!(read[0].len(), 2);
    assert_eq!(words("run 2>log"), [["run"]]);
}

#[test]
fn a_backslash_at_a_lines_end_joins_what_stands_on_both_sides() {
    assert_eq!(words("run --lr 1\\\ne-6 a\\\n b"), [["run", "--lr", "1e-6", "a", "b"]]);
}

#[test]
fn a_parenthesis_in_quotes_does_not_end_a_command_in_a_word() {
    let read = commands("run --x $(echo \"a)b\") --y 1", &|_| None).unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].len(), 5, "{read:?}");
}

#[test]
fn a_value_that_a_loop_makes_of_itself_is_not_known() {
    for line in ["N=\"${N}0\"", "N=0$N", "N=(${N[@]} 0)"] {
        let read = commands(&format!("N=1\nfor A in 1 2; do {line}; done\nrun x$N"), &|_| None).unwrap();
        assert_eq!(read[0][1].unknown.as_deref(), Some("$N"), "{line}");
    }
    assert_eq!(words("for A in 1 2; do N=${N:-4}; done\nrun $N"), [["run", "4"]]);
}

#[test]
fn a_text_that_a_shell_takes_is_a_script() {
    for how in ["sbatch", "bash -s --", "ssh host", "srun -N 1 bash", "/bin/bash"] {
        let script = format!("N=2\n{how} <<EOF\n#!/bin/bash\n#SBATCH -N 2\nrun $N \\$M '$N' \\\n $(x)\nEOF\necho a");
        let read = commands(&script, &|_| None).unwrap();
        let run = read.iter().find(|words| words[0].text == "run").unwrap();
        let texts: Vec<&str> = run.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, ["run", "2", "", "2", ""], "{how}");
        assert_eq!(run[2].unknown.as_deref(), Some("$M"));
    }
    assert_eq!(words("sbatch <<'EOF'\nN=3; run $N\nEOF")[1], ["run", "3"]);
    assert_eq!(words("false && sbatch <<EOF\nrun\nEOF"), [["false"]]);
    assert_eq!(words("f(){\nbash <<EOF\nrun $1\nEOF\n}\nf 8")[1], ["run", "8"]);
    let written = "cat > run.sh <<EOF\nrun a\nEOF\nsbatch run.sh";
    assert_eq!(words(written).len(), 2);
    assert_eq!(all_commands(written, &|_| None).unwrap().len(), 3);
    assert!(all_commands("cat > x <<EOF\nit's\nEOF", &|_| None).is_ok());
    assert!(commands("bash <<EOF\nit's\nEOF", &|_| None).is_err());
    let itself = "bash <<A\n".repeat(2000);
    assert!(commands(&itself, &|_| None).is_ok());
}
