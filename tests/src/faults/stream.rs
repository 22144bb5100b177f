//! The events of a watch, disturbed.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::answer::expired;
use super::{Faults, Watch};

/// Events under way.
const BUFFER: usize = 64;

/// What befalls an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disturbance {
    /// It comes later, and with it all that follow.
    Delay(Duration),
    /// Of the events of so long a time each object's last one comes.
    Merge(Duration),
    /// It never comes; after a while the watch ends and has to list again.
    Lose(Duration),
}

/// The lines of `body`, disturbed by `faults`, the first of them after `lag`.
pub(super) fn disturbed(
    body: Body,
    faults: Faults,
    watch: Watch,
    lag: Duration,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let (out, mut seen) = mpsc::channel(BUFFER);
    let (raw_out, raw) = mpsc::channel(BUFFER);
    tokio::spawn(read(body, raw_out));
    tokio::spawn(async move {
        sleep(lag).await;
        pass(raw, faults, watch, out).await;
    });
    stream::poll_fn(move |context| seen.poll_recv(context))
}

/// Splits into lines until either side ends.
async fn read(body: Body, out: mpsc::Sender<Bytes>) {
    let mut chunks = body.into_data_stream();
    let mut line = BytesMut::new();
    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk,
            () = out.closed() => return,
        };
        // The end, or a broken connection: to who watches it is the same.
        let Some(Ok(chunk)) = chunk else { return };
        line.extend_from_slice(&chunk);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let whole = line.split_to(end + 1).freeze();
            if out.send(whole).await.is_err() {
                return;
            }
        }
    }
}

async fn pass(mut raw: mpsc::Receiver<Bytes>, faults: Faults, watch: Watch, out: mpsc::Sender<Bytes>) {
    loop {
        let line = tokio::select! {
            line = raw.recv() => line,
            () = out.closed() => return,
        };
        let Some(line) = line else { return };
        let lines = match faults.befalls_event(&watch) {
            None => vec![line],
            Some(Disturbance::Delay(pause)) => {
                sleep(pause).await;
                vec![line]
            }
            Some(Disturbance::Merge(window)) => newest(line, &mut raw, window).await,
            Some(Disturbance::Lose(pause)) => {
                sleep(pause).await;
                // Who watches may be gone.
                let _ = out.send(expired()).await;
                return;
            }
        };
        for line in lines {
            if out.send(line).await.is_err() {
                return;
            }
        }
    }
}

/// Each object's last event of those that come within `window`.
async fn newest(first: Bytes, raw: &mut mpsc::Receiver<Bytes>, window: Duration) -> Vec<Bytes> {
    let end = Instant::now() + window;
    let mut kept = vec![(uid(&first), first)];
    while let Ok(Some(line)) = timeout_at(end, raw.recv()).await {
        let of = uid(&line);
        kept.retain(|(known, _)| *known != of);
        kept.push((of, line));
    }
    kept.into_iter().map(|(_, line)| line).collect()
}

fn uid(line: &[u8]) -> Option<String> {
    let event: Value = serde_json::from_slice(line).ok()?;
    Some(event["object"]["metadata"]["uid"].as_str()?.to_owned())
}
