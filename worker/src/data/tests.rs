mod several;

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn fixtures() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&fixtures().join("tokenizer/chatml")).unwrap()
}

fn wanted(path: &Path) -> Prompts {
    Prompts {
        path: path.to_owned().into(),
        prompt_field: "prompt".into(),
        label_field: None,
        chat_template: false,
        chat_template_variables: Default::default(),
        max_length: 64,
        shuffle: true,
    }
}

/// Reads `text` as a file called `name`, with `change` made to the settings.
fn load(name: &str, text: impl AsRef<[u8]>, change: impl Fn(&mut Prompts)) -> Result<PromptSet> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    std::fs::write(&file, text).unwrap();
    let mut wanted = wanted(&file);
    change(&mut wanted);
    PromptSet::load(&wanted, &tokenizer())
}

fn texts(set: &PromptSet) -> Vec<&str> {
    set.prompts.iter().map(|prompt| prompt.text.as_str()).collect()
}

fn shown(set: &PromptSet) -> Vec<Option<String>> {
    let labels = set.prompts.iter().map(|prompt| prompt.label.as_ref());
    labels.map(|label| label.map(Label::shown)).collect()
}

#[test]
fn lines_may_have_a_byte_order_mark_crlf_blanks_and_no_last_line_feed() {
    let text = "\u{feff}{\"prompt\": \"one\"}\r\n\r\n  \n{\"prompt\": \"a\u{2028}b\"}\n{\"prompt\": \"three\"}";
    let set = load("a.jsonl", text, |_| {}).unwrap();
    assert_eq!(texts(&set), ["one", "a\u{2028}b", "three"]);
    assert_eq!(
        set.prompts.iter().map(|prompt| prompt.index).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn a_json_file_is_an_array_or_lines() {
    let array = load("a.json", " [{\"prompt\": \"one\"},\n {\"prompt\": \"two\"}]", |_| {}).unwrap();
    let lines = load("a.json", "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n", |_| {}).unwrap();
    assert_eq!(texts(&array), texts(&lines));
    let places = [&array, &lines].map(|set| set.prompts[1].place.at.to_string());
    assert_eq!(places, ["row 2", "line 2"]);
}

#[test]
fn a_prompt_is_text_or_messages_and_text_may_go_through_the_template() {
    let tokenizer = tokenizer();
    let message = json!([{"role": "user", "content": "one"}]);
    let rows = format!("{}\n{}", json!({"prompt": "one"}), json!({"prompt": message}));
    let plain = load("a.jsonl", &rows, |_| {}).unwrap();
    let chats = load("a.jsonl", &rows, |wanted| wanted.chat_template = true).unwrap();
    let rendered = tokenizer.render_chat(message.as_array().unwrap(), true).unwrap();
    assert_eq!(texts(&plain), ["one", rendered.as_str()]);
    assert_eq!(texts(&chats), [rendered.as_str(), rendered.as_str()]);
    let messages = |set: &PromptSet| -> Vec<Option<Value>> {
        let all = set.prompts.iter().map(|prompt| prompt.messages.clone());
        all.map(|messages| messages.map(|messages| messages.to_vec().into()))
            .collect()
    };
    assert_eq!(messages(&plain), [None, Some(message.clone())]);
    assert_eq!(messages(&chats), [Some(message.clone()), Some(message.clone())]);
    assert_eq!(&*plain.prompts[0].ids, tokenizer.encode("one", true).unwrap());
    assert_eq!(&*plain.prompts[1].ids, tokenizer.encode(&rendered, false).unwrap());
}

#[test]
fn variables_reach_the_chat_template_of_text_and_messages() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = fixtures().join("tokenizer/chatml/tokenizer.json");
    std::fs::copy(fixture, folder.path().join("tokenizer.json")).unwrap();
    let template = "{{ messages[0].content }}{% if enable_thinking is false %} now{% endif %}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let file = folder.path().join("a.jsonl");
    std::fs::write(
        &file,
        "{\"prompt\": \"one\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"two\"}]}",
    )
    .unwrap();
    let mut wanted = wanted(&file);
    wanted.chat_template = true;
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let set = PromptSet::load(&wanted, &tokenizer).unwrap();
    assert_eq!(texts(&set), ["one", "two"]);
    wanted
        .chat_template_variables
        .insert("enable_thinking".into(), json!(false));
    let set = PromptSet::load(&wanted, &tokenizer).unwrap();
    assert_eq!(texts(&set), ["one now", "two now"]);
}

#[test]
fn a_text_that_was_rendered_before_has_one_bos() {
    let llama3 = Tokenizer::load(&fixtures().join("tokenizer/llama3")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, "{\"prompt\": \"<|begin_of_text|>one\"}\n{\"prompt\": \"one\"}").unwrap();
    let set = PromptSet::load(&wanted(&file), &llama3).unwrap();
    assert_eq!(texts(&set), ["<|begin_of_text|>one"; 2]);
    assert_eq!(set.prompts[0].ids, set.prompts[1].ids);
}

#[test]
fn the_text_of_a_prompt_shows_the_bos_that_the_model_sees() {
    let llama3 = Tokenizer::load(&fixtures().join("tokenizer/llama3")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    std::fs::write(&file, "{\"prompt\": \"one\"}").unwrap();
    let set = PromptSet::load(&wanted(&file), &llama3).unwrap();
    assert_eq!(texts(&set), ["<|begin_of_text|>one"]);
}

#[test]
fn a_label_is_a_string_a_number_a_truth_or_nothing_and_may_be_nested() {
    let values = [
        json!("42"),
        json!(42),
        json!(2.5),
        json!(-0.0),
        json!(true),
        json!(null),
    ];
    let rows: Vec<_> = values
        .iter()
        .map(|value| json!({"prompt": "x", "meta": {"answers": [{"value": value}]}, "meta.a": value}).to_string())
        .collect();
    for field in ["meta.answers.0.value", "meta.a"] {
        let set = load("a.jsonl", rows.join("\n"), |wanted| {
            wanted.label_field = Some(field.into())
        })
        .unwrap();
        let texts = ["42", "42", "2.5", "-0.0", "true"].map(|text| Some(text.to_owned()));
        assert_eq!(shown(&set), [&texts[..], &[None]].concat(), "{field}");
        for (prompt, value) in set.prompts.iter().zip(&values) {
            let sent = prompt.label.as_ref().map_or(&Value::Null, Label::value);
            assert_eq!(sent, value, "{field}: what a remote reward is sent");
        }
    }
}

#[test]
fn long_prompts_are_dropped_and_counted_and_indices_close_up() {
    let rows = format!(
        "{}\n{}\n{}",
        json!({"prompt": "a"}),
        json!({"prompt": "long ".repeat(100)}),
        json!({"prompt": "b"})
    );
    let set = load("a.jsonl", &rows, |_| {}).unwrap();
    assert_eq!((texts(&set), set.dropped), (vec!["a", "b"], 1));
    assert_eq!(set.prompts[1].index, 1);
    let ids = set.prompts[0].ids.len();
    load("a.jsonl", json!({"prompt": "a"}).to_string(), |wanted| {
        wanted.max_length = ids
    })
    .unwrap();
    let error = load("a.jsonl", json!({"prompt": "aaa"}).to_string(), |wanted| {
        wanted.max_length = 0
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("all 1 prompts are longer than maxLength = 0"),
        "{error}"
    );
}

#[test]
fn what_several_threads_make_of_rows_is_in_the_order_of_the_file() {
    let row = |number: u32| Row {
        place: Place::default(),
        value: json!(number),
    };
    let rows: Vec<Row> = (0..1000).map(row).collect();
    for threads in [0, 1, 3, 1000] {
        let made = by_threads(&rows, threads, |row| row.value.clone()).unwrap();
        assert!(made.iter().eq(rows.iter().map(|row| &row.value)), "{threads} threads");
    }
    assert!(by_threads(&[], 4, |row| row.value.clone()).unwrap().is_empty());
}

#[test]
fn a_file_of_many_rows_is_read_whole_and_a_bad_one_is_named() {
    let rows = "{\"prompt\": \"x\"}\n".repeat(BLOCK + 9);
    let set = load("a.jsonl", &rows, |_| {}).unwrap();
    assert_eq!(set.prompts.len(), BLOCK + 9);
    assert_eq!(set.prompts[BLOCK].place.at, At::line(BLOCK));
    let error = load("a.jsonl", rows + "{\"prompt\": 3}", |_| {}).unwrap_err();
    let bad = format!("line {}: field \"prompt\" is the number 3", BLOCK + 10);
    assert!(format!("{error:#}").contains(&bad), "{error:#}");
}

#[test]
fn evaluation_takes_the_first_prompts_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    // The bad third line is not reached.
    std::fs::write(&file, "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": 3}\n").unwrap();
    let evaluation = Evaluation {
        path: file.into(),
        every_steps: 1,
        max_prompts: Some(2),
        temperature: 0.0,
        n_samples_per_prompt: 1,
        pass_score: 1.0,
        set_field: None,
    };
    let set = PromptSet::load_evaluation(&evaluation, &wanted(Path::new("unused")), &tokenizer()).unwrap();
    assert_eq!(texts(&set), ["a", "b"]);
}

#[test]
fn held_out_rows_name_their_test_sets_and_training_rows_need_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    let row = |prompt: &str, set: Value| json!({"prompt": prompt, "set": set}).to_string() + "\n";
    let rows = row("a", json!("AIME24")) + &row("b", json!(2)) + &row("c", Value::Null);
    std::fs::write(&file, rows).unwrap();
    let load = |max_prompts: Option<usize>| {
        let evaluation = Evaluation {
            path: file.clone().into(),
            every_steps: 1,
            max_prompts,
            temperature: 0.0,
            n_samples_per_prompt: 1,
            pass_score: 1.0,
            set_field: Some("set".into()),
        };
        PromptSet::load_evaluation(&evaluation, &wanted(Path::new("unused")), &tokenizer())
    };
    let names = |set: &PromptSet| -> Vec<Option<String>> {
        let names = set.prompts.iter().map(|prompt| prompt.set.as_deref());
        names.map(|name| name.map(str::to_owned)).collect()
    };
    // The third line is not reached.
    let two = ["AIME24", "2"].map(|name| Some(name.to_owned()));
    assert_eq!(names(&load(Some(2)).unwrap()), two);
    let refused = format!("{:#}", load(None).unwrap_err());
    assert!(
        refused.contains("a.jsonl: line 3: field \"set\" is null, want the name of a test set"),
        "{refused}"
    );
    let training = PromptSet::load(&wanted(&file), &tokenizer()).unwrap();
    assert!(training.prompts.iter().all(|prompt| prompt.set.is_none()));
}

#[test]
fn a_bad_row_is_named_with_file_place_field_and_what_is_wanted() {
    let good = "{\"prompt\": \"x\", \"answer\": 1}";
    let cases: [(&str, &str, &str); 12] = [
        (
            "a.jsonl",
            "{\"prompt\": 3}",
            "a.jsonl: line 2: field \"prompt\" is the number 3, want a string or a list",
        ),
        (
            "a.jsonl",
            "{\"text\": \"x\"}",
            "line 2: field \"prompt\" is missing; the row has \"text\"",
        ),
        ("a.jsonl", "[1]", "line 2: the row is the list [1], want an object"),
        (
            "a.jsonl",
            "{\"prompt\": \"x\", }",
            "a.jsonl: line 2: not JSON: trailing comma (column 17)",
        ),
        (
            "a.jsonl",
            "{\"prompt\": [\"x\"]}",
            "field \"prompt\": message 0 is the string \"x\", want an object",
        ),
        (
            "a.jsonl",
            "{\"prompt\": [{\"role\": \"user\"}]}",
            "message 0 (user) has no content",
        ),
        (
            "a.jsonl",
            "{\"prompt\": [{\"role\": \"user\", \"content\": 1}]}",
            "content is the number 1, want a string",
        ),
        (
            "a.jsonl",
            "{\"prompt\": [{\"role\": \"assistant\", \"content\": \"\"}]}",
            "the last message is the assistant's",
        ),
        ("a.jsonl", "{\"prompt\": []}", "the list of messages is empty"),
        ("a.jsonl", "{\"prompt\": \"\"}", "field \"prompt\" is an empty prompt"),
        (
            "a.jsonl",
            "{\"prompt\": \"x\", \"answer\": 1180591620717411303424}",
            "line 2: field \"answer\" is the number 1.1805916207174113e+21, which is too large for one",
        ),
        ("a.jsonl", "{\"prompt\": \"x\"}", "line 2: field \"answer\" is missing"),
    ];
    for (name, row, message) in cases {
        let error = load(name, format!("{good}\n{row}\n"), |wanted| {
            wanted.label_field = Some("answer".into())
        });
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains(message), "{row}\n  gives {error}\n  wants {message}");
    }
}

