//! What Go modules bring besides programs: definitions, manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;

use crate::run;

/// The definitions that a Go package ships at `path`, a file or a folder of files. `module` is the folder, seen from
/// `tests/cluster`, whose go.mod pins the package.
///
/// # Errors
/// When Go cannot say where the package is, or a file is no definition.
pub async fn definitions(module: &str, package: &str, path: &str) -> Result<Vec<CustomResourceDefinition>> {
    let path = source(module, package).await?.join(path);
    if path.is_file() {
        return documents(&path);
    }
    let listing = std::fs::read_dir(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut files: Vec<PathBuf> = listing.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut crds = Vec::new();
    for file in files {
        crds.extend(documents(&file)?);
    }
    Ok(crds)
}

/// The sources of a Go package that a module pins.
pub(crate) async fn source(module: &str, package: &str) -> Result<PathBuf> {
    let go = match std::env::var_os("PATH") {
        Some(path) if std::env::split_paths(&path).any(|folder| folder.join("go").exists()) => "go",
        _ => "/usr/local/go/bin/go",
    };
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster").join(module);
    let module = module.display().to_string();
    // The programs come from the same module: what is downloaded here is needed there.
    let download = ["-C", &module, "mod", "download", package];
    run(Path::new(go), &download, &BTreeMap::new()).await?.success()?;
    let list = ["-C", &module, "list", "-m", "-f", "{{.Dir}}", package];
    let folder = run(Path::new(go), &list, &BTreeMap::new()).await?.success()?;
    match folder.trim() {
        "" => bail!("Go does not say where {package} of {module} is"),
        folder => Ok(folder.into()),
    }
}

/// The YAML documents of a file.
pub(crate) fn documents<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let documents = serde_yaml::Deserializer::from_str(&text).map(Option::<T>::deserialize);
    let read: Result<Vec<Option<T>>, _> = documents.collect();
    let read = read.with_context(|| format!("{} is not what was expected", file.display()))?;
    Ok(read.into_iter().flatten().collect())
}
