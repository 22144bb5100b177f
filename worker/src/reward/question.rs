//! The samples of a request, checked.

use std::sync::Arc;

use axum::http::StatusCode;

use super::protocol::{PolicyView, ScoreRequest};
use super::sample::ScoredSample;
use crate::serving::error::ApiError;
use crate::tokenizer::Tokenizer;

/// The request's samples, their numbers counted from 0. The response is the query without its prompt; without prompts (the
/// old form) rules read the whole query. `tokenizer`, if any, takes special tokens out of responses and counts tokens, where
/// the request does not say itself how the policy sees them.
///
/// # Errors
/// 413 for more than `most`, 422 naming what does not fit.
pub fn samples(
    request: ScoreRequest,
    tokenizer: Option<&Tokenizer>,
    most: usize,
) -> Result<Vec<ScoredSample>, ApiError> {
    let count = request.query.len();
    if count > most {
        let what = format!("{count} queries in one request, at most {most}");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, what));
    }
    check_lengths(&request)?;
    let mut prompts = request
        .prompts
        .unwrap_or_else(|| vec![String::new(); count])
        .into_iter();
    let mut labels = request.labels.unwrap_or_default().into_iter();
    let mut samples = Vec::with_capacity(count);
    for (index, query) in request.query.into_iter().enumerate() {
        let prompt = prompts.next().unwrap_or_default();
        // A trainer may decode BOS or padding in front of the prompt.
        let Some((_, response)) = query.split_once(prompt.as_str()) else {
            return Err(unfit(format!("query[{index}] does not contain prompts[{index}]")));
        };
        samples.push(ScoredSample {
            index,
            response: response.to_owned(),
            visible_response: response.to_owned(),
            visible_prompt: prompt.clone(),
            prompt,
            messages: None,
            has_ended: true,
            tokenizer: None,
            prompt_ids: Vec::new().into(),
            response_ids: Vec::new(),
            label: labels.next().flatten(),
        });
    }
    match (request.policy, tokenizer) {
        (Some(policy), _) => take(&mut samples, policy),
        (None, Some(tokenizer)) => read(&mut samples, tokenizer)?,
        (None, None) => {}
    }
    Ok(samples)
}

fn check_lengths(request: &ScoreRequest) -> Result<(), ApiError> {
    let policy = request.policy.as_ref();
    let of = |length: fn(&PolicyView) -> usize| policy.map(length);
    let count = request.query.len();
    for (name, length) in [
        ("prompts", request.prompts.as_ref().map(Vec::len)),
        ("labels", request.labels.as_ref().map(Vec::len)),
        ("policy.prompt_ids", of(|policy| policy.prompt_ids.len())),
        ("policy.response_ids", of(|policy| policy.response_ids.len())),
        ("policy.visible_prompts", of(|policy| policy.visible_prompts.len())),
        ("policy.visible_responses", of(|policy| policy.visible_responses.len())),
        (
            "policy.messages",
            policy.and_then(|policy| Some(policy.messages.as_ref()?.len())),
        ),
        (
            "policy.has_ended",
            policy.and_then(|policy| Some(policy.has_ended.as_ref()?.len())),
        ),
    ] {
        if let Some(length) = length.filter(|length| *length != count) {
            return Err(unfit(format!("{name} has {length} entries for {count} queries")));
        }
    }
    Ok(())
}

/// What the job's own trainer says of them.
fn take(samples: &mut [ScoredSample], policy: PolicyView) {
    let tokenizer: Arc<str> = policy.tokenizer.into();
    let ids = policy.prompt_ids.into_iter().zip(policy.response_ids);
    let texts = policy.visible_prompts.into_iter().zip(policy.visible_responses);
    let mut messages = policy.messages.unwrap_or_default().into_iter();
    let mut has_ended = policy.has_ended.unwrap_or_default().into_iter();
    for ((sample, ids), texts) in samples.iter_mut().zip(ids).zip(texts) {
        sample.tokenizer = Some(tokenizer.clone());
        sample.messages = messages.next().flatten().map(Arc::from);
        sample.has_ended = has_ended.next().unwrap_or(true);
        (sample.prompt_ids, sample.response_ids) = (ids.0.into(), ids.1);
        (sample.visible_prompt, sample.visible_response) = texts;
    }
}

/// What the policy's tokenizer makes of another trainer's text.
fn read(samples: &mut [ScoredSample], tokenizer: &Tokenizer) -> Result<(), ApiError> {
    for sample in samples {
        let failed = |cause: anyhow::Error| unfit(format!("query[{}]: {cause:#}", sample.index));
        let ids = tokenizer.encode(&sample.response, false).map_err(failed)?;
        let visible = tokenizer.decode(&ids, true).map_err(failed)?;
        (sample.response_ids, sample.visible_response) = (ids, visible);
    }
    Ok(())
}

fn unfit(what: String) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, what)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::data::{Label, Prompt};

    #[test]
    fn a_pod_knows_of_a_sample_what_the_trainer_does() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let sample = |index: usize, messages: Option<serde_json::Value>, response: &str| {
            let ids = tokenizer.encode("<|im_start|>Hi", true).unwrap();
            let prompt = Prompt {
                text: tokenizer.decode(&ids, false).unwrap(),
                ids: ids.into(),
                label: Label::of(json!(["a", index])).unwrap(),
                messages: messages.map(|message| vec![message].into()),
                ..Prompt::default()
            };
            let response = tokenizer.encode(response, false).unwrap();
            ScoredSample::new(&tokenizer, index, &prompt, &response).unwrap()
        };
        let message = json!({"role": "user", "content": "Hi"});
        let asked = [sample(0, Some(message), " 42<|im_end|>"), sample(1, None, "42")];
        assert_eq!((asked[0].has_ended, asked[1].has_ended), (true, false));
        let body = serde_json::to_vec(&ScoreRequest::of_job(&asked)).unwrap();
        let read = samples(serde_json::from_slice(&body).unwrap(), None, asked.len()).unwrap();
        assert_eq!(read, asked);
        // One from before these were sent.
        let mut request = ScoreRequest::of_job(&asked);
        if let Some(policy) = &mut request.policy {
            (policy.messages, policy.has_ended) = (None, None);
        }
        let read = samples(request, None, asked.len()).unwrap();
        assert!(read.iter().all(|sample| sample.has_ended && sample.messages.is_none()));
    }
}