#[test]
fn a_bad_file_is_named_with_what_is_wanted() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
    let cases: [(&str, &[u8], &str); 13] = [
        ("a.jsonl", b"\x1f\x8b\x08\0", "it is compressed by gzip: unpack it"),
        ("a.json", b"\x28\xb5\x2f\xfd\0", "it is compressed by zstd: unpack it"),
        (
            "a.json",
            b"PAR1\0",
            "it is a Parquet file: let its name end in .parquet",
        ),
        ("a.jsonl", pointer, "it is a pointer of Git LFS"),
        ("a.parquet", pointer, "it is a pointer of Git LFS"),
        (
            "a.json",
            b"{\n  \"data\": []\n}",
            "does not begin with [, so that it is read as an object on each line: line 1: not JSON",
        ),
        (
            "a.jsonl",
            b"{\"prompt\": \"x\"}\n{\"prompt\": \"\xff\"}",
            "line 2: not UTF-8",
        ),
        ("a.jsonl", b" \n", "no prompts in it"),
        ("a.json", b"[]", "no prompts in it"),
        ("a.json", b"[{\"prompt\": 1}]", "a.json: row 1: field \"prompt\""),
        (
            "a.json",
            b"[{\n]",
            "not a JSON array of objects: key must be a string at line 2",
        ),
        ("a.parquet", b"PAR1", "not a Parquet file"),
        (
            "a.csv",
            b"prompt\nx",
            "extension \"csv\" is not known, want .jsonl, .ndjson, .json or .parquet",
        ),
    ];
    for (name, text, message) in cases {
        let error = format!("{:#}", load(name, text, |_| {}).unwrap_err());
        assert!(error.contains(message) && error.contains(name), "{error}");
    }
    let missing = read_rows(Path::new("/nowhere/a.jsonl")).unwrap_err();
    assert!(format!("{missing:#}").contains("/nowhere/a.jsonl: cannot read the file"));
}

