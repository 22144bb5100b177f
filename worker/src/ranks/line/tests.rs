//! Ranks as threads of this process: what lines ask and refuse, and what comes of one that breaks. That a node vanishes is in
//! `tests/tests/ranks.rs`.

use std::sync::Barrier;

use super::*;
use crate::outcome::RankLost;
use crate::ranks::Ranks;
use crate::ranks::tests::{TIMING, meetings, together};

/// What the kernel of the other rank's node would be found not to answer.
const ETIMEDOUT: i32 = 110;

fn lines(ranks: &Ranks) -> &Lines {
    &ranks.link.as_ref().unwrap().lines
}

/// All ranks but `silent` wait for a sum in which `silent` takes no part; `finder` finds its line to `lost` broken, though no
/// connection is closed. What each says then.
fn broken(finder: usize, lost: usize, silent: usize) -> Vec<String> {
    let all_told = Barrier::new(3);
    let began = Instant::now();
    let words = together(3, |ranks| {
        ranks.sums([1.0]).unwrap();
        ranks.enter("update_actor of step 4".into());
        // Signs of life are written now and then.
        std::thread::sleep(TIMING.beat * 4);
        let words = std::thread::scope(|scope| {
            if ranks.rank() == finder {
                let shared = lines(&ranks).shared.clone();
                scope.spawn(move || {
                    std::thread::sleep(TIMING.beat);
                    shared.lose(lost, &io::Error::from_raw_os_error(ETIMEDOUT));
                });
            }
            if ranks.rank() == silent {
                return String::new();
            }
            // Rank 0 is lost to the finder alone: nobody else waits for a sum.
            if lost == 0 && ranks.rank() != finder {
                return String::new();
            }
            let error = ranks.sums([1.0]).unwrap_err();
            assert!(error.is::<RankLost>(), "{error:#}");
            // What would begin then does not.
            assert!(ranks.sums([1.0]).is_err());
            format!("{error:#}")
        });
        // Until then nobody ends.
        all_told.wait();
        words
    });
    assert!(began.elapsed() < TIMING.collective, "{:?}", began.elapsed());
    words
}

#[test]
fn a_rank_whose_line_breaks_ends_the_others_by_its_name_and_last_stage_long_before_a_collectives_deadline() {
    let words = broken(0, 1, 1);
    for words in [&words[0], &words[2]] {
        let why = "a sum over the ranks failed: rank 1 (demo-actor-1) is lost; it was last in \
                   update_actor of step 4; the connection to its node broke: Connection timed out";
        assert!(words.starts_with(why), "{words}");
    }
}

#[test]
fn a_rank_whose_line_to_rank_0_breaks_ends_with_its_name_and_asks_its_store_nothing() {
    let words = broken(2, 0, 0);
    let why = "a sum over the ranks failed: rank 0 (demo-actor-0) is lost, where the ranks meet; the \
               connection to its node broke: Connection timed out";
    assert!(words[2].starts_with(why), "{}", words[2]);
}

#[test]
fn both_ends_of_every_line_ask_for_signs_of_life_and_give_up_within_the_silence_that_is_borne() {
    let asked = together(3, |ranks| {
        let ends = lines(&ranks).shared.ends.iter();
        let asked: Vec<_> = ends
            .map(|(rank, end)| {
                let socket = SockRef::from(end);
                assert!(socket.keepalive().unwrap());
                let (first, then) = (
                    socket.tcp_keepalive_time().unwrap(),
                    socket.tcp_keepalive_interval().unwrap(),
                );
                assert!(first + then * socket.tcp_keepalive_retries().unwrap() <= TIMING.silence);
                *rank
            })
            .collect();
        // Nobody ends before all have looked.
        ranks.sums([1.0]).unwrap();
        asked
    });
    assert_eq!(asked, [vec![1, 2], vec![0], vec![0]]);
}

#[test]
fn who_does_not_know_the_secret_or_says_nothing_gets_no_line_and_keeps_no_rank_from_its_own() {
    let mut meetings = meetings(2, TIMING);
    let (second, mut first) = (meetings.remove(1), meetings.remove(0));
    // As a pod's, which other pods do not know: they are invited to the address that it stands for.
    first.own_host = "localhost".into();
    let store = Store::serve(0, TIMING.silence).unwrap();
    let ends = std::thread::scope(|scope| {
        let taken = scope.spawn(|| take_all(&first, &store).unwrap());
        let invitation = store.wait(&key(1), TIMING.join).unwrap().unwrap();
        let invitation: Invitation = serde_json::from_slice(&invitation).unwrap();
        assert!(invitation.address.ip().is_loopback());
        let stranger = || TcpStream::connect(invitation.address).unwrap();
        let greeted = greet(stranger(), &"0".repeat(SECRET), &second, TIMING.join);
        assert!(greeted.is_err());
        let silent = stranger();
        let end = connect(&second, &store).unwrap();
        drop(silent);
        drop(end);
        taken.join().unwrap()
    });
    assert_eq!(ends.keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn a_rank_that_draws_no_line_is_named() {
    let timing = crate::ranks::Timing {
        collective: Duration::from_secs(1),
        ..TIMING
    };
    let first = meetings(3, timing).remove(0);
    let store = Store::serve(0, TIMING.silence).unwrap();
    let words = take_all(&first, &store).unwrap_err().to_string();
    assert!(
        words.starts_with("rank 1 (demo-actor-1) did not connect to rank 0 (demo-actor-0)"),
        "{words}"
    );
}
