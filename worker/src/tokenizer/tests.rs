use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::*;

/// What transformers gave; `tests/fixtures/tokenizer/make.py` wrote it.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<Text>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    plain: Vec<u32>,
    special: Vec<u32>,
    kept: String,
    skipped: String,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Value>,
    add_generation_prompt: bool,
    text: Option<String>,
    ids: Option<Vec<u32>>,
    refused: Option<String>,
}

const FAMILIES: [&str; 4] = ["chatml", "llama2", "llama3", "qwen3"];

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizer")
        .join(family)
}

fn load(family: &str) -> (Tokenizer, Expected) {
    let expected = std::fs::read(fixture(family).join("expected.json")).unwrap();
    let moment = jiff::Timestamp::from_second(1_700_000_000).unwrap(); // MOMENT of make.py
    (
        Tokenizer::load_at(&fixture(family), Some(moment)).unwrap(),
        serde_json::from_slice(&expected).unwrap(),
    )
}

#[test]
fn texts_become_the_ids_that_transformers_gives_and_come_back() {
    for family in FAMILIES {
        let (tokenizer, expected) = load(family);
        for case in expected.texts {
            let what = format!("{family}: {:?}", case.text);
            assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.plain, "{what}");
            assert_eq!(tokenizer.encode(&case.text, true).unwrap(), case.special, "{what}");
            assert_eq!(tokenizer.decode(&case.special, false).unwrap(), case.kept, "{what}");
            assert_eq!(tokenizer.decode(&case.special, true).unwrap(), case.skipped, "{what}");
        }
    }
}

#[test]
fn chats_are_rendered_and_refused_as_by_transformers() {
    for family in FAMILIES {
        let (tokenizer, expected) = load(family);
        for case in expected.chats {
            let what = format!("{family}: {:?}", case.messages);
            let text = tokenizer.render_chat(&case.messages, case.add_generation_prompt);
            match (&case.text, &case.refused) {
                (Some(wanted), _) => assert_eq!(&text.unwrap(), wanted, "{what}"),
                (_, Some(reason)) => {
                    let error = format!("{:#}", text.unwrap_err());
                    // Python's and Rust's interpreters word their own errors differently; the template's words are its own.
                    assert!(error.contains(reason) || !reason.contains("role"), "{what}: {error}");
                    continue;
                }
                _ => unreachable!(),
            }
            let ids = tokenizer
                .encode_chat(&case.messages, case.add_generation_prompt)
                .unwrap();
            assert_eq!(Some(ids), case.ids, "{what}");
        }
    }
}

#[test]
fn a_template_over_which_its_engine_panics_is_an_error() {
    let template = ChatTemplate::compile("{{ messages[0].content[::-1] }}").unwrap();
    let render = |content: &str| {
        let messages = [json!({"role": "user", "content": content})];
        template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None)
    };
    assert_eq!(render("ab").unwrap(), "ba");
    render("").unwrap_err();
}

#[test]
fn a_template_with_the_line_ends_of_another_system_gives_the_same_text() {
    let source = "{% for message in messages %}\n{{ message.content }}\n{% endfor %}\n{{ '\\r' }}\n";
    let messages = [json!({"role": "user", "content": "a\r\nb"})];
    for line_end in ["\n", "\r\n", "\r"] {
        let template = ChatTemplate::compile(&source.replace('\n', line_end)).unwrap();
        let text = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None);
        assert_eq!(text.unwrap(), "a\r\nb\n\r", "{line_end:?}");
    }
}