#[test]
fn parquet_gives_the_same_rows_in_every_compression() {
    let read = |name: &str| read_rows(&fixtures().join(format!("prompts/{name}.parquet"))).unwrap();
    let plain = read("none");
    assert_eq!(
        plain[0].value,
        json!({"question": "1+1?", "chat": [{"content": "a", "role": "user"}], "answer": 2, "score": 0.5, "good": true,
               "reward_model": {"ground_truth": "2", "style": "rule"}})
    );
    assert_eq!(
        (plain[1].place.at, &plain[1].value["question"]),
        (At::row(1), &json!("naïve 北京?"))
    );
    for name in ["snappy", "zstd", "gzip", "lz4", "brotli"] {
        let same = |(row, plain): (&Row, &Row)| (row.place.at, &row.value) == (plain.place.at, &plain.value);
        let rows = read(name);
        assert!(
            rows.len() == plain.len() && rows.iter().zip(&plain).all(same),
            "{name}: {rows:?}"
        );
    }
    // An image beside the prompt is nobody's text, and no reason to refuse the prompt.
    let binary = read_rows(&fixtures().join("prompts/binary.parquet")).unwrap();
    let nulls = |row: &Row| {
        row.value
            .as_object()
            .unwrap()
            .values()
            .filter(|it| it.is_null())
            .count()
    };
    assert_eq!((nulls(&binary[0]), nulls(&binary[1])), (0, 1));
}

