//! What an engine at work does, and since when: for the words of a step that has waited too long for it.

use std::fmt;
use std::time::Instant;

use parking_lot::Mutex;

/// What an engine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    /// It was asked which weights it has.
    #[default]
    Asked,
    /// It gets those that the step draws with.
    TakesWeights,
    /// Fewer engines are ready than there have to be.
    WaitsForOthers,
    /// It has so many requests.
    Holds(usize),
}

/// What one engine does now.
pub(super) struct Duty(Mutex<(Doing, Instant)>);

impl Duty {
    pub(super) fn is(&self, doing: Doing) {
        *self.0.lock() = (doing, Instant::now());
    }
}

impl Default for Duty {
    fn default() -> Self {
        Self(Mutex::new((Doing::default(), Instant::now())))
    }
}

/// As after the engine's name.
impl fmt::Display for Duty {
    fn fmt(&self, words: &mut fmt::Formatter) -> fmt::Result {
        let (doing, since) = *self.0.lock();
        let seconds = since.elapsed().as_secs();
        match doing {
            Doing::Asked => write!(words, "was asked {seconds} s ago which weights it has"),
            Doing::TakesWeights => write!(words, "has been taking weights for {seconds} s"),
            Doing::WaitsForOthers => write!(words, "has waited for other engines for {seconds} s"),
            Doing::Holds(0) => write!(words, "has had no request for {seconds} s"),
            Doing::Holds(1) => write!(words, "has held 1 request for {seconds} s"),
            Doing::Holds(requests) => write!(words, "has held {requests} requests for {seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_engines_duty_is_told_with_how_long_it_has_lasted() {
        let duty = Duty::default();
        assert_eq!(duty.to_string(), "was asked 0 s ago which weights it has");
        let minute = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        *duty.0.lock() = (Doing::TakesWeights, minute);
        assert_eq!(duty.to_string(), "has been taking weights for 60 s");
        duty.is(Doing::Holds(12));
        assert_eq!(duty.to_string(), "has held 12 requests for 0 s");
    }
}
