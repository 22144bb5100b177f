//! Requests under way by the names that their clients gave: vLLM knows each prompt, and here each sample, by a name of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::{Request, State};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use super::asked::{Fields, read};
use super::service::Service;
use crate::serving::body;
use crate::serving::error::ApiError;

/// A client's name of a request, and vLLM's names of its parts.
type Named = (String, Vec<String>);

/// The named requests that vLLM has.
#[derive(Debug, Default)]
pub struct Names {
    next: AtomicU64,
    all: Arc<Mutex<HashMap<u64, Named>>>,
}

/// A request's entry, which ends with it.
#[derive(Debug)]
pub struct Noted {
    number: u64,
    all: Arc<Mutex<HashMap<u64, Named>>>,
}

impl Names {
    /// Notes that vLLM has the request `name` as `parts`.
    pub fn note(&self, name: &str, parts: Vec<String>) -> Noted {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().insert(number, (name.to_owned(), parts));
        Noted {
            number,
            all: self.all.clone(),
        }
    }

    /// vLLM's names of the requests `name`, which may carry the prefix that answers have; another name is taken for vLLM's own.
    fn parts(&self, name: &str) -> Vec<String> {
        let plain = name.strip_prefix("cmpl-").or_else(|| name.strip_prefix("chatcmpl-"));
        let all = self.all.lock();
        let meant = all
            .values()
            .filter(|(given, _)| given == name || Some(given.as_str()) == plain);
        let parts: Vec<String> = meant.flat_map(|(_, parts)| parts.clone()).collect();
        match parts.is_empty() {
            true => vec![name.to_owned()],
            false => parts,
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

/// `/abort_requests`; without names vLLM ends all.
///
/// # Errors
/// 400 when `request_ids` is no list of names; what vLLM says.
pub async fn abort_requests(State(service): State<Service>, request: Request) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let asked: Fields = body::json(&service.bodies, request).await?;
    let given: Option<Vec<String>> = read(&asked, "request_ids")?;
    let parts = given.iter().flatten().flat_map(|name| service.names.parts(name));
    let body = json!({"request_ids": parts.collect::<Vec<_>>()});
    let call = service.vllm.request(Method::POST, "/abort_requests").json(&body);
    service.vllm.json(call, service.limits.request_timeout).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_aborted_by_its_clients_name_as_long_as_it_is_under_way() {
        let names = Names::default();
        let parts = |parts: &[&str]| -> Vec<String> { parts.iter().map(|&part| part.to_owned()).collect() };
        let noted = names.note("r-1", parts(&["cmpl-r-1-0-0", "cmpl-r-1-1-0"]));
        let again = names.note("r-1", parts(&["chatcmpl-r-1"]));
        for name in ["r-1", "cmpl-r-1", "chatcmpl-r-1"] {
            assert_eq!(names.parts(name).len(), 3, "{name}");
        }
        assert_eq!(names.parts("cmpl-r-1-0-0"), ["cmpl-r-1-0-0"]);
        drop(again);
        assert_eq!(names.parts("r-1"), ["cmpl-r-1-0-0", "cmpl-r-1-1-0"]);
        drop(noted);
        assert_eq!(names.parts("r-1"), ["r-1"], "never an empty list, which means all");
    }
}