#[test]
fn parquet_columns_are_prompts_and_labels() {
    let mut wanted = wanted(&fixtures().join("prompts/snappy.parquet"));
    wanted.prompt_field = "chat".into();
    wanted.label_field = Some("answer".into());
    let set = PromptSet::load(&wanted, &tokenizer()).unwrap();
    assert!(
        set.prompts[2].text.contains("<|im_start|>user\nc<|im_end|>"),
        "{}",
        set.prompts[2].text
    );
    assert_eq!(shown(&set), [Some("2".to_owned()), None, Some("4".to_owned())]);
    wanted.label_field = Some("reward_model.ground_truth".into());
    let error = format!("{:#}", PromptSet::load(&wanted, &tokenizer()).unwrap_err());
    assert!(
        error.contains("snappy.parquet: row 3: field \"reward_model.ground_truth\" is missing"),
        "{error}"
    );
}

#[test]
fn the_order_of_a_seed_never_changes() {
    let order = PromptOrder {
        seed: 42,
        prompts: 10,
        batch: 10,
        shuffle: true,
    };
    assert_eq!(order.batch(0), GOLDEN[0]);
    assert_eq!(order.batch(1), GOLDEN[1]);
    assert_eq!(PromptOrder { seed: 43, ..order }.batch(0), GOLDEN[2]);
}

