//! Prometheus as a cluster has it that scrapes jobs: a real prometheus-operator makes a real Prometheus of the monitors and
//! rules that it finds, and a test asks that one.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use http::Request;
use kube::Client;
use reqwest::Url;
use serde_json::{Value, json};

use crate::credentials::write;
use crate::{ControlPlane, Image, PATIENCE, Programs, RealCluster, definitions, install_crd, wait_for};

/// Where it runs: what NetworkPolicies have to let in.
pub const MONITORING: &str = "monitoring";

/// Label `release` of the monitors and rules that it takes.
pub const RELEASE: &str = "monitoring";

/// The folder of `tests/cluster` with both, and the Go package that has the definitions.
const MODULE: &str = "prometheus";
const PACKAGE: &str = "github.com/prometheus-operator/prometheus-operator";

/// The kinds that prometheus-operator watches to make a Prometheus; those of Alertmanager, Thanos and agents may be missing.
const KINDS: [&str; 5] = [
    "podmonitors",
    "probes",
    "prometheuses",
    "prometheusrules",
    "servicemonitors",
];

/// Its process on the node, and its log's name.
const OPERATOR: &str = "prometheus-operator";

const PROMETHEUS_IMAGE: &str = "localhost/prometheus:test";
const RELOADER_IMAGE: &str = "localhost/prometheus-config-reloader:test";

/// A Prometheus in a pod of the cluster.
pub struct Prometheus<'a> {
    cluster: &'a RealCluster,
    client: Client,
}

impl ControlPlane {
    /// Makes the kinds known that prometheus-operator brings, so that a chart can be installed that has some.
    ///
    /// # Errors
    /// When Go cannot say where they are, or the API server refuses one.
    pub async fn install_monitoring_kinds(&self) -> Result<()> {
        let client = self.client().await?;
        for kind in KINDS {
            let file = format!("example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml");
            for definition in definitions(MODULE, PACKAGE, &file).await? {
                install_crd(&client, &definition).await?;
            }
        }
        Ok(())
    }
}

impl<'a> Prometheus<'a> {
    /// Starts both; the kinds are known already. What has the label `release` is scraped and evaluated, in any namespace;
    /// `further` are more scrape configurations, in Prometheus' own words.
    ///
    /// # Errors
    /// When one does not come up, with what its log or pod says.
    pub async fn start(cluster: &'a RealCluster, further: &Value) -> Result<Self> {
        let programs = tokio::task::spawn_blocking(|| Programs::of(&[MODULE])).await??;
        let control_plane = cluster.control_plane();
        let operator = vec![
            programs.path("operator")?.display().to_string(),
            format!("--prometheus-config-reloader={RELOADER_IMAGE}"),
            "--web.listen-address=127.0.0.1:0".into(),
        ];
        let kubeconfig = ("KUBECONFIG".to_owned(), "kubeconfig".to_owned());
        control_plane
            .spawn(OPERATOR, operator, BTreeMap::from([kubeconfig]))
            .await?;
        for (name, program) in [
            (PROMETHEUS_IMAGE, "prometheus"),
            (RELOADER_IMAGE, "prometheus-config-reloader"),
        ] {
            let place = format!("/bin/{program}");
            let image = Image::of(name, &programs.path(program)?, &place).with(&["--entrypoint", &place]);
            cluster.load(&image).await?;
        }
        let file = control_plane.folder()?.join("prometheus.yaml");
        write(&file, &objects(further)?)?;
        let file = file.display().to_string();
        control_plane.kubectl(&["apply", "-f", &file]).await?.success()?;
        let started = Self {
            cluster,
            client: control_plane.client().await?,
        };
        started.wait_until_ready().await?;
        Ok(started)
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let control_plane = self.cluster.control_plane();
        let ready = wait_for("Prometheus to answer", 2 * PATIENCE, async || {
            self.get("api/v1/status/runtimeinfo", &[]).await
        });
        let Err(late) = ready.await else { return Ok(()) };
        let describe = ["describe", "prometheuses,pods", "--namespace", MONITORING];
        let said = control_plane.kubectl(&describe).await?;
        let log = control_plane.log_of(OPERATOR);
        Err(late.context(said.stdout).context(log))
    }

    /// The field `data` of an answer of its HTTP API.
    ///
    /// # Errors
    /// When it does not answer, or says that the question is wrong.
    pub async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let proxy = format!("api/v1/namespaces/{MONITORING}/pods/prometheus-{RELEASE}-0:9090/proxy");
        let url = Url::parse_with_params(&format!("http://cluster/{proxy}/{path}"), parameters)?;
        let asked = format!("{}?{}", url.path(), url.query().unwrap_or_default());
        let answer: Result<Value, _> = self.client.request(Request::get(&asked).body(Vec::new())?).await;
        let mut answer = answer.with_context(|| format!("Prometheus was asked {path} {parameters:?}"))?;
        Ok(answer["data"].take())
    }

    /// Ends both.
    ///
    /// # Errors
    /// When the operator does not end.
    pub async fn stop(self) -> Result<()> {
        self.cluster.stop(OPERATOR).await?;
        let delete = ["delete", "namespace", MONITORING, "--wait=false"];
        self.cluster.control_plane().kubectl(&delete).await?.success().map(drop)
    }
}

/// The rights are those of prometheus-operator's example/rbac/prometheus, but for nodes and Ingresses, which no monitor of
/// pods and Services needs.
fn objects(further: &Value) -> Result<String> {
    let name = json!({"name": RELEASE, "namespace": MONITORING});
    let chosen = json!({"matchLabels": {"release": RELEASE}});
    let found = ["services", "endpoints", "pods"];
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": RELEASE},
            "rules": [
                {"apiGroups": [""], "resources": found, "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": RELEASE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RELEASE},
            "subjects": [{"kind": "ServiceAccount", "name": RELEASE, "namespace": MONITORING}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": name,
            "stringData": {"scrapes": serde_yaml::to_string(further)?},
        }),
        json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": name,
            "spec": {
                "image": PROMETHEUS_IMAGE, "imagePullPolicy": "Never", "serviceAccountName": RELEASE,
                "serviceMonitorNamespaceSelector": {}, "serviceMonitorSelector": chosen,
                "podMonitorNamespaceSelector": {}, "podMonitorSelector": chosen,
                "ruleNamespaceSelector": {}, "ruleSelector": chosen,
                "additionalScrapeConfigs": {"name": RELEASE, "key": "scrapes"},
                "evaluationInterval": "1s",
                "resources": {"requests": {"memory": "100Mi"}},
            },
        }),
    ];
    let documents: Vec<String> = objects.iter().map(serde_yaml::to_string).collect::<Result<_, _>>()?;
    Ok(documents.join("---\n"))
}
