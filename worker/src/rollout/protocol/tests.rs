use super::*;
use crate::serving::body;

fn read(json: &str) -> Result<GenerateRequest, String> {
    body::parse(json.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn null_is_as_good_as_nothing() {
    let read = read(r#"{"stop": null, "logprobs": null, "stream_options": {"include_usage": null}}"#).unwrap();
    assert_eq!((read.stop, read.logprobs), (None, None));
    assert_eq!(read.stream_options.unwrap().include_usage, None);
}

#[test]
fn a_field_of_several_forms_is_read_in_each_and_named_when_it_has_none() {
    assert_eq!(read(r#"{"stop": "a"}"#).unwrap().stop, Some(Stop::One("a".into())));
    let many = Some(Stop::Many(vec!["a".into(), "b".into()]));
    assert_eq!(read(r#"{"stop": ["a", "b"]}"#).unwrap().stop, many);
    assert_eq!(
        read(r#"{"logprobs": true}"#).unwrap().logprobs,
        Some(Logprobs::Flag(true))
    );
    assert_eq!(read(r#"{"logprobs": 2}"#).unwrap().logprobs, Some(Logprobs::Count(2)));
    for (json, words) in [
        (
            r#"{"stop": 1}"#,
            "stop: invalid type: integer `1`, expected a text or a list of texts",
        ),
        (r#"{"stop": ["a", 1]}"#, "stop[1]: invalid type: integer `1`"),
        (
            r#"{"logprobs": -1}"#,
            "logprobs: invalid type: integer `-1`, expected true, false or a number",
        ),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.contains(words), "{json}: {error}");
    }
}

#[test]
fn a_number_without_a_fraction_is_whole_however_it_is_written() {
    let read_so = read(
        r#"{"n": 1.0, "max_tokens": 2.0, "top_k": -1.0, "seed": 7.0, "logprobs": 3.0, "prompt_logprobs": 0.0, "min_tokens": 1e0}"#,
    );
    let fields = read_so.unwrap();
    assert_eq!(
        (fields.n, fields.max_tokens, fields.min_tokens),
        (Some(1), Some(2), Some(1))
    );
    assert_eq!((fields.top_k, fields.prompt_logprobs), (Some(-1), Some(0)));
    assert_eq!(
        (fields.seed, fields.logprobs),
        (Some(Seed(7)), Some(Logprobs::Count(3)))
    );
    let lists = read(r#"{"seeds": [1.0, 2, -3.0], "stop_token_ids": [2e0, 1]}"#).unwrap();
    assert_eq!(lists.seeds, Some([1, 2, u64::MAX - 2].map(Seed).to_vec()));
    assert_eq!(lists.stop_token_ids, Some(vec![2, 1]));
    let none = read(r#"{"seeds": null, "stop_token_ids": null}"#).unwrap();
    assert_eq!((none.seeds, none.stop_token_ids), (None, None));
    let large = read(r#"{"seed": 18446744073709551615, "n": null}"#).unwrap();
    assert_eq!((large.seed, large.n), (Some(Seed(u64::MAX)), None));
    for (json, words) in [
        (
            r#"{"n": 1.5}"#,
            "n: invalid type: floating point `1.5`, expected a whole number, at least 0",
        ),
        (
            r#"{"n": -1.0}"#,
            "n: invalid value: integer `-1`, expected a whole number, at least 0",
        ),
        (
            r#"{"n": "1"}"#,
            r#"n: invalid type: string "1", expected a whole number, at least 0"#,
        ),
        (r#"{"top_k": 1e300}"#, "top_k: invalid type: floating point"),
        (
            r#"{"n": true}"#,
            "n: invalid type: boolean `true`, expected a whole number, at least 0",
        ),
        (
            r#"{"priority": "x"}"#,
            r#"priority: invalid type: string "x", expected a whole number"#,
        ),
        (
            r#"{"n": [1]}"#,
            "n: invalid type: sequence, expected a whole number, at least 0",
        ),
        (r#"{"seed": 0.5}"#, "0.5 is no seed"),
        (r#"{"seeds": [1, 0.5]}"#, "seeds[1]: 0.5 is no seed"),
        (
            r#"{"stop_token_ids": [1, 0.5]}"#,
            "stop_token_ids[1]: invalid type: floating point `0.5`, expected a whole number, at least 0",
        ),
        (
            r#"{"stop_token_ids": [-1.0]}"#,
            "stop_token_ids[0]: invalid value: integer `-1`, expected a whole number, at least 0",
        ),
        (
            r#"{"stop_token_ids": ["7"]}"#,
            r#"stop_token_ids[0]: invalid type: string "7", expected a whole number, at least 0"#,
        ),
        (
            r#"{"stop_token_ids": [null]}"#,
            "stop_token_ids[0]: invalid type: null, expected a whole number",
        ),
        (
            r#"{"stop_token_ids": 7.0}"#,
            "stop_token_ids: invalid type: floating point `7.0`, expected a sequence",
        ),
    ] {
        let error = read(json).unwrap_err();
        assert!(error.contains(words), "{json}: {error}");
    }
}

#[test]
fn no_more_stop_strings_are_kept_than_a_request_may_have() {
    let stops = |count: usize| format!(r#"{{"stop": [{}]}}"#, vec![r#""a""#; count].join(","));
    assert_eq!(read(&stops(256)).unwrap().stop, Some(Stop::Many(vec!["a".into(); 256])));
    let error = read(&stops(257)).unwrap_err();
    assert!(error.contains("stop: more than 256 strings"), "{error}");
}