#[test]
fn a_template_that_goes_on_and_on_is_given_up() {
    let rendered = |source: &str, content: &str| {
        let messages = [json!({"role": "user", "content": content})];
        let template = ChatTemplate::compile(source).unwrap();
        let error = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None);
        format!("{:#}", error.unwrap_err())
    };
    let loops = "{% for a in range(10000) %}{% for b in range(10000) %}{% set c = a %}{% endfor %}{% endfor %}";
    let error = rendered(loops, "");
    assert!(error.contains("given up after"), "{error}");
    let writes = "{% for a in range(10000) %}{{ messages[0].content }}{% endfor %}";
    let error = rendered(writes, &"a".repeat(10_000));
    assert!(error.contains("more than 16 MiB of text"), "{error}");
    let error = rendered("{{ messages | tojson(indent=1000000000) }}", "");
    assert!(error.contains("indent is 1000000000, at most 16"), "{error}");
}

#[test]
fn numbers_in_json_are_written_as_by_python() {
    let template = ChatTemplate::compile("{{ messages[0].number | tojson }}").unwrap();
    // As Python 3.12 prints json.dumps of them.
    for (number, wanted) in [
        (json!(-7), "-7"),
        (json!(u64::MAX), "18446744073709551615"),
        (json!(1.0), "1.0"),
        (json!(1e-4), "0.0001"),
        (json!(1e-5), "1e-05"),
        (json!(-1.5e-7), "-1.5e-07"),
        (json!(9_999_999_999_999_998.0), "9999999999999998.0"),
        (json!(1e16), "1e+16"),
        (json!(2.5e100), "2.5e+100"),
        (json!(5e-324), "5e-324"),
    ] {
        let messages = [json!({"role": "user", "content": "", "number": number})];
        let text = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None);
        assert_eq!(text.unwrap(), wanted);
    }
}

#[test]
fn the_date_is_written_as_by_pythons_moment_without_a_zone() {
    let template = ChatTemplate::compile("{{ strftime_now('%c|%x|%f|%Z%z|%d %b %Y|%H%%|%E|100%') }}").unwrap();
    let messages = [json!({"role": "user", "content": ""})];
    let epoch = jiff::Timestamp::from_second(0).unwrap();
    let text = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), Some(epoch));
    let wanted = "Thu Jan  1 00:00:00 1970|01/01/70|000000||01 Jan 1970|00%|%E|100%";
    assert_eq!(text.unwrap(), wanted);
}

#[test]
fn none_is_no_list_and_what_is_not_defined_has_no_length_as_in_python() {
    let messages = [json!({"role": "user", "content": "ab", "calls": [1, 2]})];
    for (source, wanted) in [
        (
            "{% if tools is iterable and tools | length > 0 %}tools{% else %}none{% endif %}",
            "none",
        ),
        ("{% if tools is not iterable %}none{% endif %}", "none"),
        ("{{ messages[0].tool_calls | length }}{{ nothing | count }}", "00"),
        (
            "{{ messages[0].calls | length }}{{ messages[0].content | count }}{{ messages[0] | length }}",
            "223",
        ),
        (
            "{{ messages is iterable }}{{ 'ab' is iterable }}{{ messages[0] is iterable }}",
            "TrueTrueTrue",
        ),
        ("{{ nothing is iterable }}{{ 1 is iterable }}", "TrueFalse"),
        (
            "{{ messages is sequence }}{{ 'ab' is sequence }}{{ messages[0] is sequence }}{{ nothing is sequence }}",
            "TrueTrueTrueTrue",
        ),
        ("{{ none is sequence }}{{ 1 is sequence }}", "FalseFalse"),
    ] {
        let template = ChatTemplate::compile(source).unwrap();
        let text = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None);
        assert_eq!(text.unwrap(), wanted, "{source}");
    }
    let template = ChatTemplate::compile("{{ tools | length }}").unwrap();
    let refused = template.render(&messages, &SpecialTokens::default(), true, &Map::new(), None);
    assert!(format!("{:#}", refused.unwrap_err()).contains("length of value of type none"));
}

