//! Writes whose answer nobody reads: decoding the object that comes back would cost as much as sending it.

use axum::http::Request as HttpRequest;
use kube::Client;
use kube::Resource;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::core::request::Error as Unsendable;
use ppo_crds::PpoJob;
use serde::{Deserialize, Serialize};

use crate::world::Kind;

/// An answer that was not an error; its fields are passed over.
#[derive(Deserialize)]
struct Taken {}

/// Objects of a kind in one namespace.
pub struct Writer<'a> {
    client: &'a Client,
    requests: Request,
}

impl<'a> Writer<'a> {
    /// Writes objects of `kind` in `namespace`.
    pub fn of(client: &'a Client, kind: Kind, namespace: &str) -> Self {
        let path = DynamicObject::url_path(&kind.resource(), Some(namespace));
        Self {
            client,
            requests: Request::new(path),
        }
    }

    /// Writes PpoJobs.
    pub fn of_jobs(client: &'a Client, namespace: &str) -> Self {
        Self {
            client,
            requests: Request::new(PpoJob::url_path(&(), Some(namespace))),
        }
    }

    /// Makes an object.
    pub async fn create(&self, params: &PostParams, object: &DynamicObject) -> kube::Result<()> {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        self.send(self.requests.create(params, body)).await
    }

    /// Changes an object.
    pub async fn patch<P: Serialize + std::fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<()> {
        self.send(self.requests.patch(name, params, patch)).await
    }

    /// Changes an object's status.
    pub async fn patch_status<P: Serialize + std::fmt::Debug>(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<()> {
        self.send(self.requests.patch_subresource("status", name, params, patch))
            .await
    }

    async fn send(&self, request: Result<HttpRequest<Vec<u8>>, Unsendable>) -> kube::Result<()> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request::<Taken>(request).await.map(drop)
    }
}
