//! Gang scheduling: which scheduler, if any, places all pods of a job at once or none.

mod admission;
mod coscheduling;
mod kueue;
mod members;
mod native;
mod silence;
pub mod stuck;
mod volcano;

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::DynamicObject;
use ppo_crds::spec::{Gang as Asked, SchedulingSpec};
use ppo_crds::status::PpoJobStatus;

pub use admission::{Admission, Place};
pub use kueue::{Flavors, Lookups, admission_checks};
pub use silence::{ATTENTION_SECONDS, REASON as SCHEDULER_SILENT, Silence, Unapproved};

use crate::job::{Job, RolePods};
use crate::ledger::Ledger;
use crate::lifecycle::{Decision, Intent};
use crate::plan::{Action, Target, repair};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::{Children, Kind};

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

    /// Asks for what the scheduler's own objects say and the next step needs.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn look_up(
        self,
        job: &Job,
        children: &Children,
        client: &Client,
        flavors: &Flavors,
    ) -> kube::Result<Lookups> {
        match self {
            Self::Kueue => kueue::look_up(job, children, client, flavors).await,
            _ => Ok(Lookups::default()),
        }
    }

    /// Whether the job's pods may exist.
    pub fn admission(self, job: &Job, children: &Children, lookups: &Lookups) -> Admission {
        match self {
            Self::Kueue => kueue::admission(job, children, lookups),
            Self::Missing(asked) => Admission::Missing(missing(asked)),
            Self::None | Self::Volcano | Self::Coscheduling | Self::Native(_) => Admission::Free,
        }
    }

    /// What brings the gang's own object to what it should be.
    pub fn repair(self, job: &Job, intent: &Intent, seen: &Snapshot, settings: &PodSettings) -> Vec<Action> {
        let (kind, desired) = match self {
            Self::Volcano | Self::Native(_) if *intent == Intent::Suspend => return Vec::new(),
            Self::Volcano => (Kind::VolcanoPodGroup, volcano::pod_group(job, settings)),
            Self::Coscheduling => (Kind::CoschedulingPodGroup, coscheduling::pod_group(job, settings)),
            // What 1.36 has made it does not let anybody change: `native::upkeep` takes one of another floor away.
            Self::Native(Kind::NativePodGroupAlpha) if seen.exists(Kind::NativePodGroupAlpha, &members::name(job)) => {
                return Vec::new();
            }
            Self::Native(kind) => (kind, native::pod_group(kind, job, seen)),
            Self::Kueue => return kueue::repair(job, intent, seen, settings),
            Self::None | Self::Missing(_) => return Vec::new(),
        };
        repair(kind, desired, seen).into_iter().collect()
    }

    /// Deletes the gang's objects of another scheduler, which the job had before it was suspended and given to this one: one of Kueue's
    /// would hold quota for ever. They go after its pods.
    pub fn left_over(self, job: &Job, seen: &Snapshot) -> Vec<Action> {
        if matches!(self, Self::Missing(_)) || seen.pods(job).next().is_some() {
            return Vec::new();
        }
        let name = members::name(job);
        let others = Kind::GANGS.into_iter().filter(|kind| !self.has(*kind));
        let there = others.filter_map(|kind| Some((kind, seen.object(kind, &name)?)));
        there
            .filter(|(_, object)| object.metadata.deletion_timestamp.is_none())
            .map(|(kind, object)| Action::Delete(Target::of(kind, object)))
            .collect()
    }

    /// Whether its object is of that kind. Kubernetes' own is one object in two versions.
    fn has(self, kind: Kind) -> bool {
        match self {
            Self::None | Self::Missing(_) => false,
            Self::Volcano => kind == Kind::VolcanoPodGroup,
            Self::Coscheduling => kind == Kind::CoschedulingPodGroup,
            Self::Kueue => kind == Kind::KueueWorkload,
            Self::Native(_) => matches!(kind, Kind::NativePodGroupAlpha | Kind::NativePodGroupBeta),
        }
    }

    /// Whether a pod waits until the gang has its nodes. A scheduler that knows one floor and not one per role could place
    /// engines above theirs and leave another role out: those engines are no members, and come after.
    pub fn comes_after(self, job: &Job, ledger: &Ledger, role: RolePods, index: u32, seen: &Snapshot) -> bool {
        if self.is_alpha() && native::outdated(job, ledger, seen).is_some() {
            return true;
        }
        matches!(self, Self::Coscheduling | Self::Native(_)) && index >= role.floor && !members::placed(job, seen)
    }

    /// Makes a pod a member, or sends it where the gang is.
    pub fn join(
        self,
        pod: &mut DynamicObject,
        job: &Job,
        role: RolePods,
        index: u32,
        seen: &Snapshot,
        settings: &PodSettings,
    ) {
        let member = index < role.floor;
        match self {
            Self::Volcano => volcano::join(pod, job, role.role),
            Self::Coscheduling => coscheduling::join(pod, job, member, settings),
            Self::Kueue => kueue::join(pod, job, role.role, index, seen),
            Self::Native(_) if member && native::takes(job, seen) => native::join(pod, job),
            Self::Native(_) => {}
            Self::None | Self::Missing(_) => {}
        }
    }

    /// What the scheduler itself leaves undone, and when to look again.
    pub fn upkeep(self, job: &Job, decision: &Decision, seen: &Snapshot, now: Timestamp) -> Upkeep {
        match self {
            Self::Coscheduling => coscheduling::upkeep(job, &decision.intent, seen, now),
            Self::Kueue => kueue::upkeep(job, decision, seen, now),
            Self::Volcano => volcano::upkeep(job, &decision.intent, seen),
            Self::Native(kind) => native::upkeep(kind, job, decision, seen),
            Self::None | Self::Missing(_) => Upkeep::default(),
        }
    }

    /// Why the gang has to begin anew, with other pods; None while its pods may be placed.
    pub fn begins_anew(self, job: &Job, ledger: &Ledger, seen: &Snapshot) -> Option<&'static str> {
        let holds_back = self.is_alpha() && native::holds_back(job, ledger, seen);
        holds_back.then_some("its pods waited in a PodGroup for more, or fewer, than the job needs now, which Kubernetes 1.36 lets nobody change")
    }

    fn is_alpha(self) -> bool {
        self == Self::Native(Kind::NativePodGroupAlpha)
    }
}

/// Remedies that real schedulers need.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// What to do now.
    pub actions: Vec<Action>,
    /// When to look again, should nothing happen before.
    pub wake: Option<Timestamp>,
}

fn missing(asked: Asked) -> String {
    let (word, needs) = match asked {
        Asked::Volcano => (
            "volcano",
            "the kind PodGroup of scheduling.volcano.sh/v1beta1: install Volcano",
        ),
        Asked::Coscheduling => (
            "coscheduling",
            "the kind PodGroup of scheduling.x-k8s.io/v1alpha1: install scheduler-plugins",
        ),
        Asked::Kueue => (
            "kueue",
            "the kind Workload of kueue.x-k8s.io/v1beta2: install Kueue 0.16 or newer",
        ),
        Asked::Workload => (
            "workload",
            "the kind PodGroup of scheduling.k8s.io (v1alpha2 or v1beta1): enable the feature gate GenericWorkload",
        ),
        Asked::Auto | Asked::None => return String::new(),
    };
    format!("scheduling.gang is {word}, but this cluster does not serve {needs}, or ask for another gang scheduler")
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
