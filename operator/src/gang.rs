//! Gang scheduling: which scheduler, if any, places all pods of a job at once or none.

pub(crate) mod admission;
mod coscheduling;
pub(crate) mod kueue;
mod members;
mod native;
pub(crate) mod scheduler;
pub(crate) mod silence;
pub mod stuck;
pub(crate) mod unapproved;
pub(crate) mod upkeep;
mod volcano;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::DynamicObject;
use ppo_crds::spec::Gang as Asked;

pub use admission::{Admission, Place};
pub use kueue::{Flavors, Lookups, admission_checks};
pub use scheduler::{Gang, choose, settled};
pub use silence::{ATTENTION_SECONDS, Silence};
pub use stuck::SCHEDULER_SILENT;
pub use unapproved::Unapproved;
pub use upkeep::Upkeep;

use crate::job::{Job, RolePods};
use crate::ledger::Ledger;
use crate::lifecycle::decision::{Decision, Intent};
use crate::plan::action::Action;
use crate::plan::drift::repair;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::{Children, Kind};

impl Gang {
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
        others
            .filter_map(|kind| Action::removal(kind, seen.object(kind, &name)?))
            .collect()
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
