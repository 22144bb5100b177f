//! How a conversation becomes a prompt: through the model's own chat template.

use ppo_crds::spec::NO_TEMPLATE_VARIABLES;
use serde_json::{Map, Value};

use super::message::{all_plain, is_developers, of_system};
use super::model::Model;
use super::protocol::GenerateRequest;
use super::service::Service;
use super::truncate::Cut;
use crate::data::describe;
use crate::serving::error::ApiError;
use crate::serving::room::Room;
use crate::tokenizer::Tokenizer;

/// Stands behind the last message's text while the template is rendered, where the model goes on with it. What a template that trims
/// texts makes of it tells that from one that does not.
const MARK: &str = "\u{fdd0}goes-on-here\u{fdd0} ";

/// What a request says of its conversation beside the messages.
#[derive(Debug, Default)]
pub struct Way {
    /// The prompt ends where the assistant's answer begins.
    begin_answer: bool,
    /// It ends with the last message's text, which the model goes on with.
    goes_on: bool,
    /// The model's own tokens go around it.
    special: bool,
    /// What of a text that is too long is cut.
    cut: Cut,
    /// For the template.
    variables: Map<String, Value>,
}

impl Way {
    /// Takes it out of a request.
    ///
    /// # Errors
    /// 400 when it contradicts itself, or what is for the template is not what it has to be.
    pub fn of(asked: &mut GenerateRequest) -> Result<Self, ApiError> {
        let goes_on = asked.continue_final_message == Some(true);
        if goes_on && asked.add_generation_prompt == Some(true) {
            let words = "not with add_generation_prompt: either the last message goes on, or an answer to it begins";
            return Err(ApiError::field("continue_final_message", words));
        }
        Ok(Self {
            begin_answer: !goes_on && asked.add_generation_prompt != Some(false),
            goes_on,
            special: asked.add_special_tokens == Some(true),
            cut: Cut::of(asked),
            variables: variables(asked)?,
        })
    }
}

/// What vLLM takes for `reasoning_effort`.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The variables that a request has for the template: those of `chat_template_kwargs`, and fields that vLLM makes such
/// (`build_chat_params` in `vllm/entrypoints/openai/chat_completion/protocol.py`).
fn variables(asked: &mut GenerateRequest) -> Result<Map<String, Value>, ApiError> {
    let mut variables = free_variables(asked.chat_template_kwargs.take())?;
    for (name, value) in [("tools", asked.tools.take()), ("documents", asked.documents.take())] {
        if let Some(list) = list(name, value)? {
            variables.insert(name.to_owned(), list);
        }
    }
    if let Some(effort) = asked.reasoning_effort.take() {
        if !EFFORTS.contains(&effort.as_str()) {
            let known = EFFORTS.join(", ");
            let words = format!("{effort:?} is none of {known}; chat_template_kwargs gives a template any other");
            return Err(ApiError::field("reasoning_effort", words));
        }
        let thinks = Value::Bool(effort != "none");
        variables.entry("enable_thinking").or_insert(thinks);
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    Ok(variables)
}

/// The variables that `chat_template_kwargs` gives the template.
fn free_variables(given: Option<Value>) -> Result<Map<String, Value>, ApiError> {
    let wrong = |what: String| ApiError::field("chat_template_kwargs", what);
    let variables = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(other) => return Err(wrong(format!("is {}, want an object", describe(&other)))),
    };
    match NO_TEMPLATE_VARIABLES
        .into_iter()
        .find(|name| variables.contains_key(*name))
    {
        Some(name) => Err(wrong(format!("{name} is no variable of a template"))),
        None => Ok(variables),
    }
}

/// A list with something in it.
fn list(name: &'static str, value: Option<Value>) -> Result<Option<Value>, ApiError> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items).filter(|items| !items.is_empty()).map(Value::Array)),
        Some(other) => Err(ApiError::field(name, format!("is {}, want a list", describe(&other)))),
    }
}

/// Token ids of a conversation, whose messages count for `room`.
///
/// # Errors
/// 400 when a message is not one, the model has no template, the template refuses, or the text is too long.
pub async fn encode(
    service: &Service,
    model: &Model,
    messages: Vec<Value>,
    way: Way,
    room: Room,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = model.tokenizer.clone();
    let mut messages = all_plain(messages)?;
    if messages.iter().any(is_developers) && !knows_developers(&tokenizer) {
        messages = of_system(messages);
    }
    let said = way.goes_on.then(|| mark(&mut messages)).flatten();
    let Way {
        begin_answer,
        special,
        cut,
        variables,
        ..
    } = way;
    let render = move || {
        // It goes on when the client has gone, and has its room with it.
        let text = tokenizer.render_chat_with(&messages, begin_answer, &variables);
        (text, room)
    };
    let rendered = tokio::task::spawn_blocking(render).await;
    let (text, _room) = rendered.map_err(ApiError::internal)?;
    let text = text.map_err(|error| ApiError::field("messages", format!("{error:#}")))?;
    let text = match said {
        None => text,
        Some(said) => before_mark(text, &said).ok_or_else(|| {
            let words = "the model's template does not write the last message as it is: there is no place to go on at";
            ApiError::field("continue_final_message", words)
        })?,
    };
    let encoding = service.encoding.encode(model, vec![text], special, cut, "messages");
    Ok(encoding.await?.into_iter().next().unwrap_or_default())
}

