use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::engine::FinishReason;
use crate::rollout::stand_in::taken;

fn tokenizer(family: &str) -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizer")
        .join(family);
    Arc::new(Tokenizer::load(&folder).unwrap())
}

/// Scores a sequence by its length and tells which batches it saw.
struct Length(mpsc::Sender<Vec<Vec<u32>>>);

impl SequenceScorer for Length {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        self.0.send(sequences.to_vec())?;
        Ok(sequences.iter().map(|ids| ids.len() as f32).collect())
    }
}

/// As a run without stop strings has it: an end token ended the response, else its length.
fn reason(policy: &Tokenizer, response: &[u32]) -> FinishReason {
    match response.last() {
        Some(id) if policy.eos_ids().contains(id) => FinishReason::Stop,
        _ => FinishReason::Length,
    }
}

/// A response of the policy (ChatML) to the prompt `Hi`.
fn sample(response: &str) -> ScoredSample {
    let policy = tokenizer("chatml");
    let prompt = crate::data::Prompt {
        index: 0,
        text: "<|im_start|>Hi".into(),
        ids: policy.encode("<|im_start|>Hi", true).unwrap().into(),
        ..Default::default()
    };
    let ids = policy.encode(response, false).unwrap();
    ScoredSample::new(&policy, 0, &prompt, &ids, reason(&policy, &ids)).unwrap()
}

async fn seen(model: impl Fn(Box<dyn SequenceScorer>) -> ModelReward, samples: &[ScoredSample]) -> Vec<Vec<u32>> {
    let (sender, receiver) = mpsc::channel();
    model(Box::new(Length(sender))).score(samples).await.unwrap();
    receiver.iter().flatten().collect()
}

#[tokio::test]
async fn a_shared_tokenizer_gives_the_policys_own_ids() {
    let sample = sample("42<|im_end|>");
    let wanted: Vec<u32> = sample.prompt_ids.iter().chain(&sample.response_ids).copied().collect();
    let model = |scorer| ModelReward::new(vec![scorer], tokenizer("qwen3"), 100).unwrap();
    assert_eq!(seen(model, &[sample]).await, [wanted]);
}

#[tokio::test]
async fn another_tokenizer_reads_the_text_without_the_policys_special_tokens_and_ends_it_its_own_way() {
    let reward = tokenizer("llama3");
    let mut wanted = reward.encode("Hi42", true).unwrap();
    wanted.extend(reward.eos_id());
    assert_eq!(wanted[0], reward.bos_id().unwrap());
    let model = |scorer| ModelReward::new(vec![scorer], reward.clone(), 100).unwrap();
    assert_eq!(seen(model, &[sample("42<|im_end|>")]).await, [wanted]);
}

#[tokio::test]
async fn another_tokenizer_with_a_chat_template_reads_the_messages_and_the_answer_its_own_way() {
    let reward = tokenizer("qwen3");
    let reads = |scorer| ModelReward::new(vec![scorer], reward.clone(), 100).unwrap();
    let question = serde_json::json!({"role": "user", "content": "Hi"});
    let answer = serde_json::json!({"role": "assistant", "content": "42"});
    let whole = reward.render_chat(&[question.clone(), answer], false).unwrap();
    let begun = reward.render_chat(std::slice::from_ref(&question), true).unwrap();
    let policy = tokenizer("llama3");
    let sample = |response: &[u32], reason| {
        let prompt = crate::data::Prompt {
            ids: policy.encode("Hi", true).unwrap().into(),
            messages: Some(vec![question.clone()].into()),
            ..Default::default()
        };
        ScoredSample::new(&policy, 0, &prompt, response, reason).unwrap()
    };
    let said = policy.encode("42", false).unwrap();
    let ended: Vec<u32> = said.iter().copied().chain(policy.eos_id()).collect();
    for (response, reason, wanted) in [
        (&ended, FinishReason::Stop, &whole),
        // By a stop string.
        (&said, FinishReason::Stop, &whole),
        (&said, FinishReason::Length, &format!("{begun}42")),
    ] {
        let wanted = reward.encode(wanted, false).unwrap();
        let seen = seen(reads, &[sample(response, reason)]).await;
        assert_eq!(seen, [wanted], "{response:?} {reason:?}");
    }
}

