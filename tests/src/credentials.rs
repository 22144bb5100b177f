//! Keys, tokens and kubeconfigs.

use std::net::SocketAddrV4;
use std::path::Path;

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use rand::Rng;
use serde_json::json;

/// Writes a new key pair, `service-accounts.key` and `service-accounts.pub`, with which service account tokens are signed.
pub(crate) fn write_signing_key(folder: &Path) -> Result<()> {
    let key = rcgen::KeyPair::generate().context("a signing key cannot be made")?;
    write(&folder.join("service-accounts.key"), &key.serialize_pem())?;
    write(&folder.join("service-accounts.pub"), &key.public_key_pem())
}

/// Writes the API server's token file: users with all rights, told apart by their names. Their tokens.
pub(crate) fn write_tokens<const N: usize>(path: &Path, users: [&str; N]) -> Result<[String; N]> {
    let tokens = users.map(|_| format!("{:032x}", rand::rng().random::<u128>()));
    let line = |(user, token): (&str, &String)| format!("{token},{user},{user},\"system:masters\"\n");
    let lines: String = users.into_iter().zip(&tokens).map(line).collect();
    write(path, &lines)?;
    Ok(tokens)
}

/// A kubeconfig for a server, trusting the certificates of `authority`.
pub(crate) fn kubeconfig(server: SocketAddrV4, authority: &Path, token: &str) -> Result<Kubeconfig> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": authority}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    Ok(serde_json::from_value(config)?)
}

/// Writes a file with the path in the error.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}