/// Whether the chat template treats developers as it does nobody else (as vLLM tells it, `_detect_developer_role_support`).
fn knows_developers(tokenizer: &Tokenizer) -> bool {
    let content = tokenizer.template_content().unwrap_or_default();
    ["\"developer\"", "'developer'"]
        .iter()
        .any(|name| content.contains(name))
}

/// Marks the end of the last message's text, and gives that text.
fn mark(messages: &mut [Value]) -> Option<String> {
    let Some(Value::String(text)) = messages.last_mut()?.get_mut("content") else {
        return None;
    };
    let said = text.clone();
    text.push_str(MARK);
    Some(said)
}

/// The text before the mark, without the spaces at the end of what was `said` where the template trims.
fn before_mark(mut text: String, said: &str) -> Option<String> {
    let at = text.rfind(MARK.trim_end())?;
    let is_trimmed = !text.get(at..)?.starts_with(MARK);
    text.truncate(at);
    let spaces = said.strip_prefix(said.trim_end()).unwrap_or_default();
    if is_trimmed && text.ends_with(spaces) {
        text.truncate(text.len() - spaces.len());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn way(fields: Value) -> Result<Way, ApiError> {
        let mut asked: GenerateRequest = serde_json::from_value(fields).unwrap();
        Way::of(&mut asked)
    }

    #[test]
    fn variables_of_the_template_are_an_object_of_its_own_names() {
        assert!(way(json!({})).unwrap().variables.is_empty());
        let given = way(json!({"chat_template_kwargs": {"enable_thinking": false}})).unwrap();
        assert_eq!(given.variables.len(), 1);
        for (wrong, words) in [
            (json!([1]), "want an object"),
            (json!({"chat_template": "x"}), "chat_template is no variable"),
        ] {
            let error = way(json!({"chat_template_kwargs": wrong})).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("chat_template_kwargs"));
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn tools_documents_and_the_effort_of_reasoning_reach_the_template() {
        let (tools, documents) = (json!([{"type": "function"}]), json!([{"text": "a"}]));
        let given = way(json!({"tools": tools, "documents": documents, "reasoning_effort": "low"})).unwrap();
        let wanted =
            json!({"tools": tools, "documents": documents, "enable_thinking": true, "reasoning_effort": "low"});
        assert_eq!(Value::Object(given.variables), wanted);
        let mistyped = way(json!({"reasoning_effort": "nnone"})).unwrap_err();
        assert_eq!(mistyped.param.as_deref(), Some("reasoning_effort"));
        let given = way(json!({"tools": [], "documents": null, "reasoning_effort": "none"})).unwrap();
        let wanted = json!({"enable_thinking": false, "reasoning_effort": "none"});
        assert_eq!(Value::Object(given.variables), wanted);
        let own = json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}});
        assert_eq!(way(own).unwrap().variables["enable_thinking"], false);
        let error = way(json!({"documents": "a"})).unwrap_err();
        assert!(error.message.starts_with("documents: is the string"), "{error}");
    }

    #[test]
    fn a_prompt_ends_where_an_answer_begins_or_where_the_last_message_goes_on() {
        let ends = |fields: Value| way(fields).map(|way| (way.begin_answer, way.goes_on)).ok();
        assert_eq!(ends(json!({})), Some((true, false)));
        assert_eq!(ends(json!({"add_generation_prompt": false})), Some((false, false)));
        let goes_on = |begins: Value| json!({"continue_final_message": true, "add_generation_prompt": begins});
        assert_eq!(ends(goes_on(json!(null))), Some((false, true)));
        assert_eq!(ends(goes_on(json!(false))), Some((false, true)));
        assert_eq!(ends(goes_on(json!(true))), None);
    }

    #[test]
    fn the_last_message_ends_with_its_own_text_and_as_many_spaces_as_the_template_leaves() {
        let written = |said: &str, trims: bool| {
            let mut messages = vec![json!({"role": "assistant", "content": said})];
            let said = mark(&mut messages).unwrap();
            let content = messages[0]["content"].as_str().unwrap();
            let content = if trims { content.trim() } else { content };
            before_mark(format!("<|im_start|>assistant\n{content}<|im_end|>\n"), &said).unwrap()
        };
        for (said, trims, shown) in [
            // "e" is in the end token, too.
            ("e", true, "e"),
            ("a \n", true, "a"),
            ("a \n", false, "a \n"),
            (" a", false, " a"),
            ("", true, ""),
            ("", false, ""),
        ] {
            let wanted = format!("<|im_start|>assistant\n{shown}");
            assert_eq!(written(said, trims), wanted, "{said:?} {trims}");
        }
        assert_eq!(before_mark("a template that shows no assistant".to_owned(), "a"), None);
        assert_eq!(mark(&mut []), None, "what the template refuses");
    }
}
