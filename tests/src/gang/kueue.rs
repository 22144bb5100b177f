//! Kueue with its webhooks on, reached by address: no cert-manager and no Service is needed for that.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::Path;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::credentials::write;
use crate::go_module::{documents, source};
use crate::ports::free_ports;
use crate::{ControlPlane, PATIENCE, Programs, wait_for};

/// The Go package.
pub(super) const PACKAGE: &str = "sigs.k8s.io/kueue";

/// The process.
pub(super) const PROCESS: &str = "kueue";

/// Where Kueue's manager looks for a key pair even with metrics off; no option changes it.
const METRICS_CERTIFICATES: &str = "/etc/kueue/metrics/certs";

/// Definitions with two versions.
const CONVERTED: [&str; 5] = [
    "localqueues",
    "clusterqueues",
    "cohorts",
    "workloads",
    "multikueueclusters",
];

pub(super) async fn start(cluster: &ControlPlane, programs: &Programs) -> Result<()> {
    let [webhooks, health] = free_ports()?;
    let host = cluster.host()?;
    let folder = cluster.folder()?;
    let pair = rcgen::generate_simple_self_signed(vec![host.to_string()])?;
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let certificates = folder.join("kueue-certificates");
    write_pair(&certificates, &certificate, &key)?;
    let fixed = Path::new(METRICS_CERTIFICATES);
    if !fixed.join("tls.key").exists() {
        write_pair(fixed, &certificate, &key).context("Kueue wants a key pair there; run the tests as root once")?;
    }
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": format!("127.0.0.1:{health}")},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host.to_string(), "port": webhooks, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "internalCertManagement": {"enable": false},
        "featureGates": {"VisibilityOnDemand": false},
        "integrations": {"frameworks": ["batch/job"]},
    });
    write(&folder.join("kueue.yaml"), &configuration.to_string())?;
    let namespaces: Api<Namespace> = Api::all(cluster.client().await?);
    let namespace = serde_json::from_value(json!({"metadata": {"name": "kueue-system"}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let argv = vec![
        programs.path("kueue")?.display().to_string(),
        "--config=kueue.yaml".into(),
    ];
    let kubeconfig = ("KUBECONFIG".to_string(), "kubeconfig".to_string());
    cluster.spawn(PROCESS, argv, BTreeMap::from([kubeconfig])).await?;
    wait_for("Kueue's webhooks to listen", PATIENCE, async || {
        Ok(TcpStream::connect((host, webhooks)).await?)
    })
    .await
    .with_context(|| log(folder))?;
    register(cluster, SocketAddrV4::new(host, webhooks), &certificate).await
}

fn write_pair(folder: &Path, certificate: &str, key: &str) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    write(&folder.join("tls.crt"), certificate)?;
    write(&folder.join("tls.key"), key)
}

fn log(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("kueue.log")).unwrap_or_default();
    let tail: Vec<&str> = log.lines().rev().take(15).collect();
    tail.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Kueue's own manifest of webhooks, with an address instead of a Service.
async fn register(cluster: &ControlPlane, address: SocketAddrV4, certificate: &str) -> Result<()> {
    let client = cluster.client().await?;
    let authority = json!(ByteString(certificate.as_bytes().to_vec()));
    let url = |path: &str| format!("https://{address}{path}");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in CONVERTED {
        let webhook = json!({"clientConfig": {"url": url("/convert"), "caBundle": authority},
                             "conversionReviewVersions": ["v1"]});
        let patch = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
        let name = format!("{name}.kueue.x-k8s.io");
        crds.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let manifest = source("kueue", PACKAGE)
        .await?
        .join("config/components/webhook/manifests.yaml");
    for mut configuration in documents::<DynamicObject>(&manifest)? {
        let Some(webhooks) = configuration.data["webhooks"].as_array_mut() else {
            bail!("{} holds something without webhooks", manifest.display());
        };
        // Those of Kueue's own kinds; the others are of jobs that nobody runs here.
        webhooks.retain(|webhook| path(webhook).contains("-kueue-x-k8s-io-v1beta2-"));
        for webhook in webhooks {
            let address = url(path(webhook));
            webhook["clientConfig"] = json!({"url": address, "caBundle": authority});
        }
        let resource = ApiResource::from_gvk(
            &configuration
                .types
                .clone()
                .context("an object without a kind")?
                .try_into()?,
        );
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.create(&PostParams::default(), &configuration).await?;
    }
    Ok(())
}

fn path(webhook: &Value) -> &str {
    webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default()
}
