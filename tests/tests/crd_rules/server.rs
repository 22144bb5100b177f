//! The API server's opinion of a manifest, asked for by dry runs: nothing is stored.

use futures::StreamExt as _;
use futures::stream;
use http::Request;
use kube::Client;
use kube::core::response::StatusCause;
use ppo_tests::Namespace;
use serde_json::Value;

/// Requests under way at once.
const AT_ONCE: usize = 32;

/// Why a manifest is refused: field by field.
#[derive(Debug)]
pub struct Refusal {
    pub message: String,
    pub causes: Vec<StatusCause>,
}

impl Refusal {
    /// Whether the field is refused, for a reason with these words.
    pub fn names(&self, field: &str, words: &str) -> bool {
        let of = |cause: &&StatusCause| cause.field.replace("[0]", "[]") == field;
        self.causes.iter().filter(of).any(|cause| cause.message.contains(words))
    }
}

/// As kubectl asks: unknown fields are errors. The accepted object has its defaults.
pub async fn create(namespace: &Namespace<'_>, manifest: &Value) -> Result<Value, Refusal> {
    ask(&namespace.client, &namespace.name, manifest).await
}

/// Many at once, answered in order.
pub async fn create_all(namespace: &Namespace<'_>, manifests: Vec<Value>) -> Vec<Result<Value, Refusal>> {
    let asked = manifests
        .into_iter()
        .map(|manifest| async move { create(namespace, &manifest).await });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}

async fn ask(client: &Client, namespace: &str, manifest: &Value) -> Result<Value, Refusal> {
    let path = format!("/apis/ppojob.dev/v1alpha1/namespaces/{namespace}/ppojobs?dryRun=All&fieldValidation=Strict");
    let request = Request::post(path).header("Content-Type", "application/json");
    let request = request.body(serde_json::to_vec(manifest).unwrap()).unwrap();
    client.request::<Value>(request).await.map_err(refusal)
}

/// What the API server said; anything else, such as a lost connection, is no opinion.
pub fn refusal(error: kube::Error) -> Refusal {
    let kube::Error::Api(status) = error else {
        panic!("the API server did not answer: {error}");
    };
    assert!([400, 422].contains(&status.code), "{status:?}");
    Refusal {
        message: status.message,
        causes: status.details.map(|details| details.causes).unwrap_or_default(),
    }
}
