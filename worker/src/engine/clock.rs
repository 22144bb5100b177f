//! When a sample was asked for, when it began, and when its tokens were drawn.

use std::time::{Duration, Instant};

use super::request::{Spent, Waited};

/// The moments of one sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    asked: Instant,
    began: Option<Instant>,
    /// Its first token and its newest.
    drawn: Option<(Instant, Instant)>,
    tokens: usize,
}

impl Clock {
    /// Of a sample whose request was handed in when it was `asked` for.
    pub(super) fn new(asked: Instant) -> Self {
        Self {
            asked,
            began: None,
            drawn: None,
            tokens: 0,
        }
    }

    /// A pass begins that computes some of it. One that lost its place and is computed anew has begun before.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// A token is drawn: how long it was waited for.
    pub(super) fn token(&mut self, now: Instant) -> Waited {
        self.tokens += 1;
        let before = self.drawn;
        self.drawn = Some((before.map_or(now, |(first, _)| first), now));
        match before {
            None => Waited::First(between(self.asked, now)),
            Some((_, newest)) => Waited::Next(between(newest, now)),
        }
    }

    /// Where its time went, by the newest token. Its prompt has so many tokens.
    pub(super) fn spent(&self, prompt_tokens: usize) -> Spent {
        let began = self.began.unwrap_or(self.asked);
        let (first, newest) = self.drawn.unwrap_or((began, began));
        Spent {
            queued: between(self.asked, began),
            prefill: between(began, first),
            decode: between(first, newest),
            prompt_tokens,
            generation_tokens: self.tokens,
        }
    }
}

fn between(from: Instant, to: Instant) -> Duration {
    to.saturating_duration_since(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_samples_time_goes_into_waiting_reading_its_prompt_and_drawing_and_one_that_begins_anew_began_the_first_time() {
        let asked = Instant::now();
        let at = |seconds: u64| asked + Duration::from_secs(seconds);
        let mut clock = Clock::new(asked);
        clock.begin(at(1));
        assert_eq!(clock.token(at(3)), Waited::First(Duration::from_secs(3)));
        clock.begin(at(4));
        assert_eq!(clock.token(at(8)), Waited::Next(Duration::from_secs(5)));
        assert_eq!(clock.token(at(9)), Waited::Next(Duration::from_secs(1)));
        let spent = Spent {
            queued: Duration::from_secs(1),
            prefill: Duration::from_secs(2),
            decode: Duration::from_secs(6),
            prompt_tokens: 7,
            generation_tokens: 3,
        };
        assert_eq!(clock.spent(7), spent);
    }
}
