//! Ranks as threads of this process, meeting over the loopback.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Instant;

use ppo_crds::report::Reason;

use super::*;
use crate::manifest::Invalid;
use crate::native::store::Store;
use crate::outcome::RankLost;
use crate::stop::Interrupted;

/// Short enough for a test, long enough for a busy machine.
pub const TIMING: Timing = Timing {
    join: Duration::from_secs(30),
    collective: Duration::from_secs(30),
    beat: Duration::from_millis(100),
    silence: Duration::from_secs(10),
};

/// Below the range of outgoing connections, of which one could take it before rank 0 listens there.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let drawn = std::iter::repeat_with(|| rand::random_range(20_000..32_000));
    drawn.take(1000).find(is_free).unwrap()
}

pub fn meetings(count: usize, timing: Timing) -> Vec<Meeting> {
    let port = free_port();
    let meeting = |rank| Meeting {
        host: "127.0.0.1".into(),
        port,
        rank,
        count,
        own_host: "127.0.0.1".into(),
        names: (0..count).map(|rank| format!("demo-actor-{rank}")).collect(),
        device: tch::Device::Cpu,
        attempt: 1,
        timing,
    };
    (0..count).map(meeting).collect()
}

/// What each of `count` ranks answers; one has nobody to meet.
pub fn together<T: Send>(count: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    if count == 1 {
        return vec![work(Ranks::alone())];
    }
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = meetings(count, TIMING).into_iter();
        let threads: Vec<_> = ranks
            .map(|meeting| scope.spawn(move || work(Ranks::join(meeting, &StopFlag::default()).unwrap())))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_rank_gets_the_sum_the_greatest_the_first_ones_tensor_and_all_parts() {
    let answers = together(3, |ranks| {
        let rank = ranks.rank() as f64;
        let sums = ranks.sums([rank, 1.0]).unwrap();
        let [greatest] = ranks.greatest([rank * 2.0]).unwrap();
        let said = Tensor::from_slice(&[rank as f32 + 7.0]);
        ranks.broadcast(&said).unwrap();
        let whole = Tensor::zeros([6], (Kind::BFloat16, tch::Device::Cpu));
        let _ = whole.narrow(0, 2 * ranks.rank() as i64, 2).fill_(rank + 1.0);
        ranks.gather(&whole).unwrap();
        let begun = ranks.begin_sum_at(1, Tensor::from_slice(&[rank as f32])).unwrap();
        let at_one = ranks.end_sum(begun).unwrap().double_value(&[0]);
        let whole = Vec::<f64>::try_from(whole.to_kind(Kind::Double)).unwrap();
        (
            sums,
            greatest,
            said.double_value(&[0]),
            whole,
            (ranks.rank() == 1).then_some(at_one),
        )
    });
    for (rank, answer) in answers.into_iter().enumerate() {
        let parts = vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
        assert_eq!(answer, ([3.0, 3.0], 4.0, 7.0, parts, (rank == 1).then_some(3.0)));
    }
}

#[test]
fn followers_hear_every_order_in_turn_and_a_failure_there_is_told_by_name() {
    let folder = |number: u32| PathBuf::from(format!("step-{number}"));
    let heard = together(3, |ranks| {
        if ranks.leads() {
            // More than the store keeps.
            for number in 0..40 {
                ranks.order(&Order::Save { folder: folder(number) }).unwrap();
                let done = ranks.replies::<()>(Duration::from_secs(20));
                assert_eq!(done.is_err(), number == 39);
                if let Err(error) = done {
                    assert_eq!(error.to_string(), "rank 2 (demo-actor-2): no space left");
                }
            }
            let outcome = crate::outcome::failure(&anyhow::anyhow!("no space"));
            ranks.dismiss(outcome, 1);
            return 0;
        }
        let mut heard = 0;
        loop {
            match ranks.next_order().unwrap() {
                Order::Save { folder: told } => {
                    assert_eq!(told, folder(heard));
                    heard += 1;
                    let full = heard == 40 && ranks.rank() == 2;
                    let done = if full {
                        Err(anyhow::anyhow!("no space left"))
                    } else {
                        Ok(())
                    };
                    ranks.reply(done.as_ref().map(drop)).unwrap();
                }
                Order::End { outcome, code } => {
                    assert_eq!((outcome.reason, code), (Reason::InternalError, 1));
                    ranks.reply(Ok(())).unwrap();
                    return heard;
                }
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(heard, [0, 40, 40]);
}

#[test]
fn a_rank_that_never_comes_ends_the_others_by_its_name() {
    let timing = Timing {
        join: Duration::from_secs(3),
        ..TIMING
    };
    let mut meetings = meetings(3, timing);
    meetings.remove(1);
    let began = Instant::now();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = meetings
            .into_iter()
            .map(|meeting| {
                scope.spawn(move || format!("{:#}", Ranks::join(meeting, &StopFlag::default()).unwrap_err()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors[0].contains("rank 1 (demo-actor-1) never joined"), "{errors:?}");
    // Rank 0 may be gone by the time the other notices.
    assert!(
        errors[1].contains("demo-actor-1") || errors[1].contains("rank 0"),
        "{errors:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(25));
}

#[test]
fn a_rank_that_waits_for_others_ends_when_it_is_asked_to() {
    let stop = StopFlag::default();
    let began = Instant::now();
    let errors: Vec<anyhow::Error> = std::thread::scope(|scope| {
        let mut meetings = meetings(3, TIMING);
        // The first waits for the last; the other finds nobody.
        let mut elsewhere = meetings.remove(1);
        elsewhere.port = free_port();
        let first = meetings.remove(0);
        let threads = [first, elsewhere].map(|meeting| scope.spawn(|| Ranks::join(meeting, &stop).unwrap_err()));
        std::thread::sleep(Duration::from_millis(300));
        stop.request();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|error| error.is::<Interrupted>()), "{errors:?}");
    assert!(began.elapsed() < TIMING.join);
}

#[test]
fn a_rank_that_is_asked_to_stop_with_rank_0_ends_as_asked_though_rank_0_is_gone_first() {
    let stop = StopFlag::default();
    let mut meetings = meetings(2, TIMING);
    let first = Store::serve(meetings[0].port, TIMING.silence).unwrap();
    let second = meetings.remove(1);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Ranks::join(second, &stop).unwrap_err());
        assert!(first.wait("attempt-1/arrived/1", TIMING.join).unwrap().is_some());
        stop.request();
        drop(first);
        let error = second.join().unwrap();
        assert!(error.is::<Interrupted>(), "{error:#}");
    });
}

#[test]
fn a_rank_that_found_the_store_of_an_older_attempt_looks_again_when_that_is_gone() {
    let meetings = meetings(2, TIMING);
    let old = Store::serve(meetings[0].port, TIMING.silence).unwrap();
    std::thread::scope(|scope| {
        let mut ranks = meetings.into_iter();
        let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
        let second = scope.spawn(move || Ranks::join(second, &StopFlag::default()).unwrap().sums([1.0]).unwrap());
        // Until it has said that it is there.
        assert!(old.wait("attempt-1/arrived/1", TIMING.join).unwrap().is_some());
        drop(old);
        let first = Ranks::join(first, &StopFlag::default()).unwrap().sums([1.0]).unwrap();
        assert_eq!((first, second.join().unwrap()), ([2.0], [2.0]));
    });
}

#[test]
fn a_rank_that_dies_ends_the_others_by_its_name_and_last_stage() {
    let words = together(3, |ranks| {
        ranks.sums([1.0]).unwrap();
        ranks.enter("update_actor of step 4".into());
        // Signs of life are written now and then.
        std::thread::sleep(TIMING.beat * 4);
        if ranks.rank() == 1 {
            return String::new();
        }
        let failed = (0..1000).find_map(|_| ranks.sums([1.0]).err()).unwrap();
        assert!(
            failed.to_string().starts_with("a sum over the ranks failed"),
            "{failed}"
        );
        format!("{:#}", ranks.placed(ranks.placed(failed)))
    });
    for words in [&words[0], &words[2]] {
        assert!(
            words.contains("rank 1 (demo-actor-1) is lost; it was last in update_actor of step 4"),
            "{words}"
        );
        assert!(
            words.starts_with("update_actor of step 4: a sum over the ranks failed"),
            "{words}"
        );
    }
}

#[test]
fn what_fails_in_a_rank_itself_is_no_loss_of_another() {
    let errors = together(2, |ranks| {
        ranks.enter("update_actor of step 4".into());
        let gaps = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 2]).transpose(0, 1);
        let error = ranks.sum(&gaps).unwrap_err();
        // Nobody has begun: they go on.
        assert_eq!(ranks.sums([1.0]).unwrap(), [2.0]);
        error
    });
    for error in errors {
        let words = "a sum over the ranks failed here: a tensor with gaps cannot be exchanged";
        assert_eq!(format!("{error:#}"), words);
        assert!(!error.is::<RankLost>());
    }
}

#[test]
fn a_rank_that_fails_says_why_and_the_others_end_with_its_words() {
    let words = together(3, |ranks| {
        ranks.sums([1.0]).unwrap();
        ranks.enter("update_actor of step 4".into());
        if ranks.rank() == 1 {
            let failed = anyhow::anyhow!("CUDA out of memory");
            ranks.leave_word(&failed.context("update_actor of step 4"));
            return String::new();
        }
        let failed = (0..1000).find_map(|_| ranks.sums([1.0]).err()).unwrap();
        // What comes of it at this rank is no news.
        ranks.leave_word(&failed);
        format!("{failed:#}")
    });
    for words in [&words[0], &words[2]] {
        let why = "failed: rank 1 (demo-actor-1) failed in update_actor of step 4: CUDA out of memory";
        assert!(words.contains(why), "{words}");
    }
}

#[test]
fn followers_end_when_rank_0_is_gone_between_two_orders() {
    let words = together(2, |ranks| {
        if ranks.leads() {
            ranks.enter("generate of step 2".into());
            std::thread::sleep(TIMING.beat * 4);
            return String::new();
        }
        format!("{:#}", ranks.next_order().unwrap_err())
    });
    assert!(words[1].contains("rank 0 (demo-actor-0) is lost"), "{words:?}");
}

#[test]
fn what_came_of_an_order_is_told_by_rank_and_what_nobody_can_run_or_was_asked_to_stop_stays_that() {
    together(3, |ranks| {
        if !ranks.leads() {
            ranks.next_order().unwrap();
            ranks.reply(Ok(ranks.rank() * 10)).unwrap();
            ranks.next_order().unwrap();
            let invalid = anyhow::Error::from(Invalid::new("no such model".into())).context("loading");
            ranks.reply::<()>(Err(&invalid)).unwrap();
            ranks.next_order().unwrap();
            return ranks.reply::<()>(Err(&anyhow::Error::from(Interrupted))).unwrap();
        }
        let order = Order::Values;
        ranks.order(&order).unwrap();
        assert_eq!(ranks.replies::<usize>(TIMING.join).unwrap(), [10, 20]);
        ranks.order(&order).unwrap();
        let error = ranks.replies::<()>(TIMING.join).unwrap_err();
        assert!(error.is::<Invalid>());
        assert_eq!(error.to_string(), "rank 1 (demo-actor-1): loading: no such model");
        ranks.order(&order).unwrap();
        let error = ranks.replies::<()>(TIMING.join).unwrap_err();
        assert!(error.is::<Interrupted>());
        assert_eq!(error.to_string(), "rank 1 (demo-actor-1): asked to stop");
    });
}

#[test]
fn a_follower_whose_reply_reaches_nobody_says_that_rank_0_is_lost() {
    let errors = together(2, |ranks| {
        if ranks.leads() {
            ranks.order(&Order::Values).unwrap();
            ranks.replies::<()>(TIMING.join).unwrap();
            return None;
        }
        ranks.next_order().unwrap();
        ranks.enter("saving step 4".into());
        (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            ranks.reply(Ok(())).err()
        })
    });
    let error = errors[1].as_ref().unwrap();
    assert!(error.is::<RankLost>(), "{error:#}");
    assert!(
        format!("{error:#}").starts_with("saving step 4: rank 0 (demo-actor-0) is lost"),
        "{error:#}"
    );
}
