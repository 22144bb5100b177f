//! A role's pod template.

use std::ops::Deref;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{field, kubernetes};

/// A pod template as it was given, and as Kubernetes' own type reads it. Fields that the type does not have, and quantities that are none, are
/// told by [`validate`](crate::validate()): the CRD's schema leaves them open.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTemplate {
    given: Value,
    read: PodTemplateSpec,
}

impl PodTemplate {
    /// Paths of the fields that Kubernetes does not have, from the template on.
    pub fn unknown(&self) -> Vec<String> {
        self.beyond(&self.read)
    }

    /// Quantities that Kubernetes does not read, and its API server finds only when a pod is made: the path of each from the template on,
    /// and what is wrong with it.
    pub fn wrong_quantities(&self) -> Vec<(String, String)> {
        let read = serde_json::to_value(&self.read).unwrap_or_default();
        let wrong = kubernetes::wrong_quantities(&read).into_iter();
        let in_words =
            |text: String| format!("{text:?} is not a quantity: want a number and a unit, such as 500m, 16G or 16Gi");
        wrong
            .map(|(steps, text)| (field::path(&steps), in_words(text)))
            .collect()
    }

    /// Paths of the fields that a part of the template lacks.
    pub fn beyond(&self, part: &PodTemplateSpec) -> Vec<String> {
        let part = serde_json::to_value(part).unwrap_or_default();
        let lost = kubernetes::lost(&self.given, &part);
        lost.iter().map(|steps| field::path(steps)).collect()
    }
}

impl Deref for PodTemplate {
    type Target = PodTemplateSpec;

    fn deref(&self) -> &PodTemplateSpec {
        &self.read
    }
}

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Value::deserialize(deserializer)?;
        let read = serde_path_to_error::deserialize(&given).map_err(D::Error::custom)?;
        Ok(Self { given, read })
    }
}

impl Serialize for PodTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.given.serialize(serializer)
    }
}

/// The full schema of a pod template has 10000 lines and would push the CRD over what `kubectl apply` can annotate.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
