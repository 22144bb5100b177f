//! Pods that fail, are taken away, or wait in vain.

use super::*;

/// This pod has ended after 4990 seconds as the worker says it.
fn fail(seen: &mut Snapshot, name: &str, outcome: Value) {
    let failed = PodView {
        life: Life::Failed,
        reason: "Error".into(),
        exit_code: Some(1),
        ended_at: Some(at(4990)),
        of_worker: true,
        outcome: serde_json::from_value(outcome).unwrap(),
        ..(*seen.children.pods[name]).clone()
    };
    insert(seen, failed);
}

#[test]
fn engines_that_fail_together_restart_together_and_count_once() {
    let (job, mut seen) = with_pods(Role::Rollout, 8);
    (0..8).for_each(|index| fail(&mut seen, &format!("a-rollout-{index}"), Value::Null));
    let first = decide(&job, &seen, &status(true, 60), at(5000));
    assert_eq!(
        (&first.intent, first.ledger.status.restarts, first.notes.len()),
        (&Intent::Run, 1, 8)
    );
    let attempt_of = |index: u32| first.ledger.attempt_of(Role::Rollout, index);
    assert!((0..8).all(|index| attempt_of(index) > 1), "each is made anew");
    assert!(
        first.notes[7].contains("counted with the one before: a-rollout-7 failed"),
        "{:?}",
        first.notes
    );

    // Of the next ones none comes before its time, and then all do.
    let mut again = seen.clone();
    for index in 0..8 {
        let failed = (*seen.children.pods[&format!("a-rollout-{index}")]).clone();
        let attempt = attempt_of(index);
        insert(&mut again, PodView { attempt, ..failed });
    }
    let soon = decide(&job, &again, &first.ledger.status, at(5005));
    assert_eq!(
        (soon.ledger.status.restarts, soon.held.len(), soon.wake),
        (1, 8, Some(at(5010)))
    );
    let later = decide(&job, &again, &first.ledger.status, at(5010));
    assert_eq!((later.ledger.status.restarts, later.notes.len()), (2, 8));
}

#[test]
fn a_crash_that_a_rule_ignores_has_no_end_and_is_paced() {
    let mut job = job();
    let rules = json!([{"action": "Ignore", "roles": ["rollout"]}]);
    job.spec.failure_policy.rules = serde_json::from_value(rules).unwrap();
    let failed = |attempt: u32| {
        let mut seen = heard(3.0, 5);
        let engine = PodView {
            attempt,
            created: Some(at(4995)),
            ..(*seen.children.pods["a-rollout-0"]).clone()
        };
        insert(&mut seen, engine);
        fail(&mut seen, "a-rollout-0", Value::Null);
        seen
    };
    // The first one's successor comes at once.
    let first = decide(&job, &failed(1), &status(true, 60), at(5000));
    assert_eq!((first.ledger.attempt_of(Role::Rollout, 0), first.held.len()), (2, 0));
    let soon = decide(&job, &failed(2), &first.ledger.status, at(5000));
    assert!(soon.held.contains("a-rollout-0"));
    assert_eq!(
        (soon.ledger.attempt_of(Role::Rollout, 0), soon.wake),
        (2, Some(at(5005)))
    );
    let then = decide(&job, &failed(2), &first.ledger.status, at(5005));
    assert_eq!((then.ledger.attempt_of(Role::Rollout, 0), then.held.len()), (3, 0));
    assert_eq!(then.ledger.status.restarts, 0);
}

