//! The JSON schemas that kubeconform judges by: the OpenAPI document of the Kubernetes that the tests run against, the
//! definitions of prometheus-operator, and our own. Both foreign ones lie in their projects' Go modules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::tools::{complete, name, repository};

/// Modules of `tests/cluster`, each with the package that it pins.
const KUBERNETES: (&str, &str) = ("kubernetes", "k8s.io/kubernetes");
const PROMETHEUS_OPERATOR: (&str, &str) = ("prometheus", "github.com/prometheus-operator/prometheus-operator");

// Beside what is built: a static is never dropped, and a temporary folder would stay after every run.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chart-schemas");
    // Of another version's definitions nothing may be left.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let openapi = module(&pinned(KUBERNETES)).join("api/openapi-spec/swagger.json");
    kubernetes(&read_json(&openapi), &folder);
    let monitoring = module(&pinned(PROMETHEUS_OPERATOR)).join("example/prometheus-operator-crd");
    for kind in ["podmonitors", "prometheusrules", "servicemonitors"] {
        definition(&monitoring.join(format!("monitoring.coreos.com_{kind}.yaml")), &folder);
    }
    definition(&repository().join("crds/ppojob.yaml"), &folder);
    folder
});

/// The folder of the schemas, as kubeconform's `-schema-location` names them.
pub fn location() -> String {
    format!(
        "{}/{{{{.ResourceKind}}}}-{{{{.Group}}}}-{{{{.ResourceAPIVersion}}}}.json",
        FOLDER.display()
    )
}

/// A Go package with the version that the tests run against.
fn pinned((module, package): (&str, &str)) -> String {
    let file = repository().join(format!("tests/cluster/{module}/go.mod"));
    let text = fs::read_to_string(&file).unwrap();
    let versions = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(&format!("{package} v"))?.split(' ').next());
    let versions: Vec<&str> = versions.collect();
    assert_eq!(versions.len(), 1, "{package} in {}: {versions:?}", file.display());
    format!("{package}@v{}", versions[0])
}

/// The folder of a Go module, fetched when this machine has not got it.
fn module(path: &str) -> PathBuf {
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| Command::new(go).arg("version").output().is_ok());
    let go = go.unwrap_or_else(|| panic!("Go is needed to fetch {path}: install it from https://go.dev/dl"));
    let scratch = tempfile::tempdir().unwrap();
    let said = complete(
        Command::new(go)
            .args(["mod", "download", "-json", path])
            .current_dir(scratch.path())
            .env("GOFLAGS", ""),
        "",
    );
    let answer: Value = serde_json::from_str(&said.unless_it_failed()).unwrap();
    answer["Dir"].as_str().unwrap_or_else(|| panic!("{answer}")).into()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// One file per kind that names its part of a file with all definitions.
fn kubernetes(openapi: &Value, folder: &Path) {
    let mut definitions = openapi["definitions"].clone();
    for (at, definition) in definitions.as_object_mut().unwrap() {
        let kinds = definition["x-kubernetes-group-version-kind"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for kind in kinds {
            let of = |key: &str| kind[key].as_str().unwrap().to_lowercase();
            // kubeconform takes the version for the group of what has none.
            let group = if of("group").is_empty() {
                of("version")
            } else {
                of("group")
            };
            let file = folder.join(format!("{}-{group}-{}.json", of("kind"), of("version")));
            let reference = json!({"$ref": format!("definitions.json#/definitions/{at}")});
            fs::write(file, reference.to_string()).unwrap();
        }
        strict(definition);
    }
    // The OpenAPI document calls these strings or objects; they are whatever their docs say.
    for (at, types) in [
        (
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
            json!(["string", "integer"]),
        ),
        (
            "io.k8s.apimachinery.pkg.api.resource.Quantity",
            json!(["string", "number"]),
        ),
    ] {
        definitions[at] = json!({"type": types});
    }
    fs::write(
        folder.join("definitions.json"),
        json!({"definitions": definitions}).to_string(),
    )
    .unwrap();
}

/// The schema of a custom resource.
fn definition(path: &Path, folder: &Path) {
    let crd: Value = serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let spec = &crd["spec"];
    let of = |value: &Value| {
        value
            .as_str()
            .unwrap_or_else(|| panic!("{}", name(path)))
            .to_lowercase()
    };
    for version in spec["versions"].as_array().unwrap() {
        let mut schema = version["schema"]["openAPIV3Schema"].clone();
        strict(&mut schema);
        schema["properties"]["metadata"] =
            json!({"$ref": "definitions.json#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"});
        let (kind, group, version) = (of(&spec["names"]["kind"]), of(&spec["group"]), of(&version["name"]));
        fs::write(
            folder.join(format!("{kind}-{group}-{version}.json")),
            schema.to_string(),
        )
        .unwrap();
    }
}

/// Refuses fields that a schema does not name, as the API server does with `fieldValidation=Strict`.
fn strict(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    if schema.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        schema.insert("type".into(), json!(["string", "integer"]));
    }
    if schema.contains_key("properties") && !schema.contains_key("additionalProperties") && !open {
        schema.insert("additionalProperties".into(), json!(false));
    }
    let names = schema.get_mut("properties").and_then(Value::as_object_mut).into_iter();
    names.flat_map(Map::values_mut).for_each(strict);
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner) {
            strict(inner);
        }
    }
}