#[test]
fn a_template_that_asks_whether_there_are_tools_as_llama_3_1_does_finds_none() {
    let source = "{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if builtin_tools is defined or tools is not none %}{{- 'Environment: ipython' }}{% endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}{{- message.content }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception('one call at once') }}{% endif %}
    {%- endif %}
{%- endfor %}";
    let template = ChatTemplate::compile(source).unwrap();
    let messages = [json!({"role": "user", "content": "ab"})];
    let render = |variables: Value| {
        let variables = variables.as_object().unwrap();
        template.render(&messages, &SpecialTokens::default(), true, variables, None)
    };
    assert_eq!(render(json!({})).unwrap(), "ab");
    assert_eq!(render(json!({"custom_tools": []})).unwrap(), "Environment: ipythonab");
}

/// Texts that begin in every way that a tokenizer may treat as its own.
const BEHIND: [&str; 8] = ["the", " the", "  the", "\nthe", "\n\n the", "42", "é\u{1}", "the</s>"];

#[test]
fn a_text_behind_another_one_gets_no_space_that_it_has_not() {
    let (llama2, _) = load("llama2");
    let before = llama2.encode("What is", true).unwrap();
    for text in BEHIND {
        let ids = llama2.encode_behind(text).unwrap();
        let whole = llama2.decode(&[&before[..], &ids].concat(), false).unwrap();
        assert_eq!(
            whole,
            format!("{}{text}", llama2.decode(&before, false).unwrap()),
            "{text:?}"
        );
    }
    assert_ne!(
        llama2.encode_behind("the").unwrap(),
        llama2.encode("the", false).unwrap()
    );
}

#[test]
fn a_text_behind_another_one_has_the_ids_of_its_own_where_no_space_is_put_before_a_text() {
    for family in ["chatml", "llama3", "qwen3"] {
        let (tokenizer, expected) = load(family);
        for text in expected.texts.iter().map(|case| case.text.as_str()).chain(BEHIND) {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.encode_behind(text).unwrap(), ids, "{family}: {text:?}");
        }
    }
}

#[test]
fn a_text_behind_another_one_gets_no_space_where_the_vocabulary_has_a_token_of_two_line_feeds() {
    let copy = tempfile::tempdir().unwrap();
    let source = std::fs::read(fixture("llama2").join("tokenizer.json")).unwrap();
    let mut content: Value = serde_json::from_slice(&source).unwrap();
    let id = content["model"]["vocab"].as_object().unwrap().len();
    let mut two = content["added_tokens"][2].clone();
    (two["content"], two["id"], two["special"]) = (json!("\n\n"), json!(id), json!(false));
    content["added_tokens"].as_array_mut().unwrap().push(two);
    std::fs::write(copy.path().join("tokenizer.json"), content.to_string()).unwrap();
    let tokenizer = Tokenizer::load(copy.path()).unwrap();
    let before = tokenizer.encode("What is", false).unwrap();
    let ids = tokenizer.encode_behind("\nthe").unwrap();
    let whole = tokenizer.decode(&[before, ids].concat(), false).unwrap();
    assert_eq!(whole, "What is\nthe");
}

#[test]
fn a_chat_without_messages_is_refused() {
    for family in FAMILIES {
        let error = load(family).0.render_chat(&[], true).unwrap_err();
        assert!(format!("{error:#}").contains("list of messages is empty"), "{error:#}");
    }
}

#[test]
fn a_rendered_chat_has_one_bos() {
    let (tokenizer, _) = load("llama3");
    let ids = tokenizer
        .encode_chat(&[json!({"role": "user", "content": "2+2?"})], true)
        .unwrap();
    assert_eq!(ids.iter().filter(|id| Some(**id) == tokenizer.bos_id()).count(), 1);
}

