//! A vLLM that is alive and computes nothing. Its engine is another process than the server that answers probes: when a GPU hangs, or the
//! engine waits for one of its own processes for ever, `/health` is answered as before.

use std::time::{Duration, Instant};

use super::service::Service;
use crate::engine::PASS_DEADLINE;
use crate::serving::error::ApiError;

/// How vLLM is watched.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Between two looks.
    pub every: Duration,
    /// After so long without a pass it is stuck.
    pub limit: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(10),
            limit: PASS_DEADLINE,
        }
    }
}

impl Watch {
    /// Returns once vLLM has requests and has computed nothing for too long; what to say of it.
    pub async fn stuck(self, service: &Service) -> String {
        let mut stall = Stall::default();
        loop {
            tokio::time::sleep(self.every).await;
            // Where nothing is known now the last look stands. Whether it lives is asked elsewhere.
            let Ok(progress) = progress(service).await else {
                continue;
            };
            let still = stall.look(progress, Instant::now());
            if still >= self.limit {
                return format!(
                    "vLLM at {} has computed nothing for {} s, though it has requests ({}) and answers its probe: does its GPU hang?",
                    service.vllm.address(),
                    still.as_secs(),
                    service.names.at_vllm()
                );
            }
        }
    }
}

/// How far vLLM has computed. None where it has nothing to compute, or does not tell.
async fn progress(service: &Service) -> Result<Option<String>, ApiError> {
    // A client may have paused it. An engine that hangs does not answer this.
    if service.names.at_vllm() == 0 || service.vllm.is_paused().await.unwrap_or(false) {
        return Ok(None);
    }
    service.vllm.progress().await
}

/// What vLLM had computed when it was last seen to go on, and when that was.
#[derive(Debug, Default)]
struct Stall(Option<(String, Instant)>);

impl Stall {
    /// For how long it has stood still `now`, by its [`progress`].
    fn look(&mut self, progress: Option<String>, now: Instant) -> Duration {
        match &self.0 {
            Some((before, since)) if progress.as_ref() == Some(before) => now.saturating_duration_since(*since),
            _ => {
                self.0 = progress.map(|progress| (progress, now));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vllm::stand_in::{QUICK, ask, counters, silent, until_at_vllm};

    #[test]
    fn a_stall_is_counted_from_when_the_same_progress_was_first_seen() {
        let (mut stall, began) = (Stall::default(), Instant::now());
        let mut look = |progress: Option<&str>, seconds: u64| {
            let now = began + Duration::from_secs(seconds);
            stall.look(progress.map(str::to_owned), now).as_secs()
        };
        let a = Some("a");
        assert_eq!([look(a, 0), look(a, 10), look(a, 25)], [0, 10, 25]);
        let b = Some("b");
        assert_eq!([look(b, 30), look(b, 31)], [0, 1]);
        assert_eq!([look(None, 40), look(b, 900), look(b, 901)], [0, 0, 1]);
    }

    async fn is_left_alone(service: &Service) -> bool {
        let watching = tokio::time::timeout(6 * QUICK.limit, QUICK.stuck(service));
        watching.await.is_err()
    }

    #[tokio::test]
    async fn a_vllm_that_has_requests_and_computes_nothing_is_stuck_until_they_are_withdrawn() {
        let service = silent(|_| counters(7, 9, 0.5), false).await;
        assert!(is_left_alone(&service).await, "it has no request");
        let asking = ask(&service).await;
        let words = tokio::time::timeout(Duration::from_secs(20), QUICK.stuck(&service)).await;
        let words = words.unwrap();
        assert!(
            words.contains("has computed nothing for 0 s, though it has requests (1)"),
            "{words}"
        );
        asking.abort();
        until_at_vllm(&service, 0).await;
        assert!(is_left_alone(&service).await, "its request was withdrawn");
    }

    #[tokio::test]
    async fn a_vllm_that_draws_or_reads_a_prompt_piece_by_piece_is_left_alone() {
        let draws: fn(usize) -> String = |look| counters(7, look, 0.5);
        let reads: fn(usize) -> String = |look| counters(7, 9, look as f64 / 1000.0);
        for metrics in [draws, reads] {
            let service = silent(metrics, false).await;
            let _asking = ask(&service).await;
            assert!(is_left_alone(&service).await, "{}", metrics(0));
        }
    }

    #[tokio::test]
    async fn a_vllm_that_a_client_has_paused_is_left_alone() {
        let service = silent(|_| counters(7, 9, 0.5), true).await;
        let _asking = ask(&service).await;
        assert!(is_left_alone(&service).await);
    }

    #[tokio::test]
    async fn a_vllm_that_was_told_to_count_nothing_is_left_alone() {
        let service = silent(|_| "process_cpu_seconds_total 1.0\n".to_owned(), false).await;
        let _asking = ask(&service).await;
        assert!(is_left_alone(&service).await);
    }
}
