//! What a control plane is started with.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::Component;

/// A release of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubernetes {
    /// 1.36, which all tests run against but those of what the next one changes.
    #[default]
    Current,
    /// 1.37.
    Next,
}

impl Kubernetes {
    /// The module of `tests/cluster` that pins it.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Current => "kubernetes",
            Self::Next => "kubernetes-1.37",
        }
    }
}

/// What a control plane is started with. A cluster given by `PPO_TEST_KUBECONFIG` is taken as it is.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which API server, controller manager, scheduler and kubectl.
    pub kubernetes: Kubernetes,
    /// In namespaces of its own, for a real node instead of fake ones. Needs root.
    pub enclosed: bool,
    /// Feature gates of API server, controller manager and scheduler, such as `GangScheduling=true`.
    pub feature_gates: Vec<String>,
    /// `--runtime-config` of the API server, such as `scheduling.k8s.io/v1alpha2=true`.
    pub runtime_config: Vec<String>,
    /// Whether every request is written to the audit log.
    pub audit: bool,
    /// Definitions installed beside ours before the controller manager starts: its garbage collector learns of later ones
    /// only after up to 30 s.
    pub crds: Vec<CustomResourceDefinition>,
    /// More flags of a component; a flag given here comes last and so replaces ours.
    pub flags: Vec<(Component, String)>,
}

impl Options {
    /// Kubernetes' own gang scheduling as of 1.36: PodGroups of scheduling.k8s.io/v1alpha2.
    pub fn native_gang() -> Self {
        Self {
            feature_gates: vec!["GenericWorkload=true".into(), "GangScheduling=true".into()],
            runtime_config: vec!["scheduling.k8s.io/v1alpha2=true".into()],
            ..Self::default()
        }
    }

    /// The same as of 1.37: scheduling.k8s.io/v1beta1, of which the gate GenericWorkload, off by default, has all.
    pub fn next_native_gang() -> Self {
        Self {
            kubernetes: Kubernetes::Next,
            feature_gates: vec!["GenericWorkload=true".into()],
            runtime_config: vec!["scheduling.k8s.io/v1beta1=true".into()],
            ..Self::default()
        }
    }

    /// With the audit log, to count requests.
    pub fn audited() -> Self {
        Self {
            audit: true,
            ..Self::default()
        }
    }

    pub(crate) fn flags_of(&self, component: Component) -> impl Iterator<Item = String> {
        let own = self.flags.iter().filter(move |(of, _)| *of == component);
        own.map(|(_, flag)| flag.clone())
    }
}
