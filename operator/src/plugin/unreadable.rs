//! A job that cannot be decoded: its field that is wrong, and what mends that.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject};
use kube::{Error, ResourceExt as _};
use ppo_crds::{CONTRACT_ANNOTATION, PpoJob};

use super::connection::Connection;
use crate::contract::CRD;

/// Why an object is no job: a field by its path, and what is wrong with it.
pub type Misfit = serde_path_to_error::Error<serde_json::Error>;

/// The job that an object is.
///
/// # Errors
/// The first field that has another type. The API server takes whatever a pod template holds.
pub fn decode(object: &DynamicObject) -> Result<PpoJob, Misfit> {
    let value = serde_json::to_value(object).unwrap_or_default();
    serde_path_to_error::deserialize(value)
}

/// What is wrong with the job of this name, what mends it, and what else may be the cause.
pub async fn explained(connection: &Connection, name: &str, misfit: &Misfit) -> anyhow::Error {
    let is_same = is_of_operators_version(connection).await.unwrap_or_default();
    anyhow::Error::msg(words(name, &connection.namespace, misfit, is_same))
}

fn words(name: &str, namespace: &str, misfit: &Misfit, is_same_version: bool) -> String {
    let place = match misfit.path().to_string().ends_with(".template") {
        true => "the job's pod template",
        false => "the job",
    };
    let otherwise = match is_same_version {
        true => "",
        false => {
            ". Where kubectl-ppo is of another version than the operator, install the plugin of the operator's version"
        }
    };
    format!(
        "PpoJob {name} cannot be read: {misfit}; correct that in {place} (`kubectl edit ppojob {name} -n {namespace}`): the operator does \
         nothing with a job that it cannot read{otherwise}"
    )
}

/// Whether the installed CRD is the one that this plugin was built with, as the operator asks of itself (`contract.rs`).
async fn is_of_operators_version(connection: &Connection) -> Result<bool, Error> {
    let crds: Api<CustomResourceDefinition> = Api::all(connection.client.clone());
    let crd = crds.get_metadata(CRD).await?;
    let own = ppo_crds::contract().map_err(Error::SerdeError)?;
    Ok(crd.annotations().get(CONTRACT_ANNOTATION) == Some(&own))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn misfit(spec: &Value) -> Misfit {
        let object = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "math"}, "spec": spec,
        });
        decode(&serde_json::from_value(object).unwrap()).unwrap_err()
    }

    #[test]
    fn a_template_that_cannot_be_read_is_named_with_its_field_and_the_version_only_where_it_differs() {
        let container = json!({"name": "worker", "env": [{"name": "A", "value": 8}]});
        let wrong = misfit(&json!({
            "model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
            "roles": {"reward": {"rules": [{"json": {}}]}, "actor": {"template": {"spec": {"containers": [container]}}}},
        }));
        let said = words("math", "ml", &wrong, true);
        for part in [
            "PpoJob math cannot be read: spec.roles.actor.template: spec.containers[0].env[0].value: invalid type: integer `8`",
            "correct that in the job's pod template (`kubectl edit ppojob math -n ml`)",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("plugin"), "{said}");
        let of_another = words("math", "ml", &wrong, false);
        assert!(
            of_another.contains("install the plugin of the operator's version"),
            "{of_another}"
        );
    }

    #[test]
    fn a_field_that_this_version_does_not_know_is_no_fault_of_a_template() {
        let said = words("math", "ml", &misfit(&json!({"colour": 1})), false);
        assert!(
            said.contains("spec: unknown field `colour`") || said.contains("spec.colour: unknown field"),
            "{said}"
        );
        assert!(
            said.contains("correct that in the job (") && said.contains("another version"),
            "{said}"
        );
    }
}