/// Drawn by a second implementation: `tests/fixtures/prompts/order.py`.
const GOLDEN: [[usize; 10]; 3] = [
    [1, 0, 8, 7, 5, 3, 9, 2, 6, 4],
    [5, 6, 7, 3, 4, 8, 1, 9, 2, 0],
    [3, 0, 8, 4, 9, 2, 1, 7, 5, 6],
];

#[test]
fn the_number_of_steps_counts_whole_batches_over_all_episodes() {
    let steps =
        |episodes, prompts, batch| total_steps(ppo_crds::run_config::RunLength::Episodes(episodes), prompts, batch);
    assert_eq!(steps(1, 128, 32), 4);
    assert_eq!(steps(1, 100, 32), 3, "the last 4 prompts make no batch");
    assert_eq!(steps(8, 100, 32), 25, "batches run across the episodes' ends");
    assert_eq!(steps(1, 5, 32), 1, "a small set repeats within its only batch");
    assert_eq!(total_steps(ppo_crds::run_config::RunLength::Steps(7), 5, 32), 7);
}

proptest! {
    #[test]
    fn every_episode_takes_every_prompt_once_whatever_the_batch(
        seed: u64, prompts in 1_usize..40, batch in 1_usize..50, shuffle: bool,
    ) {
        let order = PromptOrder { seed, prompts, batch, shuffle };
        let steps = (3 * prompts).div_ceil(batch) as u64;
        let stream: Vec<usize> = (0..steps).flat_map(|step| order.batch(step)).collect();
        for episode in stream.chunks_exact(prompts) {
            let mut sorted = episode.to_vec();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &(0..prompts).collect::<Vec<_>>());
            prop_assert!(shuffle || episode == sorted);
        }
        // A step's prompts do not depend on the steps before it, nor the stream on the batch.
        let single = PromptOrder { batch: 1, ..order };
        let again: Vec<usize> = (0..stream.len() as u64).rev().flat_map(|place| single.batch(place)).collect();
        prop_assert!(stream.iter().eq(again.iter().rev()));
    }

    #[test]
    fn no_file_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..3) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(["a.jsonl", "a.json", "a.parquet"][kind as usize]);
        std::fs::write(&file, bytes).unwrap();
        let _ = read_rows(&file);
    }
}

#[test]
fn episodes_and_seeds_have_orders_of_their_own() {
    let order = PromptOrder {
        seed: 1,
        prompts: 1000,
        batch: 1000,
        shuffle: true,
    };
    assert_ne!(order.batch(0), order.batch(1));
    assert_ne!(order.batch(0), PromptOrder { seed: 2, ..order }.batch(0));
    assert_eq!((order.episode_of(0), order.episode_of(7)), (0, 7));
    // A huge step number neither overflows nor loops.
    assert_eq!(PromptOrder { prompts: 3, ..order }.batch(u64::MAX).len(), 1000);
}
