//! The samples of a request, checked.

use std::sync::Arc;

use axum::http::StatusCode;
use jiff::Timestamp;

use super::protocol::{PolicyView, ScoreRequest};
use super::sample::ScoredSample;
use super::split::place_of_prompt;
use crate::serving::error::ApiError;
use crate::tokenizer::Tokenizer;

/// The request's samples, their numbers counted from 0. The response is the query without its prompt; without prompts (the
/// old form) rules read the whole query. `tokenizer`, if any, takes special tokens out of responses and counts tokens, where
/// the request does not say itself how the policy sees them. Without rules a prompt that is not found is no matter: a model reads the
/// whole query.
///
/// # Errors
/// 413 for more than `most`, 422 naming what does not fit.
pub fn samples(
    request: ScoreRequest,
    tokenizer: Option<&Tokenizer>,
    has_rules: bool,
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
    let fillers = tokenizer.map(fillers).unwrap_or_default();
    let mut samples = Vec::with_capacity(count);
    for (index, query) in request.query.into_iter().enumerate() {
        let prompt = prompts.next().unwrap_or_default();
        let place = match place_of_prompt(&query, &prompt, &fillers) {
            Some(place) => place,
            None if !has_rules => 0..0,
            None => {
                return Err(unfit(format!(
                    "query[{index}] does not contain prompts[{index}], so there is no telling what the response is: send the \
                     prompt in front of each response"
                )));
            }
        };
        let (prompt, response) = (&query[place.clone()], &query[place.end..]);
        samples.push(ScoredSample {
            index,
            response: response.to_owned(),
            visible_response: response.to_owned(),
            visible_prompt: prompt.to_owned(),
            prompt: prompt.to_owned(),
            messages: None,
            moment: None,
            has_ended: true,
            tokenizer: None,
            prompt_ids: Vec::new().into(),
            response_ids: Vec::new(),
            label: labels.next().flatten(),
        });
    }
    match (request.policy, tokenizer) {
        (Some(policy), _) => take(&mut samples, policy)?,
        (None, Some(tokenizer)) => read(&mut samples, tokenizer)?,
        (None, None) => {}
    }
    Ok(samples)
}

/// What the policy's tokenizer may put in front of a text, or fill a batch with.
fn fillers(tokenizer: &Tokenizer) -> Vec<String> {
    let ids = [tokenizer.bos_id(), tokenizer.pad_id(), tokenizer.eos_id()];
    let names = ids.into_iter().flatten().filter_map(|id| tokenizer.token_name(id));
    names.collect()
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
fn take(samples: &mut [ScoredSample], policy: PolicyView) -> Result<(), ApiError> {
    let tokenizer: Arc<str> = policy.tokenizer.into();
    let ids = policy.prompt_ids.into_iter().zip(policy.response_ids);
    let texts = policy.visible_prompts.into_iter().zip(policy.visible_responses);
    let mut messages = policy.messages.unwrap_or_default().into_iter();
    let moment = policy.moment.map(Timestamp::from_second).transpose();
    let moment = moment.map_err(|cause| unfit(format!("policy.moment: {cause}")))?;
    let mut has_ended = policy.has_ended.unwrap_or_default().into_iter();
    for ((sample, ids), texts) in samples.iter_mut().zip(ids).zip(texts) {
        sample.tokenizer = Some(tokenizer.clone());
        sample.messages = messages.next().flatten().map(Arc::from);
        sample.moment = moment;
        sample.has_ended = has_ended.next().unwrap_or(true);
        (sample.prompt_ids, sample.response_ids) = (ids.0.into(), ids.1);
        (sample.visible_prompt, sample.visible_response) = texts;
    }
    Ok(())
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
    use crate::engine::FinishReason;

    #[test]
    fn a_pod_knows_of_a_sample_what_the_trainer_does() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
        let moment = Timestamp::from_second(1_700_000_000).unwrap();
        let tokenizer = Tokenizer::load_at(&folder, Some(moment)).unwrap();
        let sample = |index: usize, messages: Option<serde_json::Value>, response: &str, reason| {
            let ids = tokenizer.encode("<|im_start|>Hi", true).unwrap();
            let prompt = Prompt {
                text: tokenizer.decode(&ids, false).unwrap(),
                ids: ids.into(),
                label: Label::of(json!(["a", index])).unwrap(),
                messages: messages.map(|message| vec![message].into()),
                ..Prompt::default()
            };
            let response = tokenizer.encode(response, false).unwrap();
            ScoredSample::new(&tokenizer, index, &prompt, &response, reason).unwrap()
        };
        let message = json!({"role": "user", "content": "Hi"});
        let asked = [
            sample(0, Some(message), " 42<|im_end|>", FinishReason::Stop),
            sample(1, None, "42", FinishReason::Length),
        ];
        assert_eq!((asked[0].has_ended, asked[1].has_ended), (true, false));
        let body = serde_json::to_vec(&ScoreRequest::of_job(&asked)).unwrap();
        let read = samples(serde_json::from_slice(&body).unwrap(), None, false, asked.len()).unwrap();
        let mut unlabelled = asked.clone();
        unlabelled.iter_mut().for_each(|sample| sample.label = None);
        assert_eq!(read, unlabelled, "its model has no use for labels");
        // One from before these were sent.
        let mut request = ScoreRequest::of_job(&asked);
        if let Some(policy) = &mut request.policy {
            (policy.messages, policy.has_ended) = (None, None);
        }
        let read = samples(request, None, false, asked.len()).unwrap();
        assert!(read.iter().all(|sample| sample.has_ended && sample.messages.is_none()));
    }
}
