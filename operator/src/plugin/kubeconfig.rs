//! The files that say which clusters there are, read and merged as kubectl does (client-go's `tools/clientcmd/loader.go`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use kube::config::{Kubeconfig, KubeconfigError};

use super::cli::ConnectionArgs;
use super::proxy;

/// What the file of the flag says, else those of the environment.
pub fn read(args: &ConnectionArgs) -> Result<Kubeconfig> {
    match &args.kubeconfig {
        Some(file) => {
            Kubeconfig::read_from(file).with_context(|| format!("cannot use --kubeconfig {}", file.display()))
        }
        None => of_environment().map_err(|error| no_cluster(&error)),
    }
}

/// What the files of KUBECONFIG say; where it names none, the one of the home folder.
pub fn of_environment() -> Result<Kubeconfig, KubeconfigError> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let files: Vec<PathBuf> = std::env::split_paths(&listed)
        .filter(|file| !file.as_os_str().is_empty())
        .collect();
    match files.is_empty() {
        true => Kubeconfig::read(),
        false => merged(&files),
    }
}

/// The files as one. kube wants each of them to exist; for kubectl those that do are all there are.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let read = files.iter().map(|file| of_file(file));
    let (there, missing): (Vec<_>, Vec<_>) = read.partition(|file| !file.as_ref().is_err_and(is_missing));
    match missing.into_iter().next() {
        Some(first) if there.is_empty() => first,
        _ => there.into_iter().try_fold(Kubeconfig::default(), |merged, next| {
            next.and_then(|next| merged.merge(next))
        }),
    }
}

/// An empty current context, as `kubectl config unset` leaves it, is none: the next file's counts.
fn of_file(file: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut read = Kubeconfig::read_from(file)?;
    read.current_context = read.current_context.filter(|context| !context.is_empty());
    Ok(read)
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(error, KubeconfigError::ReadConfig(cause, _) if cause.kind() == ErrorKind::NotFound)
}

/// Why there is no cluster to talk to, and what helps.
pub fn no_cluster(error: &KubeconfigError) -> anyhow::Error {
    if let Some(misread) = proxy::misread(error) {
        return misread;
    }
    let why = match error {
        KubeconfigError::ReadConfig(_, path) if is_missing(error) => format!("{} does not exist", path.display()),
        other => other.to_string(),
    };
    anyhow!("no cluster is configured: {why}; set KUBECONFIG, or give --kubeconfig FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_exist_are_passed_over_unless_none_does() {
        let folder = std::env::temp_dir().join(format!("kubectl-ppo-kubeconfig-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [one, two, missing] = ["one", "two", "missing"].map(|name| folder.join(name));
        let text = |context: &str, cluster: &str| {
            format!(
                "{{apiVersion: v1, kind: Config, current-context: '{context}', users: [], contexts: [], \
                 clusters: [{{name: {cluster}, cluster: {{server: 'https://{cluster}'}}}}]}}"
            )
        };
        std::fs::write(&one, text("", "a")).unwrap();
        std::fs::write(&two, text("east", "b")).unwrap();
        let known = merged(&[missing.clone(), one, two]).unwrap();
        let none = merged(std::slice::from_ref(&missing)).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        let clusters: Vec<&str> = known.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        assert_eq!(clusters, ["a", "b"]);
        assert_eq!(known.current_context.as_deref(), Some("east"));
        let words = no_cluster(&none).to_string();
        assert!(
            words.contains(&format!("{} does not exist", missing.display())),
            "{words}"
        );
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_an_error_however_many_others_there_are() {
        let file = std::env::temp_dir().join(format!("kubectl-ppo-no-kubeconfig-{}", std::process::id()));
        std::fs::write(&file, "clusters: 8").unwrap();
        let read = merged(&["/nowhere".into(), file.clone()]);
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(read, Err(KubeconfigError::Parse(_))), "{read:?}");
    }

    #[test]
    fn a_kubeconfig_that_does_not_exist_is_named_once_and_with_what_helps() {
        let missing = KubeconfigError::ReadConfig(ErrorKind::NotFound.into(), "/home/me/.kube/config".into());
        assert_eq!(
            no_cluster(&missing).to_string(),
            "no cluster is configured: /home/me/.kube/config does not exist; set KUBECONFIG, or give --kubeconfig FILE"
        );
        let without_context = no_cluster(&KubeconfigError::CurrentContextNotSet).to_string();
        assert!(
            without_context.contains("failed to determine current context; set KUBECONFIG"),
            "{without_context}"
        );
    }
}
