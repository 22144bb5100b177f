//! Requests under way by the names that their clients gave: vLLM knows each prompt, and here each sample, by a name of its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::{Request, State};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::asked::{Fields, read};
use super::service::Service;
use crate::serving::body;
use crate::serving::error::ApiError;

/// The requests under way, those that wait for vLLM too.
#[derive(Debug, Default)]
pub struct Names {
    next: AtomicU64,
    all: Arc<Mutex<HashMap<u64, UnderWay>>>,
}

/// A request.
#[derive(Debug)]
struct UnderWay {
    /// That its client gave it.
    name: Option<String>,
    /// vLLM's names of its parts, where it has a name.
    parts: Vec<String>,
    /// Whether vLLM may have it: until then it waits for new weights.
    is_at_vllm: bool,
    aborted: watch::Sender<Aborted>,
}

/// What of a request is not to be asked any more.
#[derive(Debug, Default)]
struct Aborted {
    whole: bool,
    parts: HashSet<usize>,
}

/// A request's entry, which ends with it.
#[derive(Debug)]
pub struct Noted {
    number: u64,
    all: Arc<Mutex<HashMap<u64, UnderWay>>>,
    aborted: watch::Receiver<Aborted>,
}

impl Names {
    /// Notes a request, which vLLM will have as `parts`.
    pub fn note(&self, name: Option<&str>, parts: Vec<String>) -> Noted {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, aborted) = watch::channel(Aborted::default());
        let request = UnderWay {
            name: name.map(str::to_owned),
            parts,
            is_at_vllm: false,
            aborted: sender,
        };
        self.all.lock().insert(number, request);
        Noted {
            number,
            all: self.all.clone(),
            aborted,
        }
    }

    /// Requests that vLLM has.
    pub fn at_vllm(&self) -> usize {
        self.all.lock().values().filter(|request| request.is_at_vllm).count()
    }

    /// Aborts what waits of the requests of these names, or of all where there is none. What vLLM has of them, by its own names; one that is
    /// no request's here is taken for vLLM's own.
    fn abort(&self, names: &[String]) -> Vec<String> {
        let all = self.all.lock();
        if names.is_empty() {
            all.values().for_each(UnderWay::abort);
            return Vec::new();
        }
        let given: HashSet<&str> = names.iter().map(String::as_str).collect();
        let (mut others, mut told) = (given.clone(), Vec::new());
        for request in all.values() {
            let known: Vec<String> = request.names().collect();
            if known.iter().any(|name| given.contains(name.as_str())) {
                request.abort();
                told.extend(request.parts.iter().cloned());
                // An empty list would mean all.
                if !request.parts.is_empty() {
                    others.retain(|other| known.iter().all(|name| name != other));
                }
                continue;
            }
            let parts = (0..).zip(&request.parts);
            let meant = parts.filter(|(_, part)| given.contains(part.as_str()));
            let meant: Vec<usize> = meant.map(|(index, _)| index).collect();
            request.aborted.send_modify(|aborted| aborted.parts.extend(meant));
        }
        told.extend(others.into_iter().map(str::to_owned));
        told
    }
}

impl UnderWay {
    fn abort(&self) {
        self.aborted.send_modify(|aborted| aborted.whole = true);
    }

    /// Its name, also with the prefixes that answers have.
    fn names(&self) -> impl Iterator<Item = String> {
        let named = |name: &String| [name.clone(), format!("cmpl-{name}"), format!("chatcmpl-{name}")];
        self.name.iter().flat_map(named)
    }
}

impl Noted {
    /// It waits no longer: vLLM is asked.
    pub fn goes_to_vllm(&self) {
        self.set_at_vllm(true);
    }

    /// Whether vLLM is what it waits for.
    pub fn set_at_vllm(&self, is_at_vllm: bool) {
        if let Some(request) = self.all.lock().get_mut(&self.number) {
            request.is_at_vllm = is_at_vllm;
        }
    }

    /// What it waits for, which `what` names, unless it is aborted before.
    ///
    /// # Errors
    /// 503 when it is aborted; those of what it waits for.
    pub async fn unless_aborted<T>(
        &self,
        what: &str,
        awaited: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            () = self.aborted(None) => {
                let words = format!("the request was aborted while it waited for {what}");
                Err(ApiError::unavailable(words))
            }
            came = awaited => came,
        }
    }

    /// Waits until the request is aborted, or this part of it.
    pub async fn aborted(&self, part: Option<usize>) {
        let is_meant = |aborted: &Aborted| aborted.whole || part.is_some_and(|part| aborted.parts.contains(&part));
        // It is an error only without a sender, which lives as long as this.
        drop(self.aborted.clone().wait_for(is_meant).await);
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

/// `/abort_requests`; without names all are meant, as in vLLM.
///
/// # Errors
/// 400 when `request_ids` is no list of names; what vLLM says.
pub async fn abort_requests(State(service): State<Service>, request: Request) -> Result<Json<Value>, ApiError> {
    service.model()?;
    let asked: Fields = body::json(&service.bodies, request).await?;
    let given: Option<Vec<String>> = read(&asked, "request_ids")?;
    let body = json!({"request_ids": service.names.abort(given.as_deref().unwrap_or_default())});
    let call = service.vllm.request(Method::POST, "/abort_requests").json(&body);
    service.vllm.json(call, service.limits.request_timeout).await.map(Json)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_request_is_aborted_by_its_clients_name_as_long_as_it_is_under_way() {
        let names = Names::default();
        let noted = names.note(Some("r-1"), owned(&["cmpl-r-1-0-0", "cmpl-r-1-1-0"]));
        let again = names.note(Some("r-1"), owned(&["chatcmpl-r-1"]));
        for name in ["r-1", "cmpl-r-1", "chatcmpl-r-1"] {
            assert_eq!(names.abort(&owned(&[name])).len(), 3, "{name}");
        }
        assert_eq!(names.abort(&owned(&["cmpl-r-1-0-0"])), ["cmpl-r-1-0-0"]);
        drop(again);
        assert_eq!(names.abort(&owned(&["r-1"])), ["cmpl-r-1-0-0", "cmpl-r-1-1-0"]);
        drop(noted);
        assert_eq!(
            names.abort(&owned(&["r-1"])),
            ["r-1"],
            "never an empty list, which means all"
        );
    }

    #[tokio::test]
    async fn what_waits_of_a_request_is_aborted_with_it_or_by_the_name_of_a_part_and_without_names_all_are() {
        let names = Names::default();
        let is_aborted = |noted: &Noted, part| noted.aborted(part).now_or_never().is_some();
        let named = names.note(Some("r"), owned(&["cmpl-r-0-0", "cmpl-r-1-0"]));
        let nameless = names.note(None, Vec::new());
        names.abort(&owned(&["cmpl-r-1-0"]));
        assert!(is_aborted(&named, Some(1)) && !is_aborted(&named, Some(0)) && !is_aborted(&named, None));
        names.abort(&owned(&["r"]));
        assert!(is_aborted(&named, Some(0)) && is_aborted(&named, None));
        assert!(!is_aborted(&nameless, None));
        assert!(names.abort(&[]).is_empty());
        assert!(is_aborted(&nameless, None));
    }
}