#[tokio::test]
async fn a_template_that_prints_the_date_prints_the_runs_on_whatever_day_it_scores() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/llama3");
    let moment = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    let that_day = Tokenizer::load_at(&folder, Some(moment)).unwrap();
    let question = serde_json::json!({"role": "user", "content": "Hi"});
    let answer = serde_json::json!({"role": "assistant", "content": "42"});
    let whole = that_day.render_chat(&[question.clone(), answer], false).unwrap();
    assert!(whole.contains("14 Nov 2023"), "{whole}");
    let begun = that_day.render_chat(std::slice::from_ref(&question), true).unwrap();
    let asked = |has_ended| ScoredSample {
        messages: Some(vec![question.clone()].into()),
        moment: Some(moment),
        has_ended,
        ..sample("42")
    };
    let model = |scorer| ModelReward::new(vec![scorer], tokenizer("llama3"), 100).unwrap();
    for (has_ended, wanted) in [(true, &whole), (false, &format!("{begun}42"))] {
        let wanted = that_day.encode(wanted, false).unwrap();
        assert_eq!(seen(model, &[asked(has_ended)]).await, [wanted], "{has_ended}");
    }
}

#[tokio::test]
async fn a_response_that_has_not_ended_gets_no_end_token() {
    let reward = tokenizer("llama3");
    let wanted = reward.encode("Hi42", true).unwrap();
    let model = |scorer| ModelReward::new(vec![scorer], reward.clone(), 100).unwrap();
    assert_eq!(seen(model, &[sample("42")]).await, [wanted]);
}

#[tokio::test]
async fn a_servers_text_is_read_as_it_stands_and_one_that_was_cut_off_gets_no_end_token() {
    let chatml = tokenizer("chatml");
    let model = |scorer| ModelReward::new(vec![scorer], chatml.clone(), 100).unwrap();
    for (response, has_end) in [("42", false), ("42<|im_end|>", true)] {
        let wanted = chatml.encode(&format!("<|im_start|>Hi{response}"), false).unwrap();
        assert_eq!(wanted.last().copied() == chatml.eos_id(), has_end, "{response}");
        let text = ScoredSample {
            tokenizer: None,
            ..sample(response)
        };
        assert_eq!(seen(model, &[text]).await, [wanted], "{response}");
    }
}

#[tokio::test]
async fn scores_come_back_in_the_samples_order_whatever_the_budget() {
    let samples: Vec<_> = [3, 1, 4, 1, 5, 9, 2, 6]
        .iter()
        .map(|count| sample(&"x".repeat(*count)))
        .collect();
    let scores = |budget| {
        let (sender, receiver) = mpsc::channel();
        let model = ModelReward::new(vec![Box::new(Length(sender))], tokenizer("chatml"), budget).unwrap();
        let samples = samples.clone();
        async move { (model.score(&samples).await.unwrap(), receiver) }
    };
    let alone = scores(1).await.0;
    let wanted: Vec<f32> = samples
        .iter()
        .map(|sample| (sample.prompt_ids.len() + sample.response_ids.len()) as f32)
        .collect();
    assert_eq!(alone, wanted);
    for budget in [20, 1000] {
        assert_eq!(scores(budget).await.0, alone, "{budget}");
    }
}

/// A model that gives too few scores, or none.
struct Broken(bool);

impl SequenceScorer for Broken {
    fn scores(&mut self, _: &[Vec<u32>]) -> Result<Vec<f32>> {
        if self.0 { bail!("out of memory") } else { Ok(Vec::new()) }
    }
}

#[tokio::test]
async fn a_model_that_fails_is_an_error_that_names_the_samples() {
    let error = |fails| async move {
        let model = ModelReward::new(vec![Box::new(Broken(fails))], tokenizer("chatml"), 100).unwrap();
        format!("{:#}", model.score(&[sample("x")]).await.unwrap_err())
    };
    assert_eq!(error(true).await, "reward model on 1 samples from 0: out of memory");
    assert_eq!(error(false).await, "the reward model gave 0 scores for 1 sequences");
}