#[test]
fn what_ends_a_response_comes_from_generation_config_then_config_and_the_tokenizer() {
    let ends = |family| load(family).0.eos_ids().to_vec();
    assert_eq!(ends("chatml"), [0, 2]);
    assert_eq!(ends("llama2"), [2]);
    assert_eq!(
        ends("llama3"),
        [1, 4],
        "config.json's 99 loses against generation_config.json"
    );
    assert_eq!(ends("qwen3"), [2]);
    assert_eq!(load("chatml").0.own_eos_id(), Some(2));
    let (llama3, _) = load("llama3");
    assert_eq!(
        (llama3.bos_id(), llama3.eos_id(), llama3.pad_id()),
        (Some(0), Some(4), None)
    );
}

#[test]
fn a_stream_gives_the_text_of_the_whole_in_pieces_of_whole_characters() {
    for family in FAMILIES {
        let (tokenizer, expected) = load(family);
        for case in expected.texts {
            for skip_special in [false, true] {
                let mut stream = TextStream::new(skip_special);
                let mut pieces = Vec::new();
                for id in &case.special {
                    pieces.push(stream.push(&tokenizer, *id).unwrap());
                }
                assert!(
                    pieces.iter().all(|piece| !piece.contains('\u{fffd}')),
                    "{family}: {pieces:?}"
                );
                pieces.push(stream.finish(&tokenizer).unwrap());
                let whole = if skip_special { &case.skipped } else { &case.kept };
                assert_eq!(&pieces.concat(), whole, "{family}: {pieces:?}");
            }
        }
    }
}

#[test]
fn half_a_character_comes_out_as_a_replacement_only_at_the_end() {
    let (tokenizer, _) = load("chatml");
    let ids = tokenizer.encode("😀", false).unwrap();
    assert!(ids.len() > 1);
    let mut stream = TextStream::new(true);
    assert_eq!(stream.push(&tokenizer, ids[0]).unwrap(), "");
    assert_eq!(stream.finish(&tokenizer).unwrap(), "\u{fffd}");
}

#[test]
fn a_stray_byte_costs_a_stream_no_later_text() {
    let (llama2, _) = load("llama2");
    let byte = |value: u8| llama2.inner.token_to_id(&format!("<0x{value:02X}>")).unwrap();
    let mut ids = vec![byte(0xc3), byte(0xa9), byte(0xff)];
    ids.extend(llama2.encode("and so on", false).unwrap());
    let mut stream = TextStream::new(true);
    let text: String = ids.iter().map(|id| stream.push(&llama2, *id).unwrap()).collect();
    assert_eq!(text, "é\u{fffd} and so on");
}

#[test]
fn bytes_that_never_form_a_character_are_given_out_before_the_end() {
    // The byte 0x80, which begins no character, as each names it.
    for (family, name) in [("llama2", "<0x80>"), ("chatml", "\u{122}")] {
        let (tokenizer, _) = load(family);
        let stray = tokenizer.inner.token_to_id(name).unwrap();
        let mut stream = TextStream::new(true);
        let mut text = String::new();
        for _ in 0..100 {
            text += &stream.push(&tokenizer, stray).unwrap();
        }
        assert!(text.chars().count() >= 90, "{family}: {text:?}");
        for id in tokenizer.encode("end", false).unwrap() {
            text += &stream.push(&tokenizer, id).unwrap();
        }
        assert!(text.ends_with("end"), "{family}: {text:?}");
    }
}

/// Tokens of a SentencePiece tokenizer with byte fallback: valid and stray bytes, words with and without a space before them.
fn fallback_tokens() -> impl Strategy<Value = Vec<Vec<Result<u8, &'static str>>>> {
    let bytes = |bytes: &[u8]| bytes.iter().copied().map(Ok).collect::<Vec<_>>();
    let part = prop_oneof![
        Just(bytes("é".as_bytes())),
        Just(bytes("😀".as_bytes())),
        Just(bytes(b"A")),
        Just(bytes(&[0xc3])),
        Just(bytes(&[0xff])),
        Just(bytes(&[0x80; 12])),
        Just(vec![Err("a")]),
        Just(vec![Err("\u{2581}the")]),
        Just(vec![Err("</s>")]),
    ];
    prop::collection::vec(part, 0..24)
}

