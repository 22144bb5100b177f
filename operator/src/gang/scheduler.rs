//! Which gang scheduler a job has: the one that it asks for, or the one of the cluster's that knows most of gangs.

use std::collections::BTreeSet;

use ppo_crds::spec::{Gang as Asked, SchedulingSpec};
use ppo_crds::status::PpoJobStatus;

use crate::world::Kind;

/// The gang scheduler of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gang {
    /// Pods are placed one by one.
    None,
    /// Volcano.
    Volcano,
    /// The coscheduling plugin of scheduler-plugins.
    Coscheduling,
    /// Kueue: quota for the whole gang, then any scheduler.
    Kueue,
    /// Kubernetes' own, by the version that the server has.
    Native(Kind),
    /// What was asked for is not on this cluster.
    Missing(Asked),
}

/// The gang scheduler for `asked`, given the kinds that the API server has.
pub fn choose(asked: &SchedulingSpec, served: &BTreeSet<Kind>) -> Gang {
    let has = |kind, gang| served.contains(&kind).then_some(gang);
    let native = || {
        has(Kind::NativePodGroupBeta, Gang::Native(Kind::NativePodGroupBeta))
            .or_else(|| has(Kind::NativePodGroupAlpha, Gang::Native(Kind::NativePodGroupAlpha)))
    };
    let volcano = || has(Kind::VolcanoPodGroup, Gang::Volcano);
    let coscheduling = || has(Kind::CoschedulingPodGroup, Gang::Coscheduling);
    let kueue = || has(Kind::KueueWorkload, Gang::Kueue);
    let found = match asked.gang {
        Asked::None => Some(Gang::None),
        Asked::Volcano => volcano(),
        Asked::Coscheduling => coscheduling(),
        Asked::Kueue => kueue(),
        Asked::Workload => native(),
        // Kueue admits through a queue only: without one it is not what the user means.
        Asked::Auto => (if asked.queue.is_empty() { None } else { kueue() })
            .or_else(volcano)
            .or_else(coscheduling)
            .or_else(native)
            .or(Some(Gang::None)),
    };
    found.unwrap_or(Gang::Missing(asked.gang))
}

/// The same for a job that may have begun: for as long as it wants its pods it is what it was when the first of them was made. Pods join
/// a gang all at once or not at all.
pub fn settled(asked: &SchedulingSpec, status: &PpoJobStatus, served: &BTreeSet<Kind>) -> Gang {
    let begun = status.gang.filter(|_| status.active_since.is_some());
    let known = begun.map(|gang| SchedulingSpec { gang, ..asked.clone() });
    match known.map(|known| choose(&known, served)) {
        None => choose(asked, served),
        Some(Gang::Missing(_)) if asked.gang == Asked::Auto => choose(asked, served),
        Some(gang) => gang,
    }
}

impl Gang {
    /// As a manifest names it.
    pub fn word(self) -> Asked {
        match self {
            Self::None => Asked::None,
            Self::Volcano => Asked::Volcano,
            Self::Coscheduling => Asked::Coscheduling,
            Self::Kueue => Asked::Kueue,
            Self::Native(_) => Asked::Workload,
            Self::Missing(asked) => asked,
        }
    }

    /// Whether its object is of that kind. Kubernetes' own is one object in two versions.
    pub(super) fn has(self, kind: Kind) -> bool {
        match self {
            Self::None | Self::Missing(_) => false,
            Self::Volcano => kind == Kind::VolcanoPodGroup,
            Self::Coscheduling => kind == Kind::CoschedulingPodGroup,
            Self::Kueue => kind == Kind::KueueWorkload,
            Self::Native(_) => matches!(kind, Kind::NativePodGroupAlpha | Kind::NativePodGroupBeta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auto(queue: &str, served: &[Kind]) -> Gang {
        let asked = SchedulingSpec {
            gang: Asked::Auto,
            queue: queue.into(),
            ..SchedulingSpec::default()
        };
        choose(&asked, &served.iter().copied().collect())
    }

    #[test]
    fn what_is_installed_while_a_job_runs_is_for_jobs_that_begin_later() {
        let auto = SchedulingSpec {
            queue: "rl".into(),
            ..SchedulingSpec::default()
        };
        let begun: PpoJobStatus =
            serde_json::from_value(serde_json::json!({"gang": "none", "activeSince": "2026-01-01T00:00:00Z"})).unwrap();
        let served = Kind::GANGS.into();
        assert_eq!(settled(&auto, &begun, &served), Gang::None);
        let paused = PpoJobStatus {
            active_since: None,
            ..begun.clone()
        };
        assert_eq!(settled(&auto, &paused, &served), Gang::Kueue);
        // What a person asks for counts as soon as the job has no pods of another gang, and what is gone is not waited for.
        let asked = SchedulingSpec {
            gang: Asked::Volcano,
            ..auto.clone()
        };
        assert_eq!(settled(&asked, &begun, &served), Gang::None);
        assert_eq!(settled(&asked, &paused, &served), Gang::Volcano);
        let by_volcano = PpoJobStatus {
            gang: Some(Asked::Volcano),
            ..begun
        };
        assert_eq!(settled(&auto, &by_volcano, &BTreeSet::new()), Gang::None);
    }

    #[test]
    fn auto_takes_kueue_for_a_queue_and_then_the_scheduler_that_knows_most_of_gangs() {
        assert_eq!(auto("rl", &Kind::GANGS), Gang::Kueue);
        assert_eq!(auto("", &Kind::GANGS), Gang::Volcano);
        assert_eq!(
            auto("", &[Kind::CoschedulingPodGroup, Kind::NativePodGroupAlpha]),
            Gang::Coscheduling
        );
        assert_eq!(
            auto("", &[Kind::NativePodGroupAlpha]),
            Gang::Native(Kind::NativePodGroupAlpha)
        );
        assert_eq!(auto("", &[Kind::KueueWorkload]), Gang::None);
    }
}
