//! What every sink must know about a metric.

/// What a metric is measured in; decides the suffix of its Prometheus name and how people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A bare number (scores, losses, norms).
    None,
    /// Natural-log units: log-probabilities, KL, entropy.
    Nats,
    /// A share between 0 and 1.
    Ratio,
    /// Tokens.
    Tokens,
    /// Tokens per second.
    TokensPerSecond,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// How people see the unit beside a number; empty for a bare number.
    pub fn label(self) -> &'static str {
        match self {
            Unit::None | Unit::Ratio => "",
            Unit::Nats => "nats",
            Unit::Tokens => "tokens",
            Unit::TokensPerSecond => "tokens/s",
            Unit::Seconds => "s",
        }
    }

    /// Prometheus' base-unit suffix. Nats have none: no dashboard writes them.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Unit::None | Unit::Nats => "",
            Unit::Ratio => "_ratio",
            Unit::Tokens => "_tokens",
            Unit::TokensPerSecond => "_tokens_per_second",
            Unit::Seconds => "_seconds",
        }
    }
}

/// How Prometheus sees a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The latest step's value.
    Gauge,
    /// The steps' values add up; the name ends in `_total`.
    Counter,
    /// One observation per step.
    Histogram,
}

/// One row of the catalogue.
pub(super) struct Definition {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
    pub verl: &'static [&'static str],
    pub trl: &'static [&'static str],
    pub alpacafarm: &'static [&'static str],
    pub openrlhf: &'static [&'static str],
}
