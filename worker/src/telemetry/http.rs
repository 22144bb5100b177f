//! `/metrics`, `/healthz`, `/readyz` and `/report` over HTTP, on threads of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router, middleware};
use tokio::sync::watch;

use super::{Exposition, Live, probes};
use crate::serving::auth::{Door, authorize};
use crate::serving::error::ApiError;
use crate::serving::{Limits, listen};

/// How long open requests may take to end once the server is told to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// Threads that answer.
const THREADS: usize = 2;

/// A running server. It stops when dropped.
pub struct Server {
    address: SocketAddr,
    stop: Option<watch::Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one. Without `live` there is no `/report`; `beside` answers at paths of its
    /// own.
    ///
    /// # Errors
    /// When the port is taken or may not be used, naming it.
    pub fn start(
        address: SocketAddr,
        exposition: Arc<Exposition>,
        live: Option<Arc<Live>>,
        beside: Router,
    ) -> Result<Server> {
        let refused = || {
            format!(
                "cannot serve metrics on {address}; give another port with --metrics-addr, or stop what holds port {}",
                address.port()
            )
        };
        let listener = TcpListener::bind(address).with_context(refused)?;
        listener.set_nonblocking(true).with_context(refused)?;
        let address = listener.local_addr().with_context(refused)?;
        // Engines take whole models from what answers beside, and probes wait for none of them.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("metrics-server")
            .enable_all()
            .build()
            .context("cannot start the metrics server's runtime")?;
        let (stop, stopped) = watch::channel(false);
        let router = router(exposition, live, address).merge(beside);
        let serve = move || {
            runtime.block_on(async move {
                if let Err(error) = serve(listener, router, stopped).await {
                    tracing::error!("the metrics server on {address} ended: {error:#}");
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("metrics-server".into())
            .spawn(serve)
            .context("cannot start the metrics server's thread")?;
        Ok(Server {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets open requests end, within two seconds, and frees the port.
    ///
    /// # Errors
    /// When the server's thread died.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread
            .join()
            .map_err(|_| anyhow!("the metrics server on {} died", self.address))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{error:#}");
        }
    }
}

async fn serve(listener: TcpListener, router: Router, mut stopped: watch::Receiver<bool>) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let limits = Limits::default();
    let serving = listen::serve(listener, router, &limits, stopped.clone());
    let deadline = async {
        // Told or dropped, both mean stop.
        let _ = stopped.wait_for(|stop| *stop).await;
        tokio::time::sleep(STOP_DEADLINE).await;
    };
    tokio::select! {
        () = serving => {}
        () = deadline => {}
    }
    Ok(())
}

/// What answers at `address`. There is no token, so from loopback no web page gets an answer.
fn router(exposition: Arc<Exposition>, live: Option<Arc<Live>>, address: SocketAddr) -> Router {
    let report = match live {
        Some(live) => get(move || async move { Json(live.report()) }),
        None => get(|| async { (StatusCode::NOT_FOUND, "this process trains nothing\n") }),
    };
    let shown = exposition.clone();
    let ready = move || match shown.is_ready() {
        true => Ok(()),
        false => Err(ApiError::unavailable("models are still loading")),
    };
    let door = Door::new(None, true).at(address.ip());
    probes(exposition, ready)
        .route("/report", report)
        .layer(middleware::from_fn_with_state(door, authorize))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;
    use crate::telemetry::StepReport;

    fn server() -> (Server, Arc<Exposition>, Arc<Live>) {
        let exposition = Arc::new(Exposition::new("run").unwrap());
        let live = Arc::new(Live::new("run", 2));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(address, Arc::clone(&exposition), Some(live.clone()), Router::new()).unwrap();
        (server, exposition, live)
    }

    fn get(server: &Server, path: &str) -> String {
        get_from(server, path, "localhost")
    }

    fn get_from(server: &Server, path: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_path_answers_as_its_name_says() {
        let (server, exposition, live) = server();
        assert!(get(&server, "/healthz").starts_with("HTTP/1.1 200"));
        assert!(get(&server, "/readyz").starts_with("HTTP/1.1 503"));
        assert!(get(&server, "/report").contains(r#""stage":"initialize""#));
        exposition.set_ready(true);
        let step = StepReport {
            step: 3,
            total_steps: 9,
            ..StepReport::default()
        };
        exposition.step(&step).unwrap();
        live.step(&step, None);
        assert!(get(&server, "/readyz").starts_with("HTTP/1.1 200"));
        assert!(get(&server, "/metrics").contains("\nppo_step 3\n"));
        let answer = get(&server, "/report");
        let report: ppo_crds::report::Report = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((report.progress.step, report.progress.total, report.attempt), (3, 9, 2));
    }

    #[test]
    fn no_web_page_whose_name_was_made_to_point_here_reads_a_run() {
        let (server, ..) = server();
        for path in ["/metrics", "/report", "/healthz"] {
            let answer = get_from(&server, path, "evil.example:9400");
            assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
            let answer = get_from(&server, path, "127.0.0.1:9400");
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
    }

    #[test]
    fn a_busy_port_is_an_error_that_names_it() {
        let (server, exposition, _) = server();
        let port = server.address().port().to_string();
        let error = format!(
            "{:#}",
            Server::start(server.address(), exposition, None, Router::new())
                .err()
                .unwrap()
        );
        assert!(error.contains(&port) && error.contains("in use"), "{error}");
    }

    #[test]
    fn a_stopped_server_frees_its_port() {
        let (server, exposition, _) = server();
        let address = server.address();
        // An idle keep-alive connection must not hold it up.
        let _idle = TcpStream::connect(address).unwrap();
        server.stop().unwrap();
        Server::start(address, exposition, None, Router::new())
            .unwrap()
            .stop()
            .unwrap();
    }
}
