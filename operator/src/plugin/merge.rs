//! Merges the logs of several pods into one, in the order in which the lines were written.

use std::io;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use futures::stream::{self, Stream, StreamExt as _};
use k8s_openapi::jiff::Timestamp;

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When the container runtime received it; lines without a time have that of the line before.
    pub time: Option<Timestamp>,
    /// What was written.
    pub text: String,
}

impl Line {
    /// Splits the time off, which the kubelet puts before each line when asked for `timestamps`.
    pub fn parse(line: &str) -> Self {
        let stamped = line.split_once(' ').unwrap_or((line, ""));
        match stamped.0.parse() {
            Ok(time) => Self {
                time: Some(time),
                text: stamped.1.into(),
            },
            Err(_) => Self {
                time: None,
                text: line.into(),
            },
        }
    }
}

/// The lines of a log, whatever bytes they hold.
pub fn lines(log: impl AsyncBufRead + Unpin) -> impl Stream<Item = io::Result<Line>> {
    stream::try_unfold(log, |mut log| async {
        let mut bytes = Vec::new();
        if log.read_until(b'\n', &mut bytes).await? == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&bytes);
        Ok(Some((Line::parse(text.trim_end_matches(['\n', '\r'])), log)))
    })
}

/// Lines of several logs by time, each with the position of its log. Keeps one line of each log in memory. A log that breaks off says so
/// once, and the others go on.
pub fn by_time<S>(logs: Vec<S>) -> impl Stream<Item = (usize, io::Result<Line>)>
where
    S: Stream<Item = io::Result<Line>> + Unpin,
{
    let heads: Vec<Option<Line>> = logs.iter().map(|_| None).collect();
    let state = (logs.into_iter().map(Some).collect::<Vec<_>>(), heads);
    stream::unfold(state, |(mut logs, mut heads)| async {
        let mut broken = None;
        for (index, (log, head)) in logs.iter_mut().zip(&mut heads).enumerate() {
            if head.is_some() {
                continue;
            }
            let next = match log {
                Some(open) => open.next().await,
                None => None,
            };
            match next {
                Some(Ok(line)) => *head = Some(line),
                Some(Err(error)) => {
                    *log = None;
                    broken = Some((index, Err(error)));
                    break;
                }
                None => *log = None,
            }
        }
        if let Some(broken) = broken {
            return Some((broken, (logs, heads)));
        }
        let known = heads
            .iter()
            .enumerate()
            .filter_map(|(index, head)| Some((index, head.as_ref()?.time)));
        let (index, _) = known.min_by_key(|(_, time)| *time)?;
        let line = heads[index].take()?;
        Some(((index, Ok(line)), (logs, heads)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(text: &'static str) -> impl Stream<Item = io::Result<Line>> + Unpin {
        Box::pin(lines(text.as_bytes()))
    }

    #[tokio::test]
    async fn lines_of_several_pods_come_in_the_order_in_which_they_were_written() {
        let first = log("2026-01-01T00:00:01.500000000Z a1\n2026-01-01T00:00:03.000000000Z a2\n");
        let second = log("2026-01-01T00:00:02.000000000Z b1\n2026-01-01T01:00:02.500000000+01:00 b2");
        let merged: Vec<String> = by_time(vec![first, second])
            .map(|(pod, line)| format!("{pod}{}", line.unwrap().text))
            .collect()
            .await;
        assert_eq!(merged, ["0a1", "1b1", "1b2", "0a2"]);
    }

    #[tokio::test]
    async fn a_line_without_a_time_stays_behind_the_one_before_it() {
        let first = log("2026-01-01T00:00:02Z a1\n  at line 3\n");
        let second = log("2026-01-01T00:00:01Z b1\n");
        let merged: Vec<usize> = by_time(vec![first, second]).map(|(pod, _)| pod).collect().await;
        assert_eq!(merged, [1, 0, 0]);
    }

    #[tokio::test]
    async fn a_log_that_breaks_off_says_so_once_and_the_others_go_on() {
        let line = |text: &str| Ok(Line::parse(text));
        let broken = stream::iter(vec![
            line("2026-01-01T00:00:01Z a1"),
            Err(io::Error::other("reset")),
            line("2026-01-01T00:00:02Z never read"),
        ]);
        let whole = stream::iter(vec![line("2026-01-01T00:00:02Z b1"), line("2026-01-01T00:00:03Z b2")]);
        let merged: Vec<String> = by_time(vec![broken, whole])
            .map(|(pod, line)| {
                format!(
                    "{pod} {}",
                    line.map_or_else(|error| error.to_string(), |line| line.text)
                )
            })
            .collect()
            .await;
        assert_eq!(merged, ["0 a1", "0 reset", "1 b1", "1 b2"]);
    }

    #[tokio::test]
    async fn bytes_that_are_not_text_and_empty_logs_do_no_harm() {
        let strange: &[u8] = b"2026-01-01T00:00:01Z \xff\xfe\r\n";
        let found: Vec<Line> = lines(strange).filter_map(|line| async { line.ok() }).collect().await;
        assert_eq!(found[0].text, "\u{fffd}\u{fffd}");
        assert_eq!(by_time(vec![log("")]).count().await, 0);
    }
}