proptest! {
    #[test]
    fn a_stream_loses_nothing_that_stands_outside_invalid_bytes(parts in fallback_tokens(), skip_special in any::<bool>()) {
        let (llama2, _) = load("llama2");
        let id = |token: Result<u8, &str>| match token {
            Ok(byte) => llama2.inner.token_to_id(&format!("<0x{byte:02X}>")).unwrap(),
            Err(name) => llama2.inner.token_to_id(name).unwrap(),
        };
        let ids: Vec<u32> = parts.concat().into_iter().map(id).collect();
        let mut stream = TextStream::new(skip_special);
        let mut text = String::new();
        for id in &ids {
            text += &stream.push(&llama2, *id).unwrap();
        }
        text += &stream.finish(&llama2).unwrap();
        let whole = llama2.decode(&ids, skip_special).unwrap();
        let mut rest = text.as_str();
        for piece in whole.split('\u{fffd}').filter(|piece| !piece.is_empty()) {
            let at = rest.find(piece);
            prop_assert!(at.is_some(), "{piece:?} of {whole:?} is not in {text:?}");
            rest = &rest[at.unwrap() + piece.len()..];
        }
        if !whole.contains('\u{fffd}') {
            prop_assert_eq!(text, whole);
        }
    }
}

#[test]
fn variables_of_a_request_reach_the_template_and_win() {
    let template = ChatTemplate::compile(
        "{{ messages[0].content }}{% if enable_thinking is false %} now{% endif %}{{ add_generation_prompt }}",
    )
    .unwrap();
    let messages = [json!({"role": "user", "content": "ab"})];
    let render = |variables: Value| {
        let variables = variables.as_object().unwrap();
        template
            .render(&messages, &SpecialTokens::default(), true, variables, None)
            .unwrap()
    };
    assert_eq!(render(json!({})), "abTrue");
    assert_eq!(
        render(json!({"enable_thinking": false, "add_generation_prompt": false})),
        "ab nowFalse"
    );
}

#[test]
fn tokenizers_are_the_same_when_files_are_whatever_the_folder() {
    let copy = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("llama3").join(name), copy.path().join(name)).unwrap();
    }
    let (llama3, copy) = (load("llama3").0, Tokenizer::load(copy.path()).unwrap());
    assert_eq!(llama3.fingerprint().unwrap(), copy.fingerprint().unwrap());
    assert_ne!(llama3.fingerprint().unwrap(), load("qwen3").0.fingerprint().unwrap());
}

#[test]
fn tokenizers_are_the_same_whatever_ends_or_fills_a_text_and_not_where_other_ids_come_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut content: Value =
        serde_json::from_slice(&std::fs::read(fixture("llama2").join("tokenizer.json")).unwrap()).unwrap();
    let fingerprint = |content: &Value, config: Value| {
        for (name, text) in [("tokenizer.json", content), ("tokenizer_config.json", &config)] {
            std::fs::write(folder.path().join(name), text.to_string()).unwrap();
        }
        Tokenizer::load(folder.path()).unwrap().fingerprint().unwrap()
    };
    let llama2 = load("llama2").0.fingerprint().unwrap();
    let named = |names: Value| {
        let mut config = json!({"tokenizer_class": "LlamaTokenizer"});
        let fields = config.as_object_mut().unwrap();
        fields.extend(names.as_object().unwrap().clone());
        config
    };
    for names in [
        json!({}),
        json!({"pad_token": "<unk>", "eos_token": "<unk>", "unk_token": null}),
    ] {
        assert_eq!(fingerprint(&content, named(names)), llama2);
    }
    // Without a BOS a text has other ids.
    assert_ne!(fingerprint(&content, named(json!({"add_bos_token": false}))), llama2);
    content["added_tokens"][2]["special"] = json!(false);
    content["decoder"] = json!(null);
    assert_eq!(fingerprint(&content, named(json!({}))), llama2);
    content["added_tokens"][2]["lstrip"] = json!(true);
    assert_ne!(fingerprint(&content, named(json!({}))), llama2);
}

