//! Why a reconcile has to be repeated, and what happens then.

use kube::core::Status;

use crate::world::Kind;

/// Why a reconcile has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request was refused or got no answer.
    #[error("{what}: {source}")]
    Request {
        /// What was asked.
        what: String,
        /// Kind of the job's object that was to be made, changed or deleted; None for anything else.
        kind: Option<Kind>,
        /// Whether it was to be deleted.
        deletes: bool,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Another object has a name that the job needs.
    #[error("{} {name} belongs to {owner}; {}", kind.name(), while_taken(*kind))]
    NameTaken {
        /// Kind of the object.
        kind: Kind,
        /// Its name.
        name: String,
        /// Whose it is.
        owner: String,
    },
    /// An object of the job that no watch shows any more, for somebody took its labels away: it lives on, and its name is taken.
    #[error(
        "{} {name} is the job's own and has lost labels by which the operator knows it ({}); {}",
        kind.name(), lost.join(", "), while_unlabelled(*kind, name, lost)
    )]
    Unlabelled {
        /// Kind of the object.
        kind: Kind,
        /// Its name.
        name: String,
        /// The labels, each with its value.
        lost: Vec<String>,
    },
    /// The job changed since it was read; nothing was deleted on the old word.
    #[error("the job changed since it was read")]
    Stale,
    /// Which objects of the gang's kind there are is not known yet: one that is missed would end the job's pods, or be made anew.
    #[error(
        "no list of {} ({}) in namespace {namespace} has come yet, and nothing is decided for the job before: if that lasts, may the \
         operator's service account list and watch them, and does their conversion webhook answer?",
        kind.name(), full_name(*kind)
    )]
    Unlisted {
        /// The gang's kind.
        kind: Kind,
        /// The job's namespace.
        namespace: String,
    },
    /// It had no end: a request got no answer.
    #[error("no end within {seconds} s: the API server has left a request without an answer")]
    Late {
        /// The deadline.
        seconds: u64,
    },
}

impl Error {
    /// Of a request that `what` names, which is to make or change an object of the job of this `kind`, if any.
    pub fn request(what: impl Into<String>, kind: impl Into<Option<Kind>>) -> impl FnOnce(kube::Error) -> Self {
        let (what, kind) = (what.into(), kind.into());
        move |source| Self::Request {
            what,
            kind,
            deletes: false,
            source: Box::new(source),
        }
    }

    /// Of a request to delete an object of the job.
    pub fn deleting(kind: Kind, name: &str) -> impl FnOnce(kube::Error) -> Self + use<> {
        let what = format!("deleting {} {name}", kind.name());
        move |source| Self::Request {
            what,
            kind: Some(kind),
            deletes: true,
            source: Box::new(source),
        }
    }

    /// Every word of [`kind`](Self::kind).
    pub const KINDS: [&str; 8] = [
        "conflict",
        "throttled",
        "forbidden",
        "server",
        "refused",
        "connection",
        "name-taken",
        "stale",
    ];

    /// The API server's answer, when it refused a request.
    fn refusal(&self) -> Option<&Status> {
        let Self::Request { source, .. } = self else {
            return None;
        };
        match source.as_ref() {
            kube::Error::Api(status) => Some(status),
            _ => None,
        }
    }

    /// Whether another try ends the same way: the API server takes a pod for invalid. What else it takes for invalid may be valid in a
    /// moment, such as another queue for a Workload that has just got quota, and so may what a policy of the cluster denies.
    pub fn is_final(&self) -> bool {
        self.wanted() == Some(Kind::Pod)
            && self
                .refusal()
                .is_some_and(|status| (status.is_invalid() || is_unreadable(status)) && !is_of_admission(status))
    }

    /// Kind of the job's object that a request was to make or change.
    fn wanted(&self) -> Option<Kind> {
        match self {
            Self::Request { kind, deletes, .. } if !deletes => *kind,
            _ => None,
        }
    }

    /// Whether it is of a gang scheduler's own object, which the job wants.
    pub fn is_of_gang(&self) -> bool {
        self.wanted().is_some_and(|kind| Kind::GANGS.contains(&kind))
    }

    /// Whether it is of the disruption budget, which comes last and which a job can do without.
    pub fn is_of_budget(&self) -> bool {
        match self {
            Self::Request { kind, .. } => *kind == Some(Kind::PodDisruptionBudget),
            Self::NameTaken { kind, .. } | Self::Unlabelled { kind, .. } => *kind == Kind::PodDisruptionBudget,
            Self::Unlisted { .. } | Self::Stale | Self::Late { .. } => false,
        }
    }

    /// Whether the API server does not serve a gang scheduler's kind any more: it was uninstalled.
    pub fn is_of_unserved_gang(&self) -> bool {
        self.is_of_gang() && self.refusal().is_some_and(|status| status.code == 404)
    }

