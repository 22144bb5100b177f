//! Waiting for a cluster, with a deadline and an explanation.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

/// How long a test waits for anything that normally takes a moment: long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

/// Asks `observe` until it answers `Ok`. Its errors mean "not yet" and describe what was seen instead.
///
/// # Errors
/// At the deadline: what was waited for and the last thing seen.
pub async fn wait_for<T>(what: &str, deadline: Duration, mut observe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + deadline;
    let mut last = anyhow!("nothing: the first look did not end");
    loop {
        match timeout_at(end, observe()).await {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(not_yet)) => last = not_yet,
            Err(_) => break,
        }
        if Instant::now() + PAUSE > end {
            break;
        }
        sleep(PAUSE).await;
    }
    Err(anyhow!("waited {deadline:?} for {what}; last seen: {last:#}"))
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn a_wait_that_ends_in_vain_names_what_it_waited_for_and_what_it_saw() {
        let mut looks = 0;
        let error = wait_for::<()>("a pod", Duration::from_millis(150), async || {
            looks += 1;
            bail!("phase Pending at look {looks}")
        })
        .await
        .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("for a pod"), "{text}");
        assert!(text.contains(&format!("phase Pending at look {looks}")), "{text}");
    }

    #[tokio::test]
    async fn a_look_that_hangs_does_not_outlive_the_deadline() {
        let hangs = wait_for::<()>("an answer", Duration::from_millis(150), async || {
            std::future::pending().await
        });
        assert!(hangs.await.unwrap_err().to_string().contains("for an answer"));
    }

    #[tokio::test]
    async fn what_was_waited_for_is_handed_over() {
        let mut looks = 0;
        let seen = wait_for("the third look", PATIENCE, async || {
            looks += 1;
            if looks < 3 { bail!("look {looks}") } else { Ok(looks) }
        });
        assert_eq!(seen.await.unwrap(), 3);
    }
}