#[test]
fn tokens_that_the_file_does_not_name_are_those_of_the_class_in_transformers() {
    let (llama, expected) = load("llama2");
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(
        fixture("llama2").join("tokenizer.json"),
        copy.path().join("tokenizer.json"),
    )
    .unwrap();
    let loaded = |files: [(&str, Value); 2]| {
        for (name, content) in files {
            std::fs::write(copy.path().join(name), content.to_string()).unwrap();
        }
        Tokenizer::load(copy.path()).unwrap()
    };
    let named = ("tokenizer_config.json", json!({"tokenizer_class": "LlamaTokenizer"}));
    let unnamed = ("tokenizer_config.json", json!({}));
    for files in [
        [named, ("config.json", json!({}))],
        [unnamed.clone(), ("config.json", json!({"model_type": "llama"}))],
        [unnamed.clone(), ("config.json", json!({"model_type": "mistral"}))],
        [
            unnamed,
            ("config.json", json!({"tokenizer_class": "LlamaTokenizerFast"})),
        ],
    ] {
        let tokenizer = loaded(files);
        let special = |of: &Tokenizer| (of.bos_id(), of.eos_id(), of.pad_id());
        assert_eq!(special(&tokenizer), special(&llama));
        for case in &expected.texts {
            assert_eq!(
                tokenizer.encode(&case.text, true).unwrap(),
                case.special,
                "{:?}",
                case.text
            );
        }
    }
    // null says that there is none, and another class has none by default: what tokenizer.json adds of its own is left.
    for config in [
        json!({"tokenizer_class": "LlamaTokenizer", "bos_token": null}),
        json!({}),
    ] {
        let tokenizer = loaded([("tokenizer_config.json", config), ("config.json", json!({}))]);
        assert_eq!(tokenizer.bos_id(), None);
        let own = tokenizer.inner.encode_fast("Hi", true).unwrap();
        assert_eq!(tokenizer.encode("Hi", true).unwrap(), own.get_ids());
    }
}

