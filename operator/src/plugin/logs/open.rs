//! Opens the log of one container.

use std::io;

use futures::stream::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Error;
use kube::api::{Api, LogParams};
use tokio::time::timeout;

use super::since::Since;
use crate::plugin::cli::LogsArgs;
use crate::plugin::connection::Connection;
use crate::plugin::merge::{Line, lines};
use crate::plugin::refusal::Request;

/// Why a log does not open.
#[derive(Debug)]
pub struct Refusal {
    /// The API server's status; None: it did not answer.
    pub code: Option<u16>,
    /// The same in words.
    pub error: anyhow::Error,
}

impl Refusal {
    /// Whether there is no such log, now or at all: the container has not started, or its pod is gone.
    pub fn is_of_no_log(&self) -> bool {
        matches!(self.code, Some(400 | 404))
    }

    /// Whether every log is refused so.
    pub fn is_of_all(&self) -> bool {
        matches!(self.code, Some(401 | 403))
    }
}

/// The log of a container of the pod `name`, from the end of an earlier reading on where there is one. A connection that breaks is
/// its last item.
pub async fn open(
    connection: &Connection,
    args: &LogsArgs,
    name: &str,
    container: &str,
    after: Option<Timestamp>,
) -> Result<impl Stream<Item = io::Result<Line>> + use<>, Refusal> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let parameters = LogParams {
        container: Some(container.into()),
        follow: args.follow,
        previous: args.previous,
        // The API takes whole seconds, and kube rounds to the nearest one, which may lie ahead.
        since_time: after
            .or(args.since_time)
            .and_then(|from| Timestamp::from_second(from.as_second()).ok()),
        since_seconds: args.since.filter(|_| after.is_none()).map(Since::seconds),
        // -1 are all of them, for which the API has no number.
        tail_lines: args.tail.filter(|tail| *tail >= 0 && after.is_none()),
        timestamps: true,
        ..LogParams::default()
    };
    let log = match timeout(connection.answer, api.log_stream(name, &parameters)).await {
        Ok(Ok(log)) => log,
        Ok(Err(error)) => return Err(refused(connection, error)),
        Err(_) => {
            let error = anyhow::anyhow!("the kubelet did not answer in {} s", connection.answer.as_secs_f64());
            return Err(Refusal { code: None, error });
        }
    };
    // Lines of the last second come again.
    let is_new = move |line: &io::Result<Line>| match line {
        Ok(line) => after.is_none() || line.time > after,
        Err(_) => true,
    };
    Ok(lines(Box::pin(log)).filter(move |line| std::future::ready(is_new(line))))
}

fn refused(connection: &Connection, error: Error) -> Refusal {
    let code = match &error {
        Error::Api(status) => Some(status.code),
        _ => None,
    };
    let error = match error {
        // The kubelet's own words: `container "worker" in pod "a-actor-0" is waiting to start: ContainerCreating`.
        Error::Api(status) if status.code == 400 => anyhow::anyhow!("{}", status.message),
        error => Request {
            verb: "get",
            resource: "pods/log",
            namespace: &connection.namespace,
            url: &connection.url,
        }
        .refused(error),
    };
    Refusal { code, error }
}
