//! Connections: how many, how slow, and how they end.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use super::eager::Eager;
use super::limits::Limits;

/// A client whose node is lost closes no connection: after so long in silence it is asked for a sign of life, and again, and is gone when it
/// gives [none](PROBES). What it asked for is then given up. As reqwest does at the other end.
const PROBE: Duration = Duration::from_secs(15);
/// See [`PROBE`].
const PROBES: u32 = 3;
/// Wait after an accept that failed, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop` is true. From then on nothing is accepted; requests in flight go on, each connection closes behind
/// its own, and the call returns when all have. Drop it to cut them.
pub async fn serve(listener: TcpListener, router: Router, limits: &Limits, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = room.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = asked_to(&mut stop) => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(stream, router.clone(), limits.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Returns once `stop` is true.
async fn asked_to(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could ask, which is as good.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(stream: TcpStream, router: Router, limits: Limits, mut stop: watch::Receiver<bool>) {
    // Pieces of a stream are small and wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    if let Err(error) = probe(&stream) {
        tracing::debug!("cannot have a silent client probed: {error}");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    let mut served = Eager::new(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = asked_to(&mut stop) => {
            served.inner().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        // A client that breaks the rules or goes is its own affair.
        tracing::debug!("a connection ended: {error}");
    }
}

fn probe(stream: &TcpStream) -> std::io::Result<()> {
    let probing = TcpKeepalive::new()
        .with_time(PROBE)
        .with_interval(PROBE)
        .with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_falls_silent_is_probed_and_given_up_within_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        probe(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        let (first, then) = (
            socket.tcp_keepalive_time().unwrap(),
            socket.tcp_keepalive_interval().unwrap(),
        );
        let given_up = first + then * socket.tcp_keepalive_retries().unwrap();
        assert!(given_up <= Duration::from_secs(60), "{given_up:?}");
    }
}
