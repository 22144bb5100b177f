//! Answers to lists, kept to be given again: what a process sees that starts from an API server whose cache lags.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use kube::Client;
use kube::client::Body;

/// A list that processes ask for.
#[derive(Clone)]
pub(super) struct List {
    uri: Uri,
    headers: HeaderMap,
}

impl List {
    /// None for anything else: a watch, or an object by name. Lists of objects carry a limit.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        let query = request.uri().query().unwrap_or_default();
        let lists = request.method() == http::Method::GET && query.contains("limit=") && !query.contains("watch=");
        lists.then(|| Self {
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    /// What the API server says now.
    pub async fn ask(&self, client: &Client) -> anyhow::Result<Bytes> {
        let mut request = Request::get(self.uri.clone()).body(Body::empty())?;
        *request.headers_mut() = self.headers.clone();
        let answer = client.send(request).await?;
        anyhow::ensure!(answer.status().is_success(), "{}: {}", self.uri, answer.status());
        Ok(answer.into_body().collect_bytes().await?)
    }
}

#[derive(Default)]
pub(super) struct Past {
    lists: BTreeMap<String, List>,
    answers: BTreeMap<String, Bytes>,
    replayed: BTreeSet<(usize, String)>,
    lags: u32,
}

impl Past {
    pub fn lists(&self) -> Vec<List> {
        self.lists.values().cloned().collect()
    }

    pub fn note(&mut self, list: &List) {
        self.lists.insert(list.uri.to_string(), list.clone());
    }

    pub fn keep(&mut self, list: &List, answer: Bytes) {
        self.answers.insert(list.uri.to_string(), answer);
    }

    /// The old answer, once for every process: when it lists again it has caught up.
    pub fn replay(&mut self, process: usize, list: &List) -> Option<Bytes> {
        let uri = list.uri.to_string();
        let answer = self.answers.get(&uri)?.clone();
        self.replayed.insert((process, uri)).then_some(answer)
    }

    pub fn next_lag(&mut self) -> Duration {
        self.lags = (self.lags + 7) % 11;
        Duration::from_millis(60) * self.lags
    }
}
