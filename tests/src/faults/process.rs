//! The service between one process and the API server.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body as RequestBody;
use tokio::sync::watch;
use tower_service::Service;

use super::answer::{Body, Failure, refusal, streamed, whole};
use super::past::List;
use super::{Fault, Faults, Moment, stream};

/// One process's way to the API server. Once a fault has killed it nothing passes.
#[derive(Clone)]
pub struct Process {
    faults: Faults,
    server: Client,
    number: usize,
    dead: watch::Sender<bool>,
}

impl Faults {
    /// The way of a new process.
    pub fn process(&self, server: &Client) -> Process {
        let mut state = self.0.lock();
        state.processes += 1;
        Process {
            faults: self.clone(),
            server: server.clone(),
            number: state.processes,
            dead: watch::Sender::new(false),
        }
    }
}

impl Process {
    /// A client that goes this way.
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Waits until a fault has killed it.
    pub async fn killed(&self) {
        // Cannot fail: we hold the sender.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    async fn answer(self, request: Request<RequestBody>) -> Result<Response<Body>, Failure> {
        if self.is_dead() {
            return pending().await;
        }
        let answer = if is_counted_write(&request) {
            self.write(request).await
        } else if is_watch(&request) {
            self.watch(request).await
        } else {
            self.read(request).await
        };
        // What was under way when the process died arrives nowhere.
        if self.is_dead() {
            return pending().await;
        }
        answer
    }

    async fn write(&self, request: Request<RequestBody>) -> Result<Response<Body>, Failure> {
        let fault = self
            .faults
            .befalls(format!("{} {}", request.method(), request.uri().path()));
        match fault {
            None => self.pass(request).await,
            Some(Fault::Refuse(code)) => refusal(code),
            Some(Fault::LoseAnswer) => {
                self.pass(request).await?;
                Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is lost").into())
            }
            Some(Fault::SwallowAnswer) => {
                self.pass(request).await?;
                pending().await
            }
            Some(Fault::Kill(Moment::Before)) => {
                self.dead.send_replace(true);
                pending().await
            }
            Some(Fault::Kill(Moment::After)) => {
                let done = self.pass(request).await;
                self.dead.send_replace(true);
                done
            }
        }
    }

    async fn read(&self, request: Request<RequestBody>) -> Result<Response<Body>, Failure> {
        let Some(list) = List::of(&request) else {
            return self.pass(request).await;
        };
        let old = {
            let mut state = self.faults.0.lock();
            state.past.note(&list);
            let stale = state.stale_restarts && self.number > 1;
            stale.then(|| state.past.replay(self.number, &list)).flatten()
        };
        match old {
            Some(old) => Ok(Response::builder()
                .header("content-type", "application/json")
                .body(whole(old))?),
            None => self.pass(request).await,
        }
    }

    async fn watch(&self, request: Request<RequestBody>) -> Result<Response<Body>, Failure> {
        let watch = (self.number, request.uri().path().to_owned());
        let answer = self.server.send(request).await?;
        let lag = self.faults.lag(self.number);
        let faults = self.faults.clone();
        Ok(answer.map(|body| streamed(stream::disturbed(body, faults, watch, lag))))
    }

    /// The whole answer: a write is not over before.
    async fn pass(&self, request: Request<RequestBody>) -> Result<Response<Body>, Failure> {
        let (head, body) = self.server.send(request).await?.into_parts();
        Ok(Response::from_parts(head, whole(body.collect_bytes().await?)))
    }
}

impl Service<Request<RequestBody>> for Process {
    type Response = Response<Body>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

fn is_counted_write<B>(request: &Request<B>) -> bool {
    let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(request.method());
    let counted = !request
        .uri()
        .path()
        .split('/')
        .any(|part| part == "events" || part == "leases");
    writes && counted
}

fn is_watch<B>(request: &Request<B>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch="))
}
