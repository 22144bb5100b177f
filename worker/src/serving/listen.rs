//! Connections: how many, how slow, and how they end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
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
/// its own, and the call returns when all have. Drop it to cut them. Before that, when all connections are taken, the oldest that has sent no
/// request makes room for one that comes: idle ones would keep everybody out, probes too.
pub async fn serve(listener: TcpListener, router: Router, limits: &Limits, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let (mut connections, mut silent) = (JoinSet::new(), Silent::default());
    loop {
        let accepted = tokio::select! {
            () = asked_to(&mut stop) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                if room.available_permits() == 0 {
                    silent.cut_oldest();
                }
                let permit = tokio::select! {
                    () = asked_to(&mut stop) => break,
                    permit = room.clone().acquire_owned() => permit,
                };
                let client = silent.add();
                let connection = connection(stream, router.clone(), limits.clone(), client, stop.clone());
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

/// The client of a connection.
#[derive(Default)]
struct Client {
    /// It has sent a request, or is cut.
    is_heard: AtomicBool,
    cut: Notify,
}

/// Clients that have sent no request, the oldest first, and some that have or are gone.
#[derive(Default)]
struct Silent(VecDeque<Weak<Client>>);

impl Silent {
    fn add(&mut self) -> Arc<Client> {
        let is_heard = |client: Arc<Client>| client.is_heard.load(Ordering::Relaxed);
        while self
            .0
            .front()
            .is_some_and(|oldest| oldest.upgrade().is_none_or(is_heard))
        {
            self.0.pop_front();
        }
        let client = Arc::<Client>::default();
        self.0.push_back(Arc::downgrade(&client));
        client
    }

    /// Closes the connection of the oldest one, if there is one.
    fn cut_oldest(&mut self) {
        while let Some(oldest) = self.0.pop_front() {
            if let Some(client) = oldest.upgrade()
                && !client.is_heard.swap(true, Ordering::Relaxed)
            {
                return client.cut.notify_one();
            }
        }
    }
}

/// Notes that a client has sent a request.
struct Hearing<S> {
    client: Arc<Client>,
    service: S,
}

impl<S: Service<R>, R> Service<R> for Hearing<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: R) -> S::Future {
        self.client.is_heard.store(true, Ordering::Relaxed);
        self.service.call(request)
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    client: Arc<Client>,
    mut stop: watch::Receiver<bool>,
) {
    // Pieces of a stream are small and wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    if let Err(error) = probe(&stream) {
        tracing::debug!("cannot have a silent client probed: {error}");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let service = Hearing {
        client: client.clone(),
        service: TowerToHyperService::new(router),
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut served = Eager::new(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = client.cut.notified() => return tracing::debug!("a connection without a request made room for another"),
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
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(client: &mut TcpStream) {
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(client.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }

    #[tokio::test]
    async fn when_all_connections_are_taken_the_oldest_that_has_sent_no_request_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(|| async {}));
        let limits = Limits {
            connections: 3,
            header_timeout: Duration::from_secs(600),
            ..Limits::default()
        };
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(async move { serve(listener, router, &limits, stopped).await });
        let clients = async {
            let mut heard = TcpStream::connect(address).await.unwrap();
            ask(&mut heard).await;
            let mut oldest = TcpStream::connect(address).await.unwrap();
            let mut second = TcpStream::connect(address).await.unwrap();
            ask(&mut TcpStream::connect(address).await.unwrap()).await;
            assert_eq!(oldest.read(&mut [0]).await.unwrap(), 0, "it is closed");
            ask(&mut second).await;
            ask(&mut heard).await;
        };
        tokio::time::timeout(Duration::from_secs(60), clients).await.unwrap();
    }

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