    /// Whether a person has to do something before another try can succeed.
    pub fn needs_a_person(&self) -> bool {
        let refused = |status: &Status| {
            status.is_forbidden() || status.is_invalid() || status.code == BAD_REQUEST || is_denied(status)
        };
        let taken = matches!(self, Self::NameTaken { .. } | Self::Unlabelled { .. });
        taken || self.is_of_unserved_gang() || self.refusal().is_some_and(refused)
    }

    /// What was asked and what the API server said, for people: without the numbers and types that programs read.
    pub fn words(&self) -> String {
        let (Self::Request { what, deletes, .. }, Some(status)) = (self, self.refusal()) else {
            return self.to_string();
        };
        let then = match (self.is_of_budget(), *deletes) {
            (true, false) => "; the job does not wait for it, but a drain may evict its actor until it is done",
            (true, true) => "; no pod waits for it, but drains and alerts go by that budget until it is gone",
            (false, _) => "",
        };
        format!("{what}: {}{then}", status.message.trim_end())
    }

    /// What was refused and why, when a person has to do something about it.
    pub fn refused(&self) -> Option<String> {
        let is_certain = self.needs_a_person() && !self.may_be_a_race();
        is_certain.then(|| self.words())
    }

    /// Whether it may only be that Kueue has reserved quota for a Workload, which the watch has not shown yet: most of one that has quota
    /// may not change, and once the watch shows it nobody asks for that any more.
    pub fn may_be_a_race(&self) -> bool {
        self.wanted() == Some(Kind::KueueWorkload)
            && self
                .refusal()
                .is_some_and(|status| status.is_invalid() || is_denied(status))
    }

    /// What was asked and answered, where that may pass by itself: a person is told of it only once it has lasted.
    pub fn passing(&self) -> Option<String> {
        let raced = || self.may_be_a_race().then(|| self.words());
        self.unanswered_webhook().or_else(raced)
    }

    /// What was asked and answered, when a webhook that has to approve it did not answer.
    pub fn unanswered_webhook(&self) -> Option<String> {
        let status = self.refusal()?;
        let unanswered = status.code >= 500 && status.message.contains("webhook") && !is_denied(status);
        unanswered.then(|| self.words())
    }

    /// The word in metrics. What a job's user has to put right, such as its quota, is told from what whoever runs the operator has to.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if is_denied(status) => "refused",
                kube::Error::Api(status) if status.is_conflict() => "conflict",
                kube::Error::Api(status) if status.code == 429 => "throttled",
                kube::Error::Api(status) if is_for_want_of_rights(status) => "forbidden",
                kube::Error::Api(status) if status.code >= 500 => "server",
                kube::Error::Api(_) => "refused",
                _ => "connection",
            },
            Self::NameTaken { .. } | Self::Unlabelled { .. } => "name-taken",
            Self::Unlisted { .. } => "server",
            Self::Stale => "stale",
            Self::Late { .. } => "connection",
        }
    }
}

/// What a job does while another object has the name of its own.
fn while_taken(kind: Kind) -> &'static str {
    match kind {
        Kind::PodDisruptionBudget => {
            "the job does not wait for it, but a drain may evict its actor: delete that one, and the operator makes the job's own within a \
             minute"
        }
        _ => "the job waits until it is gone",
    }
}

/// What a job does while an object of its own has lost its labels, and what mends that.
fn while_unlabelled(kind: Kind, name: &str, lost: &[String]) -> String {
    let full = full_name(kind);
    let waits = match kind {
        Kind::PodDisruptionBudget => "the job does not wait for that",
        _ => "the job waits until they are back or it is gone",
    };
    let labels = lost.join(" ");
    format!("{waits}: `kubectl label {full} {name} --overwrite {labels}`, or delete it")
}

/// The kind as kubectl takes it.
fn full_name(kind: Kind) -> String {
    let resource = kind.resource();
    match resource.group.as_str() {
        "" => resource.plural,
        group => format!("{}.{group}", resource.plural),
    }
}

/// Whether the operator itself lacks a right, in the authorizer's words (apiserver, endpoints/handlers/responsewriters/errors.go). A
/// quota and a pod's security level forbid, too.
fn is_for_want_of_rights(status: &Status) -> bool {
    let words = ["User \"", " cannot "];
    status.code == 401 || status.is_forbidden() && words.iter().all(|it| status.message.contains(it))
}

/// What was sent is wrong, whoever sends it again.
const BAD_REQUEST: u16 = 400;

/// Whether the API server cannot even read what it was sent, as where `16GB` is to be a quantity (apiserver, `transformDecodeError` of
/// endpoints/handlers/rest.go).
fn is_unreadable(status: &Status) -> bool {
    status.code == BAD_REQUEST && status.message.contains("cannot be handled as a")
}

