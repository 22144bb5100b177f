//! Errors of the API server, explained to the person who typed the command.

use std::time::Duration;

use anyhow::anyhow;
use kube::Error;

/// How long the API server may be away from a command that waits.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a request was for: `get ppojobs in namespace research`.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// As in RBAC: get, list, patch.
    pub verb: &'static str,
    /// As in RBAC: `ppojobs`, `pods/log`.
    pub resource: &'static str,
    /// Empty: all of them.
    pub namespace: &'a str,
    /// The API server's address.
    pub url: &'a str,
}

impl Request<'_> {
    /// Why the request failed, and what would help.
    pub fn refused(&self, error: Error) -> anyhow::Error {
        let Self {
            verb, resource, url, ..
        } = self;
        let place = match self.namespace {
            "" => "in all namespaces".to_string(),
            namespace => format!("in namespace {namespace}"),
        };
        match error {
            Error::Api(status) if status.code == 401 => {
                anyhow!("{url} does not know you: the credentials of this context are wrong or have expired")
            }
            Error::Api(status) if status.code == 403 && status.message.contains("cannot impersonate") => anyhow!(
                "forbidden: you may not act as somebody else (--as, or `as` in the kubeconfig); whoever runs the cluster can grant the \
                 verb `impersonate` ({})",
                status.message
            ),
            Error::Api(status) if status.code == 403 => anyhow!(
                "forbidden: you may not {verb} {resource} {place}; whoever runs the cluster can grant the verb `{verb}` on \
                 `{resource}` ({})",
                status.message
            ),
            Error::Api(status) if status.code == 404 && resource.starts_with("ppojobs") => anyhow!(
                "this cluster knows no PpoJobs: install the operator, or choose another cluster with --context ({url})"
            ),
            Error::Api(status) => anyhow!("{url} refuses to {verb} {resource} {place}: {}", status.message),
            Error::Auth(error) => anyhow!("cannot log in at {url}: {error}"),
            Error::Service(error) => unanswered(url, &chain(error.as_ref())),
            Error::HyperError(error) => unanswered(url, &chain(&error)),
            // Jobs are decoded by `unreadable.rs`, so it is no field of theirs.
            Error::SerdeError(error) => anyhow!(
                "{url} answered with {resource} that cannot be read: {error}; is there a proxy before the API server, or is the cluster \
                 newer than this plugin?"
            ),
            other => anyhow!(other).context(format!("cannot {verb} {resource} {place} at {url}")),
        }
    }
}

fn unanswered(url: &str, words: &str) -> anyhow::Error {
    // EMFILE: each log of a job of many pods is a connection.
    match words.contains("os error 24") {
        true => anyhow!("this shell allows no more connections: raise `ulimit -n`, or choose fewer pods ({words})"),
        false => anyhow!("no cluster answers at {url}: {words}"),
    }
}

/// An error with its causes: hyper's own text stops at `client error (Connect)`.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}

/// Whether the API server said that there is no such object.
pub fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// Whether asking again gets the same answer: the API server does not know who asks, they may not, or there is no such thing.
pub fn is_lasting(error: &Error) -> bool {
    matches!(error, Error::Api(status) if matches!(status.code, 401 | 403 | 404))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn words(code: u16, message: &str) -> String {
        let request = Request {
            verb: "patch",
            resource: "ppojobs",
            namespace: "research",
            url: "https://10.0.0.1:6443",
        };
        let status = Status {
            code,
            message: message.into(),
            ..Status::default()
        };
        request.refused(Error::Api(Box::new(status))).to_string()
    }

    #[test]
    fn forbidden_names_the_verb_the_resource_and_the_namespace() {
        let words = words(
            403,
            r#"ppojobs.ppojob.dev "a" is forbidden: User "eve" cannot patch resource "ppojobs""#,
        );
        assert!(
            words.contains("you may not patch ppojobs in namespace research"),
            "{words}"
        );
        assert!(words.contains(r#"User "eve""#), "{words}");
    }

    #[test]
    fn who_may_not_act_as_another_is_not_told_to_ask_for_the_rights_of_the_other() {
        let words = words(
            403,
            r#"users "bob" is forbidden: User "eve" cannot impersonate resource "users" in API group "" at the cluster scope"#,
        );
        assert!(
            words.contains("verb `impersonate`") && !words.contains("`patch`"),
            "{words}"
        );
        assert!(words.contains(r#"User "eve""#), "{words}");
    }

    #[test]
    fn a_cluster_without_the_crd_is_told_from_a_job_that_does_not_exist() {
        assert!(words(404, "the server could not find the requested resource").contains("install the operator"));
    }

    #[test]
    fn an_answer_that_is_no_json_is_not_taken_for_a_plugin_of_another_version() {
        let error = serde_json::from_str::<Status>("<html>").unwrap_err();
        let request = Request {
            verb: "list",
            resource: "pods",
            namespace: "research",
            url: "https://10.0.0.1:6443",
        };
        let words = request.refused(Error::SerdeError(error)).to_string();
        assert!(
            words.contains("pods that cannot be read") && words.contains("proxy"),
            "{words}"
        );
    }

    #[test]
    fn a_limit_of_this_machine_is_not_called_a_cluster_that_does_not_answer() {
        let request = Request {
            verb: "get",
            resource: "pods/log",
            namespace: "research",
            url: "https://10.0.0.1:6443",
        };
        let said = |code: i32| {
            let error = std::io::Error::from_raw_os_error(code);
            request.refused(Error::Service(error.into())).to_string()
        };
        assert!(said(24).contains("`ulimit -n`"), "{}", said(24));
        assert!(
            said(111).contains("no cluster answers at https://10.0.0.1:6443"),
            "{}",
            said(111)
        );
    }

    #[test]
    fn expired_credentials_are_named() {
        assert!(words(401, "Unauthorized").contains("expired"));
    }
}
