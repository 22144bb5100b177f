//! Checks that every pod of a role has the same model from a run's first step to its last. A pod loads it each time that it starts, by
//! the name of a branch or folder, and by then that name may lead to another model.

use std::sync::OnceLock;

/// The model that answers have to be computed with, by its digest.
#[derive(Clone, Debug)]
pub struct SameModel {
    /// Its field in a manifest.
    field: &'static str,
    digest: OnceLock<String>,
}

impl SameModel {
    /// The one at `field` of the manifest with the digest `known` from a checkpoint of the run; None: that of whoever answers first.
    pub fn new(field: &'static str, known: Option<&str>) -> Self {
        let digest = known.map(|known| OnceLock::from(known.to_owned()));
        Self {
            field,
            digest: digest.unwrap_or_default(),
        }
    }

    /// Its digest. None: nobody has said it yet.
    pub fn digest(&self) -> Option<&str> {
        self.digest.get().map(String::as_str)
    }

    /// Compares that of an answer. A server that does not say its digest, as one of another project, is taken at its word.
    ///
    /// # Errors
    /// When it is another one: what to do.
    pub fn check(&self, answered: Option<&str>) -> Result<(), String> {
        let Some(answered) = answered else { return Ok(()) };
        let digest = self.digest.get_or_init(|| answered.to_owned());
        match digest == answered {
            true => Ok(()),
            false => Err(format!(
                "it has another {field} than the run began with: give {field}.hub.revision the commit that it began with, or its path the \
                 same files on every node",
                field = self.field
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::post;
    use axum::{Json, Router};
    use ppo_crds::spec::Role;

    use super::*;
    use crate::manifest::Invalid;
    use crate::pods::{Caller, Member, Members};
    use crate::reference::protocol::{LogprobsResponse, PATH};
    use crate::roles::Pool;
    use crate::stop::StopFlag;
    use crate::telemetry::Live;

    /// A pod whose answers are empty and have a digest: its address.
    async fn pod(digest: &'static str) -> String {
        let answer = move || async move {
            Json(LogprobsResponse {
                logprobs: Vec::new(),
                digest: Some(digest.to_owned()),
            })
        };
        Member::serving("", Router::new().route(PATH, post(answer)))
            .await
            .address
    }

    #[tokio::test]
    async fn a_pod_with_another_model_ends_the_run_by_its_name() {
        let pods = [pod("1").await, pod("2").await];
        let members = Members::of("math", Role::Reference, 2, &pods.join(",")).unwrap();
        let pool = Pool::new(
            (Role::Reference, SameModel::new("model.reference", Some("1"))),
            (members, 1),
            Caller::new("token".into()).unwrap(),
            StopFlag::default(),
            Arc::new(Live::new("test", 1)),
        );
        let questions = ["asked of the first", "asked of the second"];
        let read = |_: usize, answer: LogprobsResponse| Ok(answer.logprobs);
        assert_eq!(pool.ask_all(PATH, &questions[..1], read).await.unwrap().len(), 1);
        let refused = pool.ask_all(PATH, &questions, read).await.unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        assert!(
            words.starts_with(&format!("reference {} (", pods[1]))
                && words.contains("another model.reference than the run began with"),
            "{words}"
        );
    }

    #[test]
    fn the_first_answer_says_what_all_others_have_to_be_computed_with() {
        let model = SameModel::new("model.reference", None);
        model.check(None).unwrap();
        assert_eq!(model.digest(), None);
        model.check(Some("1")).unwrap();
        model.check(Some("1")).unwrap();
        model.check(None).unwrap();
        let refused = model.check(Some("2")).unwrap_err();
        assert!(
            refused.contains("another model.reference than the run began with"),
            "{refused}"
        );
        assert_eq!(model.digest(), Some("1"));
    }

    #[test]
    fn what_a_checkpoint_knows_counts_before_any_answer() {
        let model = SameModel::new("model.reference", Some("1"));
        assert_eq!(model.digest(), Some("1"));
        model.check(Some("2")).unwrap_err();
        model.check(Some("1")).unwrap();
    }
}
