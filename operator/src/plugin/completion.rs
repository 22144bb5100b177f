//! Completion in shells. kubectl's own asks the program `kubectl_complete-ppo` on the PATH what may follow `kubectl ppo` (kubectl's
//! `pkg/cmd/plugin/plugin_completion.go`): its arguments are the words so far, the one to be completed last. It prints a choice a line, with
//! what is said of it behind a tab, then a directive of Cobra's. A link of that name to this binary is that program.

mod words;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Args as _, Command, CommandFactory as _, FromArgMatches as _};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, ObjectMeta};
use kube::config::Kubeconfig;
use ppo_crds::spec::Role;
use tokio::time::timeout;

use super::cli::{Cli, ConnectionArgs};
use super::connection::Connection;
use super::{kubeconfig, printer};
use words::{Line, Wanted};

const PROGRAM: &str = "kubectl_complete-ppo";
/// Whoever pressed a key waits no longer for names.
const PATIENCE: Duration = Duration::from_secs(3);
/// Cobra's directives: the shell offers files where there is no choice, and it does not.
const FILES: &str = ":0";
const NO_FILES: &str = ":4";

/// A word that may stand there, and what is said of it.
type Choice = (String, String);

/// Whether this process was started to complete a line.
pub fn is_asked_for() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    Path::new(&program).file_stem() == Some(OsStr::new(PROGRAM))
}

/// Prints the choices.
pub async fn main() -> ExitCode {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    match printer::print(&answer(&words).await) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn answer(words: &[String]) -> String {
    let mut root = Cli::command();
    root.build();
    let line = words::read(&root, words);
    let (choices, directive) = choices(&line).await;
    let fits = choices.into_iter().filter(|(word, _)| word.starts_with(&line.begun));
    let mut text: String = fits
        .map(|(word, about)| format!("{}{word}\t{about}\n", line.prefix))
        .collect();
    text.push_str(directive);
    text.push('\n');
    text
}

async fn choices(line: &Line<'_>) -> (Vec<Choice>, &'static str) {
    match line.wanted {
        Wanted::Command(of) => (commands(of), NO_FILES),
        Wanted::Flag(of) => (flags(of), NO_FILES),
        Wanted::Value(arg) if ["file", "kubeconfig"].contains(&arg.get_id().as_str()) => (Vec::new(), FILES),
        Wanted::Value(arg) => (values(arg, &connection_args(&line.connection)).await, NO_FILES),
        Wanted::Nothing => (Vec::new(), NO_FILES),
    }
}

fn commands(of: &Command) -> Vec<Choice> {
    let shown = of.get_subcommands().filter(|command| !command.is_hide_set());
    shown
        .map(|command| (command.get_name().to_owned(), first_line(command.get_about())))
        .collect()
}

fn flags(of: &Command) -> Vec<Choice> {
    let shown = of.get_arguments().filter(|flag| !flag.is_hide_set());
    shown
        .filter_map(|flag| Some((format!("--{}", flag.get_long()?), first_line(flag.get_help()))))
        .collect()
}

fn first_line(text: Option<&impl ToString>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// What an argument may be. Names that cannot be asked for are none: a key that was pressed is no place for errors.
async fn values(arg: &Arg, to: &ConnectionArgs) -> Vec<Choice> {
    let of_kubeconfig = |names: fn(Kubeconfig) -> Vec<String>| kubeconfig::read(to).map(names).unwrap_or_default();
    let names = match arg.get_id().as_str() {
        "name" => timeout(PATIENCE, jobs(to)).await.ok().flatten().unwrap_or_default(),
        "namespace" => timeout(PATIENCE, namespaces(to))
            .await
            .ok()
            .flatten()
            .unwrap_or_default(),
        "context" => of_kubeconfig(|file| file.contexts.into_iter().map(|context| context.name).collect()),
        "cluster" => of_kubeconfig(|file| file.clusters.into_iter().map(|cluster| cluster.name).collect()),
        "user" => of_kubeconfig(|file| file.auth_infos.into_iter().map(|user| user.name).collect()),
        "role" => Role::ALL.iter().map(|role| role.name().to_owned()).collect(),
        "container" => [ppo_crds::pod::WORKER_CONTAINER, ppo_crds::pod::VLLM_CONTAINER]
            .map(String::from)
            .into(),
        _ => {
            let fixed = arg.get_possible_values().into_iter();
            return fixed
                .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
                .collect();
        }
    };
    names.into_iter().map(|name| (name, String::new())).collect()
}

async fn jobs(to: &ConnectionArgs) -> Option<Vec<String>> {
    let list = Connection::open(to)
        .await
        .ok()?
        .jobs()
        .list_metadata(&ListParams::default())
        .await;
    Some(named(list.ok()?.items.into_iter().map(|job| job.metadata)))
}

async fn namespaces(to: &ConnectionArgs) -> Option<Vec<String>> {
    let api: Api<Namespace> = Api::all(Connection::open(to).await.ok()?.client);
    let list = api.list_metadata(&ListParams::default()).await;
    Some(named(list.ok()?.items.into_iter().map(|namespace| namespace.metadata)))
}

fn named(objects: impl Iterator<Item = ObjectMeta>) -> Vec<String> {
    objects.filter_map(|object| object.name).collect()
}

/// The cluster that the line's own flags choose, asked with little patience.
fn connection_args(flags: &[String]) -> ConnectionArgs {
    let command = ConnectionArgs::augment_args(Command::new("connection").no_binary_name(true));
    let known = command.try_get_matches_from(flags).ok();
    let known = known.and_then(|known| ConnectionArgs::from_arg_matches(&known).ok());
    ConnectionArgs {
        request_timeout: Some(PATIENCE),
        ..known.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn offered(line: &str) -> String {
        answer(&line.split(' ').map(String::from).collect::<Vec<_>>()).await
    }

    #[tokio::test]
    async fn commands_flags_and_values_are_offered_where_they_may_stand() {
        for (line, first) in [
            ("li", "list\tLists jobs"),
            ("-n a restart-", "restart-role\t"),
            ("restart-role math act", "actor\t\n:4"),
            ("logs math --role re", "reference\t\nreward\t\n:4"),
            ("logs math -r=rol", "-r=rollout\t\n:4"),
            ("list --all", "--all-namespaces\t"),
            ("status math --output=y", "--output=yaml\t"),
            ("why math -o ", "wide\t"),
            ("logs math --container v", "vllm\t\n:4"),
        ] {
            let offered = offered(line).await;
            assert!(offered.starts_with(first), "{line}: {offered}");
        }
    }

    #[tokio::test]
    async fn files_are_offered_for_files_alone_and_nothing_where_nothing_may_follow() {
        assert_eq!(offered("plan -f ").await, ":0\n");
        assert_eq!(offered("list --kubeconfig=").await, ":0\n");
        assert_eq!(offered("restart-role math actor ").await, ":4\n");
        assert_eq!(offered("nothing ").await, ":4\n");
        assert_eq!(offered("logs math --tail ").await, ":4\n");
    }

    #[tokio::test]
    async fn contexts_are_those_of_the_kubeconfig_that_the_line_names() {
        let file = std::env::temp_dir().join(format!("kubectl-ppo-completion-{}", std::process::id()));
        let text = "{apiVersion: v1, kind: Config, contexts: [{name: east, context: {cluster: a, user: b}}], clusters: [], users: []}";
        std::fs::write(&file, text).unwrap();
        let offered = offered(&format!("list --kubeconfig {} --context e", file.display())).await;
        std::fs::remove_file(&file).unwrap();
        assert_eq!(offered, "east\t\n:4\n");
    }
}