#[test]
fn a_rank_that_lost_another_waits_for_what_befell_it_and_a_lost_node_does_not_count() {
    let (job, mut seen) = with_pods(Role::Actor, 2);
    let lost = json!({"reason": "RankLost", "message": "rank 1 (a-actor-1) is lost"});
    fail(&mut seen, "a-actor-0", lost);
    let decide_at = |seen: &Snapshot, seconds: i64| decide(&job, seen, &status(true, 60), at(seconds));
    let early = decide_at(&seen, 5000);
    assert_eq!((early.notes.len(), early.wake), (0, Some(at(5050))));
    assert!(early.held.contains("a-actor-0"));

    // Its node is found lost.
    let mut on_two = (*seen.children.pods["a-actor-1"]).clone();
    on_two.node = Some("two".into());
    let mut node_lost = seen.clone();
    insert(&mut node_lost, on_two);
    node_lost.lost_nodes.insert("two".into());
    let decision = decide_at(&node_lost, 5000);
    assert_eq!(
        (
            decision.ledger.attempt_of(Role::Actor, 0),
            decision.ledger.status.restarts
        ),
        (2, 0)
    );
    assert!(
        decision.notes[0].ends_with("the node of a-actor-1 is lost"),
        "{:?}",
        decision.notes
    );

    // Or it failed itself: that counts, in its words.
    let mut crashed = seen.clone();
    fail(
        &mut crashed,
        "a-actor-1",
        json!({"reason": "InternalError", "message": "out of memory"}),
    );
    let decision = decide_at(&crashed, 5000);
    assert_eq!((decision.notes.len(), decision.ledger.status.restarts), (1, 1));
    assert!(
        decision.notes[0].contains("a-actor-1 failed (InternalError)"),
        "{:?}",
        decision.notes
    );

    // Or it was deleted, though another failed of it.
    let mut deleted = seen.clone();
    let deleting_since = Some(at(5600));
    let second = (*deleted.children.pods["a-actor-1"]).clone();
    insert(
        &mut deleted,
        PodView {
            deleting_since,
            ..second
        },
    );
    assert_eq!(decide_at(&deleted, 5000).ledger.status.restarts, 0);

    // Or nothing comes to be known, as when the two do not reach each other.
    let decision = decide_at(&seen, 5050);
    assert_eq!((decision.notes.len(), decision.ledger.status.restarts), (1, 1));

    // Of an end that lies ahead, by a node whose clock is wrong, nobody waits for anything.
    let decision = decide_at(&seen, 4900);
    assert_eq!((decision.notes.len(), decision.held.len()), (1, 0));
}

#[test]
fn an_engine_that_is_deleted_after_it_failed_has_failed_all_the_same_and_its_successor_waits_its_time() {
    let (job, mut seen) = with_pods(Role::Rollout, 2);
    fail(&mut seen, "a-rollout-1", Value::Null);
    let first = decide(&job, &seen, &status(true, 60), at(5000));
    let attempt = first.ledger.attempt_of(Role::Rollout, 1);
    let failed = PodView {
        attempt,
        ..(*seen.children.pods["a-rollout-1"]).clone()
    };
    let deleted = PodView {
        deleting_since: Some(at(5003)),
        ..failed.clone()
    };

    let world = World::default();
    world.insert(&job.key, Kind::Pod, Observed::Pod(running(1)));
    for look in [failed, deleted] {
        world.insert(&job.key, Kind::Pod, Observed::Pod(Arc::new(look)));
    }
    let mut going = seen.clone();
    insert(&mut going, (*world.children(&job.key).pods["a-rollout-1"]).clone());
    world.remove(&job.key, Kind::Pod, "a-rollout-1");
    let mut gone = seen;
    gone.children.pods.remove("a-rollout-1");
    gone.vanished = world.vanished(&job.key);

    for seen in [going, gone] {
        let waits = decide(&job, &seen, &first.ledger.status, at(5005));
        assert!(waits.held.contains("a-rollout-1"));
        assert_eq!((waits.ledger.status.restarts, waits.wake), (1, Some(at(5010))));
        let then = decide(&job, &seen, &first.ledger.status, at(5010));
        assert_eq!((then.ledger.status.restarts, then.held.len()), (2, 0));
        assert_eq!(then.ledger.attempt_of(Role::Rollout, 1), attempt + 1);
        // Who cannot wait says so.
        let mut asked = seen;
        asked.restart_request = Some("rollout=now".into());
        let at_once = decide(&job, &asked, &first.ledger.status, at(5005));
        assert_eq!((at_once.ledger.status.restarts, at_once.held.len()), (1, 0));
        assert_eq!(at_once.ledger.attempt_of(Role::Rollout, 1), attempt + 1);
    }
}

