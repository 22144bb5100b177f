//! Crash sweep: wherever the operator dies, and whatever it sees late or not at all, a job's life comes to the same end.
//! The method is Sieve's (OSDI'22), the places those of Anvil's fault injection (OSDI'24): around every write.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod history;
mod life;

use std::time::Instant;

use futures::{StreamExt, stream};
use ppo_tests::{ControlPlane, Fault, Faults, Moment};
use tokio::sync::Semaphore;

use life::{Life, live};

/// Turns of the lives of all tests, so many at once: a life is mostly waiting. With thrice as many they wait for two cores, and longer than the
/// deadlines of [`life`].
static TURNS: Semaphore = Semaphore::const_new(16);

/// Seeds of the random lives.
const SEEDS: [u64; 6] = [1, 2, 3, 5, 8, 13];

async fn in_turn(cluster: &ControlPlane, faults: Faults) -> anyhow::Result<Life> {
    let _turn = TURNS.acquire().await?;
    live(cluster, faults).await
}

async fn undisturbed(cluster: &ControlPlane) -> Life {
    let life = in_turn(cluster, Faults::none()).await.unwrap();
    assert_eq!(life.history.wrongs(), Vec::<String>::new());
    // Other lives are compared with what it has and did.
    assert!(!life.end.is_empty() && !life.history.pods_made().is_empty() && !life.writes.is_empty());
    life
}

/// What is wrong with a life, compared with the undisturbed one.
fn differences(life: anyhow::Result<Life>, expected: &Life) -> Vec<String> {
    let life = match life {
        Ok(life) => life,
        Err(error) => return vec![format!("{error:#}")],
    };
    let mut wrongs = life.history.wrongs();
    for name in expected.end.keys().chain(life.end.keys()) {
        let (wanted, found) = (expected.end.get(name), life.end.get(name));
        if wanted != found {
            wrongs.push(format!("{name} is\n{found:?}\ninstead of\n{wanted:?}"));
        }
    }
    let (wanted, found) = (expected.history.pods_made(), life.history.pods_made());
    if wanted != found {
        wrongs.push(format!("pods made: {found:?}\ninstead of {wanted:?}"));
    }
    wrongs.dedup();
    wrongs
}

/// Plays the lives; fails with everything that went wrong. Returns the faults that struck.
async fn sweep(cluster: &ControlPlane, lives: Vec<(String, Faults)>, expected: &Life) -> usize {
    let begun = Instant::now();
    let count = lives.len();
    let played = stream::iter(lives).map(|(name, faults)| async move {
        let life = in_turn(cluster, faults.clone()).await;
        let wrongs = differences(life, expected);
        (
            faults.struck(),
            (!wrongs.is_empty()).then(|| format!("{name}:\n{}", wrongs.join("\n"))),
        )
    });
    let ended: Vec<(usize, Option<String>)> = played.buffer_unordered(count).collect().await;
    let struck = ended.iter().map(|(struck, _)| struck).sum();
    let failed: Vec<String> = ended.into_iter().filter_map(|(_, failed)| failed).collect();
    eprintln!("{count} lives, {struck} faults, {:.1?}", begun.elapsed());
    assert!(
        failed.is_empty(),
        "{} of {count} lives:\n{}",
        failed.len(),
        failed.join("\n\n")
    );
    struck
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_dies_around_any_write_is_replaced_without_a_trace() {
    let cluster = ControlPlane::shared().await.unwrap();
    let expected = undisturbed(cluster).await;
    let writes = expected.writes.len();
    eprintln!("{writes} writes: {:#?}", expected.writes);
    let moments = (1..=writes).flat_map(|write| [(write, Moment::Before), (write, Moment::After)]);
    let lives: Vec<(String, Faults)> = moments
        .map(|(write, moment)| {
            let faults = Faults::at(write, Fault::Kill(moment));
            // The new operator starts with a stale cache after every second write.
            let stale = write % 2 == 0;
            let faults = if stale { faults.with_stale_restarts() } else { faults };
            (format!("killed {moment:?} write {write}, stale: {stale}"), faults)
        })
        .collect();
    let kills = lives.len();
    let struck = sweep(cluster, lives, &expected).await;
    // The number of status writes depends on how fast pods are: some lives have fewer.
    assert!(struck * 10 >= kills * 8, "only {struck} of {kills} kills took place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_write_is_never_answered_lives_on() {
    let cluster = ControlPlane::shared().await.unwrap();
    let expected = undisturbed(cluster).await;
    let writes = (1..=expected.writes.len()).step_by(5);
    let lives: Vec<(String, Faults)> = writes
        .map(|write| {
            (
                format!("no answer to write {write}"),
                Faults::at(write, Fault::SwallowAnswer),
            )
        })
        .collect();
    let count = lives.len();
    let struck = sweep(cluster, lives, &expected).await;
    assert!(
        struck * 10 >= count * 8,
        "only {struck} of {count} answers were swallowed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_under_random_faults_ends_as_an_undisturbed_one() {
    let cluster = ControlPlane::shared().await.unwrap();
    let expected = undisturbed(cluster).await;
    let lives = SEEDS.map(|seed| (format!("seed {seed}"), Faults::random(seed)));
    let struck = sweep(cluster, lives.into(), &expected).await;
    assert!(struck >= SEEDS.len(), "only {struck} faults");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_settled_world_neither_a_running_nor_a_restarted_operator_writes() {
    let cluster = ControlPlane::shared().await.unwrap();
    let namespace = cluster.namespace("settled").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    let faults = Faults::none();
    let story = async {
        life::play_until_running(&namespace).await.unwrap();
        faults.settled().await.unwrap();
        let running = faults.writes().len();
        life::touch(&namespace).await.unwrap();
        faults.settled().await.unwrap();
        assert_eq!(faults.writes()[running..], Vec::<String>::new(), "a second look wrote");
    };
    tokio::select! {
        () = story => {}
        () = life::operate(&namespace, &faults) => unreachable!("nothing kills it"),
    }
    let again = Faults::none();
    let process = again.process(&namespace.client);
    let options = ppo_tests::Operator::options(&namespace);
    let operator = ppo_tests::Operator::start_with(process.client(), options);
    operator.has_looked().await.unwrap();
    again.settled().await.unwrap();
    operator.stop().await.unwrap();
    assert_eq!(again.writes(), Vec::<String>::new(), "a restarted operator wrote");
}
