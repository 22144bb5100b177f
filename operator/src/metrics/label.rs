//! Labels of metrics of jobs, and everything that each can be.

use ppo_crds::spec::Role;
use ppo_crds::status::Phase;

use crate::gang::stuck;

pub(super) const PHASES: [Phase; 9] = [
    Phase::Pending,
    Phase::Queued,
    Phase::Scheduling,
    Phase::Initializing,
    Phase::Running,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Succeeded,
    Phase::Failed,
];
/// The reason of a job that waits for nothing in vain.
pub(super) const NO_REASON: &str = "";

/// A further label of metrics of jobs.
#[derive(Clone, Copy)]
pub(super) enum Label {
    Phase,
    Reason,
    Role,
    State,
}

impl Label {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Phase => "phase",
            Self::Reason => "reason",
            Self::Role => "role",
            Self::State => "state",
        }
    }

    /// Everything that it can be.
    pub(super) fn values(self) -> Vec<String> {
        match self {
            Self::Phase => PHASES.iter().map(|phase| word(*phase)).collect(),
            Self::Reason => reasons().map(str::to_owned).collect(),
            Self::Role => Role::ALL.iter().map(|role| role.name().to_owned()).collect(),
            Self::State => ["desired", "ready"].map(str::to_owned).into(),
        }
    }
}

/// A phase as a label has it.
pub(super) fn word(phase: Phase) -> String {
    format!("{phase:?}")
}

/// Everything that the label of a wait can be.
fn reasons() -> impl Iterator<Item = &'static str> {
    stuck::REASONS.into_iter().chain([NO_REASON])
}