/// Whether a webhook or a policy of the cluster said no. A webhook may do so with any status, and does with 400 unless it names one
/// (apiserver, admission/plugin/webhook/errors/statuserror.go); a policy with the one of its rule's reason, 422 unless it has one
/// (admission/plugin/policy/validating/dispatcher.go).
fn is_denied(status: &Status) -> bool {
    is_of_admission(status)
        && ["denied the request", "denied request"]
            .iter()
            .any(|it| status.message.contains(it))
}

/// Whether the words are of a webhook or a policy of the cluster, which may change any moment.
fn is_of_admission(status: &Status) -> bool {
    ["admission webhook", "ValidatingAdmissionPolicy"]
        .iter()
        .any(|it| status.message.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reason: &str, code: u16) -> Error {
        making(Kind::Pod, reason, code)
    }

    fn making(kind: Kind, reason: &str, code: u16) -> Error {
        let refusal = Status::failure("", reason).with_code(code);
        Error::request("an object", kind)(kube::Error::Api(refusal.boxed()))
    }

    #[test]
    fn only_a_pod_that_is_invalid_is_refused_for_ever() {
        assert!(answer("Invalid", 422).is_final());
        assert!(!answer("Forbidden", 403).is_final());
        // A queue may not change while Kueue reserves quota, which the watch has not shown yet.
        let workload = making(Kind::KueueWorkload, "Invalid", 422);
        assert!(workload.needs_a_person() && !workload.is_final());
        assert!(workload.refused().is_none() && workload.passing().is_some());
        let forbidden = making(Kind::KueueWorkload, "Forbidden", 403);
        assert!(forbidden.refused().is_some() && forbidden.passing().is_none());
    }

    /// What a webhook and a policy of the cluster answer, and what the API server says of a webhook that does not.
    fn of_admission(code: u16, reason: &str, message: &str) -> Error {
        let status = Status::failure(message, reason).with_code(code);
        Error::request("creating Pod a-actor-0", Kind::Pod)(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn what_a_webhook_or_a_policy_denies_is_for_a_person_to_mend_and_ends_no_job() {
        let policy = r#"pods "a-actor-0" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no tag"#;
        let webhook =
            r#"admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod/n/a-actor-0 was blocked"#;
        for (code, reason, message) in [
            (422, "Invalid", policy),
            (401, "Unauthorized", policy),
            (400, "", webhook),
            (422, "Invalid", webhook),
            (403, "Forbidden", webhook),
            (500, "InternalError", webhook),
        ] {
            let error = of_admission(code, reason, message);
            assert!(error.needs_a_person() && !error.is_final(), "{error}");
            assert_eq!(error.unanswered_webhook(), None, "{error}");
            assert_eq!(error.refused(), Some(format!("creating Pod a-actor-0: {message}")));
        }
        let invalid = r#"Pod "a-actor-0" is invalid: spec.containers[0].image: Required value"#;
        assert!(of_admission(422, "Invalid", invalid).is_final());
    }

    #[test]
    fn a_pod_that_the_api_server_cannot_read_is_refused_for_ever_and_another_bad_request_is_told() {
        let quantity = r#"Pod in version "v1" cannot be handled as a Pod: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#;
        let unreadable = of_admission(400, "BadRequest", quantity);
        assert!(unreadable.is_final() && unreadable.needs_a_person());
        // Of a proxy before the API server, perhaps.
        let other = of_admission(400, "Failed to parse error data", "400 Bad Request");
        assert!(!other.is_final() && other.needs_a_person());
        let claim = Status::failure(quantity, "BadRequest").with_code(400);
        let claim = Error::request("creating a claim", Kind::PersistentVolumeClaim)(kube::Error::Api(claim.boxed()));
        assert!(!claim.is_final() && claim.needs_a_person());
    }

    #[test]
    fn a_webhook_that_does_not_answer_is_told_from_one_that_denies() {
        let words = r#"Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post "https://10.0.0.9:443/mutate--v1-pod?timeout=10s": dial tcp 10.0.0.9:443: connect: connection refused"#;
        let error = of_admission(500, "InternalError", words);
        assert!(!error.needs_a_person() && error.unanswered_webhook().is_some());
    }

    #[test]
    fn a_refusal_is_told_in_the_api_servers_words_where_trying_again_does_not_help() {
        let status = Status::failure("exceeded quota: gpus", "Forbidden").with_code(403);
        let error = Error::request("creating Pod a-actor-0", Kind::Pod)(kube::Error::Api(status.boxed()));
        let words = "creating Pod a-actor-0: exceeded quota: gpus";
        assert_eq!(error.refused().as_deref(), Some(words));
        assert_eq!(answer("Conflict", 409).refused(), None);
    }

    #[test]
    fn a_budget_that_cannot_be_had_or_deleted_leaves_the_actor_unguarded_and_nobody_waits() {
        let taken = |kind, name: &str| Error::NameTaken {
            kind,
            name: name.into(),
            owner: "nobody".into(),
        };
        let pod = "Pod a-actor-0 belongs to nobody; the job waits until it is gone";
        assert_eq!(taken(Kind::Pod, "a-actor-0").refused().as_deref(), Some(pod));
        let budget = taken(Kind::PodDisruptionBudget, "a-actor");
        let answer = |message: &str| kube::Error::Api(Status::failure(message, "Forbidden").with_code(403).boxed());
        let made = Error::request("creating PodDisruptionBudget a-actor", Kind::PodDisruptionBudget)(answer("no"));
        for error in [budget, made] {
            let words = error.refused().unwrap();
            assert!(
                error.is_of_budget() && words.contains("a drain may evict its actor"),
                "{words}"
            );
            assert!(!words.contains("the job waits"), "{words}");
        }
        let deleted = Error::deleting(Kind::PodDisruptionBudget, "a-actor")(answer("no"));
        assert!(deleted.is_of_budget());
        let words = "deleting PodDisruptionBudget a-actor: no; no pod waits for it, but drains and alerts go by that budget until it is gone";
        assert_eq!(deleted.refused().as_deref(), Some(words));
    }

    #[test]
    fn an_object_of_the_job_that_has_lost_labels_is_told_of_with_the_command_that_puts_them_back() {
        let lost = |kind| Error::Unlabelled {
            kind,
            name: "a-actor-0".into(),
            lost: vec!["ppojob.dev/job=a".into(), "ppojob.dev/index=0".into()],
        };
        let words = "Pod a-actor-0 is the job's own and has lost labels by which the operator knows it (ppojob.dev/job=a, \
                     ppojob.dev/index=0); the job waits until they are back or it is gone: `kubectl label pods a-actor-0 --overwrite \
                     ppojob.dev/job=a ppojob.dev/index=0`, or delete it";
        assert_eq!(lost(Kind::Pod).refused().as_deref(), Some(words));
        let workload = lost(Kind::KueueWorkload).to_string();
        assert!(
            workload.contains("kubectl label workloads.kueue.x-k8s.io"),
            "{workload}"
        );
        let budget = lost(Kind::PodDisruptionBudget);
        assert!(
            budget.is_of_budget() && budget.to_string().contains("the job does not wait"),
            "{budget}"
        );
    }

    #[test]
    fn a_deletion_that_is_refused_ends_no_job_and_is_not_of_a_gang_that_it_wants() {
        let refused =
            |kind| Error::deleting(kind, "a")(kube::Error::Api(Status::failure("", "Invalid").with_code(422).boxed()));
        assert!(!refused(Kind::Pod).is_final());
        assert!(!refused(Kind::KueueWorkload).is_of_gang());
    }

    #[test]
    fn a_kind_that_was_uninstalled_needs_a_person() {
        // The answer for a kind that is not served is plain text, without a reason.
        let gone = making(Kind::KueueWorkload, "Failed to parse error data", 404);
        assert!(gone.needs_a_person() && gone.is_of_unserved_gang());
        // What else is not found went with its job.
        assert!(!answer("NotFound", 404).needs_a_person());
    }

    #[test]
    fn every_kind_of_error_is_counted_from_the_start() {
        let rights = r#"pods is forbidden: User "system:serviceaccount:ppo:ppo-operator" cannot create resource "pods" in API group """#;
        let errors = [
            answer("Conflict", 409),
            answer("TooManyRequests", 429),
            of_admission(403, "Forbidden", rights),
            answer("InternalError", 500),
            answer("Invalid", 422),
            Error::request("a pod", None)(kube::Error::LinesCodecMaxLineLengthExceeded),
            Error::NameTaken {
                kind: Kind::Pod,
                name: "a".into(),
                owner: "b".into(),
            },
            Error::Stale,
        ];
        assert_eq!(errors.map(|error| error.kind()), Error::KINDS);
        let unlisted = Error::Unlisted {
            kind: Kind::KueueWorkload,
            namespace: "n".into(),
        };
        for error in [Error::Late { seconds: 60 }, unlisted] {
            assert!(Error::KINDS.contains(&error.kind()), "{error}");
        }
        // Of these the job's user is told, and nobody who runs the operator.
        for (code, reason, message) in [
            (
                403,
                "Forbidden",
                r#"pods "a-actor-0" is forbidden: exceeded quota: gpus"#,
            ),
            (
                500,
                "InternalError",
                r#"admission webhook "validate.kyverno.svc-fail" denied the request: blocked"#,
            ),
        ] {
            assert_eq!(of_admission(code, reason, message).kind(), "refused", "{message}");
        }
    }
}