#[test]
fn texts_are_split_aside_so_that_probes_are_answered_meanwhile() {
    let model = ModelReward::new(vec![Box::new(Broken(true))], tokenizer("chatml"), 100).unwrap();
    let empty = [ScoredSample {
        prompt: String::new(),
        response: String::new(),
        tokenizer: None,
        ..sample("42")
    }];
    let (runtime, give_back) = taken();
    runtime.block_on(async {
        let mut scoring = Box::pin(model.score(&empty));
        assert!(scoring.as_mut().now_or_never().is_none());
        drop(give_back);
        let words = format!("{:#}", scoring.await.unwrap_err());
        assert_eq!(
            words,
            "sample 0: query[0] is an empty text, which no model scores: send one of at least one token"
        );
    });
}

/// A copy that works when it is told to, and counts how often it has begun.
struct Told {
    go: mpsc::Receiver<()>,
    begun: Arc<AtomicUsize>,
}

impl SequenceScorer for Told {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.go.recv_timeout(Duration::from_secs(60))?;
        Ok(vec![1.0; sequences.len()])
    }
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_when_its_turn_comes_is_not_computed() {
    let (tell, go) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    let copy = Told {
        go,
        begun: begun.clone(),
    };
    let model = ModelReward::new(vec![Box::new(copy)], tokenizer("chatml"), 100).unwrap();
    let sample = [sample("42")];
    let mut first = Box::pin(model.score(&sample));
    while begun.load(Ordering::SeqCst) == 0 {
        assert!(
            tokio::time::timeout(Duration::from_millis(10), &mut first)
                .await
                .is_err()
        );
    }
    // It waits for the copy, and goes.
    let second = tokio::time::timeout(Duration::from_millis(50), model.score(&sample)).await;
    assert!(second.is_err());
    tell.send(()).unwrap();
    assert_eq!(first.await.unwrap(), [1.0]);
    tell.send(()).unwrap();
    assert_eq!(model.score(&sample).await.unwrap(), [1.0]);
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}

/// A copy that ends its work when two have begun theirs, and panics over a sequence that is too long.
struct Together(Arc<AtomicUsize>);

impl SequenceScorer for Together {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        let both = (self.0.fetch_add(1, Ordering::SeqCst) + 1).next_multiple_of(2);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.0.load(Ordering::SeqCst) < both {
            anyhow::ensure!(Instant::now() < deadline, "it computes alone");
            std::thread::yield_now();
        }
        assert!(sequences[0].len() < 10, "too long");
        Ok(sequences.iter().map(|ids| ids.len() as f32).collect())
    }
}

#[tokio::test]
async fn copies_compute_side_by_side_and_one_that_panicked_answers_again() {
    let begun = Arc::new(AtomicUsize::new(0));
    let copies = (0..2).map(|_| Box::new(Together(begun.clone())) as Box<dyn SequenceScorer>);
    let model = ModelReward::new(copies.collect(), tokenizer("chatml"), 1).unwrap();
    let (short, long) = ([sample("42")], [sample(&"4 2 ".repeat(9))]);
    for _ in 0..2 {
        let (one, other) = tokio::join!(model.score(&short), model.score(&long));
        assert_eq!(one.unwrap().len(), 1);
        assert!(format!("{:#}", other.unwrap_err()).contains("the reward model's thread died"));
    }
}

#[tokio::test]
async fn the_batches_of_one_call_are_computed_by_all_copies_at_once() {
    let begun = Arc::new(AtomicUsize::new(0));
    let copies = (0..2).map(|_| Box::new(Together(begun.clone())) as Box<dyn SequenceScorer>);
    let model = ModelReward::new(copies.collect(), tokenizer("chatml"), 1).unwrap();
    let samples = ["4", "42", "4", "42"].map(sample);
    let lengths = samples
        .each_ref()
        .map(|it| (it.prompt_ids.len() + it.response_ids.len()) as f32);
    assert_eq!(model.score(&samples).await.unwrap(), lengths);
}

proptest! {
    #[test]
    fn batches_hold_every_sequence_once_within_the_budget(
        lengths in proptest::collection::vec(1_usize..50, 0..40), budget in 1_usize..200,
    ) {
        let batches = batches(lengths.iter().copied(), budget);
        for batch in &batches {
            let longest = batch.iter().map(|at| lengths[*at]).max().unwrap();
            prop_assert!(batch.len() == 1 || batch.len() * longest <= budget);
        }
        let mut all: Vec<usize> = batches.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
    }
}
