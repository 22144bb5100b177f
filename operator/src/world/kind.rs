//! The kinds of objects that the operator makes, each by group and version: three schedulers have a kind named PodGroup.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, GroupVersionKind};

/// A kind of object that belongs to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Pods of the roles.
    Pod,
    /// The RunConfig.
    ConfigMap,
    /// The bearer token.
    Secret,
    /// Headless Services of the roles.
    Service,
    /// Who may reach the pods.
    NetworkPolicy,
    /// Keeps the actor on its nodes.
    PodDisruptionBudget,
    /// Checkpoints.
    PersistentVolumeClaim,
    /// Volcano's gang.
    VolcanoPodGroup,
    /// The coscheduling plugin's gang.
    CoschedulingPodGroup,
    /// Kueue's unit of quota.
    KueueWorkload,
    /// Kubernetes' own gang, as 1.36 serves it.
    NativePodGroupAlpha,
    /// Kubernetes' own gang, as 1.37 serves it.
    NativePodGroupBeta,
}

impl Kind {
    /// What every cluster has.
    pub const BUILTIN: [Self; 7] = [
        Self::Pod,
        Self::ConfigMap,
        Self::Secret,
        Self::Service,
        Self::NetworkPolicy,
        Self::PodDisruptionBudget,
        Self::PersistentVolumeClaim,
    ];

    /// What gang schedulers bring.
    pub const GANGS: [Self; 5] = [
        Self::VolcanoPodGroup,
        Self::CoschedulingPodGroup,
        Self::KueueWorkload,
        Self::NativePodGroupAlpha,
        Self::NativePodGroupBeta,
    ];

    /// Group, version, kind and plural, for requests.
    pub fn resource(self) -> ApiResource {
        let custom = |group, version, kind| ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match self {
            Self::Pod => ApiResource::erase::<Pod>(&()),
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::PersistentVolumeClaim => ApiResource::erase::<PersistentVolumeClaim>(&()),
            Self::VolcanoPodGroup => custom("scheduling.volcano.sh", "v1beta1", "PodGroup"),
            Self::CoschedulingPodGroup => custom("scheduling.x-k8s.io", "v1alpha1", "PodGroup"),
            Self::KueueWorkload => custom("kueue.x-k8s.io", "v1beta2", "Workload"),
            Self::NativePodGroupAlpha => custom("scheduling.k8s.io", "v1alpha2", "PodGroup"),
            Self::NativePodGroupBeta => custom("scheduling.k8s.io", "v1beta1", "PodGroup"),
        }
    }

    /// The word in logs and metric labels: the kind, with its scheduler where there are several.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Service => "Service",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::VolcanoPodGroup => "VolcanoPodGroup",
            Self::CoschedulingPodGroup => "CoschedulingPodGroup",
            Self::KueueWorkload => "KueueWorkload",
            Self::NativePodGroupAlpha | Self::NativePodGroupBeta => "PodGroup",
        }
    }
}