#[test]
fn qwens_class_ends_and_fills_with_endoftext_where_the_file_names_nothing_else() {
    let copy = tempfile::tempdir().unwrap();
    let write = |name: &str, content: Value| std::fs::write(copy.path().join(name), content.to_string()).unwrap();
    let source = fixture("qwen3").join("tokenizer.json");
    std::fs::copy(source, copy.path().join("tokenizer.json")).unwrap();
    let special = || {
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        (tokenizer.bos_id(), tokenizer.own_eos_id(), tokenizer.pad_id())
    };
    for class in ["Qwen2Tokenizer", "Qwen2TokenizerFast"] {
        write("tokenizer_config.json", json!({"tokenizer_class": class}));
        assert_eq!(special(), (None, Some(0), Some(0)), "{class}");
    }
    write("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}));
    for family in ["qwen2", "qwen3"] {
        write("config.json", json!({"model_type": family}));
        assert_eq!(special(), (None, Some(2), Some(0)), "{family}");
    }
}

#[test]
fn a_token_with_a_role_is_special_whatever_tokenizer_json_calls_it() {
    let copy = tempfile::tempdir().unwrap();
    let source = std::fs::read(fixture("chatml").join("tokenizer.json")).unwrap();
    let mut content: Value = serde_json::from_slice(&source).unwrap();
    content["added_tokens"][2]["special"] = json!(false);
    std::fs::write(copy.path().join("tokenizer.json"), content.to_string()).unwrap();
    let visible = |config: Value| {
        std::fs::write(copy.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        let ids = tokenizer.encode("42<|im_end|>", false).unwrap();
        assert_eq!(ids.last(), Some(&2));
        tokenizer.decode(&ids, true).unwrap()
    };
    assert_eq!(visible(json!({"eos_token": "<|im_end|>"})), "42");
    assert_eq!(visible(json!({"eos_token": "<|endoftext|>"})), "42<|im_end|>");
}

#[test]
fn what_the_configuration_says_of_an_added_token_wins_over_tokenizer_json() {
    let copy = tempfile::tempdir().unwrap();
    let source = std::fs::read(fixture("chatml").join("tokenizer.json")).unwrap();
    let mut content: Value = serde_json::from_slice(&source).unwrap();
    for token in [1, 2] {
        content["added_tokens"][token]["special"] = json!(false);
    }
    let write = |name: &str, content: &Value| std::fs::write(copy.path().join(name), content.to_string()).unwrap();
    write("tokenizer.json", &content);
    let visible = |config: Value| {
        write("tokenizer_config.json", &config);
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        let ids = tokenizer.encode("a<|im_start|>b<|im_end|>  c", false).unwrap();
        tokenizer.decode(&ids, true).unwrap()
    };
    let said = |name: &str, special: bool, rstrip: bool| {
        let mut token = json!({"lstrip": false, "normalized": false, "single_word": false});
        (token["content"], token["rstrip"], token["special"]) = (name.into(), rstrip.into(), special.into());
        token
    };
    let start = "<|im_start|>";
    let end = said("<|im_end|>", false, true);
    for (config, wanted) in [
        (json!({}), "a<|im_start|>b<|im_end|>  c"),
        (json!({"additional_special_tokens": [start]}), "ab<|im_end|>  c"),
        (
            json!({"additional_special_tokens": [{"content": start}, "<|nope|>"]}),
            "ab<|im_end|>  c",
        ),
        (json!({"sep_token": start}), "ab<|im_end|>  c"),
        (
            json!({"added_tokens_decoder": {"1": said(start, true, false)}}),
            "ab<|im_end|>  c",
        ),
        (json!({"added_tokens_decoder": {"2": end}}), "a<|im_start|>b<|im_end|>c"),
        (
            json!({"added_tokens_decoder": {"900": said("<|nope|>", true, false)}}),
            "a<|im_start|>b<|im_end|>  c",
        ),
    ] {
        assert_eq!(visible(config.clone()), wanted, "{config}");
    }
    write(
        "special_tokens_map.json",
        &json!({"additional_special_tokens": [start]}),
    );
    assert_eq!(visible(json!({})), "ab<|im_end|>  c");
}

#[test]
fn a_template_for_tools_is_taken_for_a_chat_that_has_some() {
    let copy = tempfile::tempdir().unwrap();
    let source = fixture("chatml").join("tokenizer.json");
    std::fs::copy(source, copy.path().join("tokenizer.json")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(copy.path().join(name), text).unwrap();
    let rendered = |variables: Value| {
        let messages = [json!({"role": "user", "content": "Hi"})];
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        let text = tokenizer.render_chat_with(&messages, true, variables.as_object().unwrap());
        text.unwrap_or_else(|error| format!("{error:#}"))
    };
    let [none, null, some] = [json!({}), json!({"tools": null}), json!({"tools": [{"name": "w"}]})];
    let named = json!({"chat_template": [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
    ]});
    write("tokenizer_config.json", &named.to_string());
    let given = [&none, &null, &some].map(|variables| rendered(variables.clone()));
    assert_eq!(given, ["plain", "plain", "w"]);
    let broken = named.to_string().replace("{{ tools[0].name }}", "{% if %}");
    write("tokenizer_config.json", &broken);
    assert_eq!(rendered(none), "plain");
    let error = rendered(some.clone());
    assert!(
        error.contains("tokenizer_config.json: chat template \"tool_use\": line 1"),
        "{error}"
    );
    write("chat_template.jinja", "file");
    assert_eq!(rendered(some.clone()), "file");
    std::fs::create_dir(copy.path().join("additional_chat_templates")).unwrap();
    let named = "additional_chat_templates/tool_use.jinja";
    write(named, "{{ tools[0].name }}");
    assert_eq!([null, some.clone()].map(rendered), ["file", "w"]);
    write(named, "{% if %}");
    let error = rendered(some);
    assert!(error.contains("tool_use.jinja: chat template: line 1"), "{error}");
}

#[test]
fn tokens_that_an_older_folder_names_in_its_map_are_those_and_a_newer_folders_map_is_no_word() {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(
        fixture("chatml").join("tokenizer.json"),
        copy.path().join("tokenizer.json"),
    )
    .unwrap();
    let map = json!({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|nope|>"});
    std::fs::write(copy.path().join("special_tokens_map.json"), map.to_string()).unwrap();
    let special = |config: Option<Value>| {
        if let Some(config) = config {
            std::fs::write(copy.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        }
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        (tokenizer.bos_id(), tokenizer.eos_ids().to_vec())
    };
    assert_eq!(special(None), (None, vec![2]));
    let older = json!({"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"});
    assert_eq!(special(Some(older.clone())), (Some(1), vec![2]));
    let mut newer = older;
    newer["added_tokens_decoder"] = json!({});
    assert_eq!(special(Some(newer)), (Some(1), vec![0]));
}

#[test]
fn a_template_that_cannot_be_used_is_an_error_to_who_renders_a_chat_only() {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(
        fixture("chatml").join("tokenizer.json"),
        copy.path().join("tokenizer.json"),
    )
    .unwrap();
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "x"}]}"#;
    for (file, content, words) in [
        ("tokenizer_config.json", named, "with one named \"default\""),
        (
            "chat_template.jinja",
            "a\n{% if %}",
            "chat_template.jinja: chat template: line 2",
        ),
    ] {
        std::fs::write(copy.path().join(file), content).unwrap();
        let tokenizer = Tokenizer::load(copy.path()).unwrap();
        assert!(!tokenizer.encode("Hi", true).unwrap().is_empty());
        let error = tokenizer.render_chat(&[json!({"role": "user", "content": "Hi"})], true);
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn errors_name_the_file_and_what_helps() {
    let folder = tempfile::tempdir().unwrap();
    let error = || format!("{:#}", Tokenizer::load(folder.path()).unwrap_err());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    assert!(
        error().contains("tokenizer.json: a model folder in Hugging Face layout has one"),
        "{}",
        error()
    );
    write("tokenizer.model", "");
    assert!(error().contains("save_pretrained"), "{}", error());
    write("tokenizer.json", "{}");
    assert!(error().contains("tokenizer.json: not a tokenizer"), "{}", error());
    write(
        "tokenizer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7031645\n",
    );
    assert!(error().contains("tokenizer.json: a pointer of Git LFS"), "{}", error());
    std::fs::copy(
        fixture("chatml").join("tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();

    let plain = Tokenizer::load(folder.path()).unwrap();
    assert!(format!("{:#}", plain.render_chat(&[], true).unwrap_err()).contains("has no chat template"));
    assert!(format!("{:#}", plain.require_eos().unwrap_err()).contains("names no end token"));

    write("tokenizer_config.json", r#"{"eos_token": "<nope>"}"#);
    assert!(error().contains("\"<nope>\" is not in the vocabulary"), "{}", error());
    write("tokenizer_config.json", "{");
    assert!(
        error().contains("tokenizer_config.json: not a JSON object"),
        "{}",
        error()
    );
    write("tokenizer_config.json", r#"{"eos_token": {"content": "<|im_end|>"}}"#);
    write("config.json", r#"{"eos_token_id": "2"}"#);
    assert!(
        error().contains("eos_token_id is [\"2\"], want a token id"),
        "{}",
        error()
    );
}