#[test]
fn a_failed_engine_that_is_gone_and_no_longer_wanted_is_no_failure() {
    let (job, mut seen) = with_pods(Role::Rollout, 2);
    fail(&mut seen, "a-rollout-1", Value::Null);
    seen.vanished.extend(seen.children.pods.remove("a-rollout-1"));
    assert_eq!(decide(&job, &seen, &status(true, 60), at(5000)).notes.len(), 1);
    let (fewer, _) = with_pods(Role::Rollout, 1);
    assert_eq!(decide(&fewer, &seen, &status(true, 60), at(5000)).notes.len(), 0);
}

#[test]
fn an_actor_that_waits_for_more_engines_than_are_wanted_now_is_made_anew_and_a_raised_floor_waits_for_its_next_start() {
    let with_floor = |floor: u32| {
        let (mut job, mut seen) = with_pods(Role::Rollout, 2);
        job.spec.checkpoint.pvc = Some("kept".into());
        let engines = job.roles.iter_mut().filter(|pods| pods.role == Role::Rollout);
        engines.for_each(|engines| (engines.pods, engines.floor) = (4, floor));
        let actor = PodView {
            floor: Some(3),
            ..(*seen.children.pods["a-actor-0"]).clone()
        };
        insert(&mut seen, actor);
        (job, seen)
    };
    let (job, seen) = with_floor(2);
    let lowered = decide(&job, &seen, &status(true, 60), at(5000));
    let counted = lowered.ledger.status.restarts;
    assert_eq!((lowered.ledger.attempt_of(Role::Actor, 0), counted), (2, 0));
    assert!(lowered.notes[0].contains("minReplicas is 2 now"), "{:?}", lowered.notes);
    let again = decide(&job, &seen, &lowered.ledger.status, at(5001));
    assert_eq!(again.ledger.attempt_of(Role::Actor, 0), 2);
    let (job, seen) = with_floor(3);
    let same = decide(&job, &seen, &status(true, 60), at(5000));
    assert_eq!(same.ledger.attempt_of(Role::Actor, 0), 1);

    let (job, mut seen) = with_floor(4);
    let third = PodView {
        name: "a-rollout-2".into(),
        index: 2,
        ..(*seen.children.pods["a-rollout-1"]).clone()
    };
    insert(&mut seen, third);
    assert!(seen.roles_ready(&job, &Ledger::open(&status(true, 60), &job)));
}

#[test]
fn an_engine_that_waits_its_time_waits_no_longer_for_another_that_the_cluster_takes() {
    let (job, mut seen) = with_pods(Role::Rollout, 2);
    fail(&mut seen, "a-rollout-1", Value::Null);
    let first = decide(&job, &seen, &status(true, 60), at(5000));
    let attempt = first.ledger.attempt_of(Role::Rollout, 1);
    let failed = PodView {
        attempt,
        ..(*seen.children.pods["a-rollout-1"]).clone()
    };
    insert(&mut seen, failed);
    let drained = PodView {
        deleting_since: Some(at(5035)),
        ..(*seen.children.pods["a-rollout-0"]).clone()
    };
    insert(&mut seen, drained);
    let drains = decide(&job, &seen, &first.ledger.status, at(5005));
    assert_eq!((drains.ledger.status.restarts, drains.wake), (1, Some(at(5010))));
    let then = decide(&job, &seen, &drains.ledger.status, at(5010));
    assert!(then.ledger.attempt_of(Role::Rollout, 1) > attempt);
    assert_eq!((then.ledger.status.restarts, then.held.len()), (2, 0));
}
