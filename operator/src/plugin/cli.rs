//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use k8s_openapi::jiff::Timestamp;
use ppo_crds::spec::Role;

use super::logs::since::{Since, parse_time};
use super::output::{OBJECTS, Output, TEXTS, one_of};
use super::{name, timeout};

/// PPO post-training jobs on Kubernetes: what they do, what they wait for, and why.
#[derive(Debug, Parser)]
#[command(name = "kubectl-ppo", bin_name = "kubectl ppo", version, max_term_width = 120)]
pub struct Cli {
    #[command(flatten)]
    pub connection: ConnectionArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster and namespace, and as whom: kubectl's own flags.
#[derive(Clone, Debug, Default, Args)]
pub struct ConnectionArgs {
    /// Namespace of the job. Default: that of the context.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Cluster of the kubeconfig. Default: that of the context.
    #[arg(long, global = true)]
    pub cluster: Option<String>,
    /// User of the kubeconfig. Default: that of the context.
    #[arg(long, global = true)]
    pub user: Option<String>,
    /// File with clusters and credentials. Default: $KUBECONFIG, else ~/.kube/config, else the pod's service account.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Act as this user, or service account (`system:serviceaccount:NAMESPACE:NAME`).
    #[arg(long = "as", global = true, value_name = "USER")]
    pub as_user: Option<String>,
    /// Act as a member of this group; may be given more than once.
    #[arg(long, global = true, value_name = "GROUP")]
    pub as_group: Vec<String>,
    /// Act as the user with this uid.
    #[arg(long, global = true, value_name = "UID")]
    pub as_uid: Option<String>,
    /// Longest wait for one answer of the API server, as 5s or 2m; 0 waits for ever. Default: 30s.
    #[arg(long, global = true, value_name = "TIME", value_parser = timeout::parse)]
    pub request_timeout: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists jobs with state, step, reward, KL, queue and time to the end.
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Shows one job: progress, roles, conditions, last events.
    Status(StatusArgs),
    /// Says in plain words what a job waits for or why it failed. Exits with 0 when nothing holds the job up, else with 3.
    Why(WhyArgs),
    /// Prints the logs of all pods of a job, merged, each line with its role and index.
    Logs(LogsArgs),
    /// Shows pods, GPUs and batch arithmetic of a manifest, or of a job on the cluster. Changes nothing.
    Plan(PlanArgs),
    /// Saves a checkpoint and releases the pods; `resume` goes on from there, where `spec.checkpoint` names a claim or a mounted volume.
    Suspend(SuspendArgs),
    /// Goes on with a suspended job.
    Resume(ResumeArgs),
    /// Replaces all pods of one role once.
    RestartRole(RestartRoleArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Jobs of all namespaces, whatever `--namespace` says.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only jobs with these labels, such as `team=math,stage!=test`.
    #[arg(short = 'l', long, default_value = "")]
    pub selector: String,
    /// More columns, the objects, or their names alone.
    #[arg(short, long, value_parser = one_of(OBJECTS))]
    pub output: Option<Output>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Name of the job.
    #[arg(value_parser = name::parse)]
    pub name: String,
    /// `wide` adds the pods and their nodes; `json` and `yaml` have job, pods and events.
    #[arg(short, long, value_parser = one_of(OBJECTS))]
    pub output: Option<Output>,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Name of the job.
    #[arg(value_parser = name::parse)]
    pub name: String,
    /// `json` and `yaml`: the findings for programs. `wide` is the same as the text.
    #[arg(short, long, value_parser = one_of(TEXTS))]
    pub output: Option<Output>,
}

#[derive(Clone, Debug, Args)]
pub struct LogsArgs {
    /// Name of the job.
    #[arg(value_parser = name::parse)]
    pub name: String,
    /// Only this role.
    #[arg(short, long, value_parser = role)]
    pub role: Option<Role>,
    /// Only the pod with this index in its role.
    #[arg(short, long)]
    pub index: Option<u32>,
    /// Keep printing, replaced pods included, until the job ends.
    #[arg(short, long)]
    pub follow: bool,
    /// Lines from the end of each log. Default, and -1: all of them.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub tail: Option<i64>,
    /// Only lines that are not older than this, as 30s, 5m or 2h. Default: all of them.
    #[arg(long, value_name = "TIME", value_parser = Since::parse)]
    pub since: Option<Since>,
    /// Only lines from this time on, as 2026-01-31T09:30:00Z. Default: all of them.
    #[arg(long, value_name = "TIME", conflicts_with = "since", value_parser = parse_time)]
    pub since_time: Option<Timestamp>,
    /// Container: `worker`, or `vllm` on engines of vLLM.
    #[arg(short, long, default_value = ppo_crds::pod::WORKER_CONTAINER)]
    pub container: String,
    /// All containers, those of preparation and for debugging, too; each line has the container's name behind its pod's.
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Logs of the container before its last restart.
    #[arg(short, long, conflicts_with = "follow")]
    pub previous: bool,
    /// Begin each line with the time at which it was written.
    #[arg(long)]
    pub timestamps: bool,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Name of a job on the cluster.
    #[arg(conflicts_with = "file", value_parser = name::parse)]
    pub name: Option<String>,
    /// Manifest; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// `json` and `yaml`: the plan for programs. `wide` is the same as the text.
    #[arg(short, long, value_parser = one_of(TEXTS))]
    pub output: Option<Output>,
}

#[derive(Debug, Args)]
pub struct SuspendArgs {
    #[command(flatten)]
    pub jobs: ResumeArgs,
    /// Suspend a job though its checkpoints go with its pod, as `spec.checkpoint` names no claim and no mounted volume: resumed, it starts at step 0.
    #[arg(long)]
    pub discard_checkpoints: bool,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Name of the job.
    #[arg(required_unless_present = "selector", conflicts_with = "selector", value_parser = name::parse)]
    pub name: Option<String>,
    /// In place of a name: all jobs of the namespace with these labels, such as `team=math,stage!=test`. Jobs that have ended stay as
    /// they are.
    #[arg(short = 'l', long, value_parser = selector)]
    pub selector: Option<String>,
    /// Wait until the job is suspended, or runs again, and say meanwhile what it waits for.
    #[arg(short, long)]
    pub wait: bool,
    /// Longest wait, for all jobs together, as 90s, 10m or 1h; 0 looks once.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = timeout::of_wait, requires = "wait")]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct RestartRoleArgs {
    /// Name of the job.
    #[arg(value_parser = name::parse)]
    pub name: String,
    /// rollout, actor, reference or reward.
    #[arg(value_parser = role)]
    pub role: Role,
    /// Restart the actor though its checkpoints go with its pod, as `spec.checkpoint` names no claim and no mounted volume: it starts at step 0.
    #[arg(long)]
    pub discard_checkpoints: bool,
}

fn role(text: &str) -> Result<Role, String> {
    let found = Role::ALL.into_iter().find(|role| role.name() == text);
    found.ok_or_else(|| "a role is rollout, actor, reference or reward".into())
}

/// Labels that choose jobs: `-l "$TEAM"` where TEAM is not set would choose all there are.
fn selector(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("labels are wanted, as team=math,stage!=test".into()),
        false => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn plan_takes_a_file_or_a_name_but_not_both() {
        let accepted = |args: &[&str]| Cli::try_parse_from([&["kubectl-ppo", "plan"], args].concat()).is_ok();
        assert!(accepted(&["-f", "job.yaml"]) && accepted(&["rloo"]) && accepted(&["rloo", "-o", "json"]));
        assert!(!accepted(&["rloo", "-f", "job.yaml"]));
    }

    #[test]
    fn kubectl_flags_are_known_before_and_after_the_command() {
        for args in [["kubectl-ppo", "-n", "a", "list"], ["kubectl-ppo", "list", "-n", "a"]] {
            assert_eq!(
                Cli::try_parse_from(args).unwrap().connection.namespace.as_deref(),
                Some("a")
            );
        }
    }

    #[test]
    fn what_a_command_cannot_print_is_refused_with_what_it_can() {
        for output in ["name", "yaml", "json", "wide"] {
            assert!(Cli::try_parse_from(["kubectl-ppo", "list", "-o", output]).is_ok());
            assert!(Cli::try_parse_from(["kubectl-ppo", "status", "a", "-o", output]).is_ok());
        }
        for command in ["why", "plan"] {
            let given = |output: &str| Cli::try_parse_from(["kubectl-ppo", command, "a", "-o", output]);
            assert!(given("yaml").is_ok() && given("json").is_ok());
            let error = given("name").unwrap_err().to_string();
            assert!(error.contains("[possible values: wide, json, yaml]"), "{error}");
        }
    }

    #[test]
    fn groups_to_act_as_are_gathered_and_all_namespaces_win_over_one() {
        let words = "kubectl-ppo list --as eve --as-group a --as-group b --request-timeout 2m -A -n c";
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        assert_eq!(cli.connection.as_user.as_deref(), Some("eve"));
        assert_eq!(cli.connection.as_group, ["a", "b"]);
        assert_eq!(cli.connection.request_timeout, Some(Duration::from_secs(120)));
        assert!(matches!(cli.command, Command::List(list) if list.all_namespaces));
    }

    #[test]
    fn every_command_takes_a_jobs_name_behind_its_kind_and_no_other_kind() {
        for command in ["status", "why", "logs", "plan", "suspend", "resume"] {
            let given = |name: &str| Cli::try_parse_from(["kubectl-ppo", command, name]);
            assert!(given("ppojob/math").is_ok() && given("math").is_ok(), "{command}");
            let error = given("pod/math").unwrap_err().to_string();
            assert!(error.contains("pod is another kind"), "{command}: {error}");
        }
        let cli = Cli::try_parse_from(["kubectl-ppo", "restart-role", "ppojob.ppojob.dev/math", "actor"]).unwrap();
        assert!(matches!(cli.command, Command::RestartRole(args) if args.name == "math"));
    }

    #[test]
    fn a_wait_has_a_limit_with_a_unit_or_in_seconds_and_only_suspend_discards_checkpoints() {
        let given = |words: &str| Cli::try_parse_from(words.split(' ')).map(|cli| cli.command);
        for (limit, seconds) in [
            (" --timeout 90", 90),
            (" --timeout=1m30s", 90),
            ("", 600),
            (" --timeout 0", 0),
        ] {
            let resume = given(&format!("kubectl-ppo resume math --wait{limit}")).unwrap();
            let limit = Duration::from_secs(seconds);
            assert!(matches!(resume, Command::Resume(args) if args.wait && args.timeout == limit));
        }
        assert!(given("kubectl-ppo resume math --timeout 90s").is_err());
        let suspend = given("kubectl-ppo suspend math --discard-checkpoints").unwrap();
        let is_math = |args: &SuspendArgs| args.discard_checkpoints && args.jobs.name.as_deref() == Some("math");
        assert!(matches!(suspend, Command::Suspend(args) if is_math(&args)));
        assert!(given("kubectl-ppo resume math --discard-checkpoints").is_err());
    }

    #[test]
    fn jobs_are_suspended_and_resumed_by_a_name_or_by_labels_and_never_by_neither() {
        for command in ["suspend", "resume"] {
            let given = |rest: &[&str]| Cli::try_parse_from([&["kubectl-ppo", command], rest].concat());
            assert!(given(&["-l", "team=math"]).is_ok() && given(&["--selector=team", "--wait"]).is_ok());
            assert!(given(&[]).is_err() && given(&["math", "-l", "team=math"]).is_err());
            for nothing in ["", " "] {
                let error = given(&["-l", nothing]).unwrap_err().to_string();
                assert!(error.contains("labels are wanted, as team=math"), "{error}");
            }
        }
    }

    #[test]
    fn a_log_is_read_from_a_time_or_a_while_ago_on_and_of_one_container_or_of_all() {
        let given = |words: &str| Cli::try_parse_from(format!("kubectl-ppo logs math {words}").split(' '));
        for fits in [
            "--since-time 2026-01-31T09:30:00Z",
            "--since-time=2026-01-31T10:30:00+01:00 --all-containers",
        ] {
            assert!(given(fits).is_ok(), "{fits}");
        }
        for unfit in [
            "--since-time 2026-01-31T09:30:00Z --since 5m",
            "--all-containers -c vllm",
        ] {
            assert!(given(unfit).is_err(), "{unfit}");
        }
    }

    #[test]
    fn minus_one_is_a_number_of_lines_and_minus_two_is_none() {
        for (words, lines) in [
            ("--tail=-1", Some(-1)),
            ("--tail -1", Some(-1)),
            ("--tail 7", Some(7)),
            ("--tail -2", None),
        ] {
            let given = Cli::try_parse_from(format!("kubectl-ppo logs math {words}").split(' '));
            let tail = given.ok().and_then(|cli| match cli.command {
                Command::Logs(args) => args.tail,
                _ => None,
            });
            assert_eq!(tail, lines, "{words}");
        }
    }

    #[test]
    fn an_unknown_role_is_refused_with_the_roles_there_are() {
        let error = Cli::try_parse_from(["kubectl-ppo", "restart-role", "a", "critic"]).unwrap_err();
        assert!(
            error.to_string().contains("rollout, actor, reference or reward"),
            "{error}"
        );
    }
}
