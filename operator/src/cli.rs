//! The command line.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, Parser, Subcommand};
use kube::{Client, Config};
use ppo_crds::listen::everywhere;
use tokio::sync::watch;

use crate::log::{self, LogFormat};
use crate::run::{LeaseOptions, Options, run};
use crate::settings::{PodDefaults, PodSettings, Scrapers};

/// The operator of PpoJobs: turns them into pods, restarts, suspends and explains them.
#[derive(Debug, Parser)]
#[command(name = "ppo-operator", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// For one reconcile. The API server itself ends a request after as long.
const RECONCILE_DEADLINE: Duration = Duration::from_secs(60);

/// For every answer of the API server. Longer than a watch may be silent: the API server ends it after 290 s (kube's watcher asks for that).
const ANSWER_DEADLINE: Duration = Duration::from_secs(295);

/// Of /metrics, /healthz and /readyz.
const HTTP_PORT: u16 = 8080;

#[derive(Debug, Subcommand)]
enum Command {
    /// Look after the PpoJobs of a cluster.
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinition that belongs to this operator.
    Crd,
    /// Ask a URL, such as a readiness probe's, and succeed if it answers with a 2xx status.
    Check(CheckArgs),
}

// The last one wins: the chart's extraArgs come after its own.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
struct RunArgs {
    /// Namespace to look after; repeat it for several. Default: all of them.
    #[arg(
        long = "namespace",
        env = "PPO_OPERATOR_NAMESPACE",
        value_delimiter = ',',
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new()
    )]
    namespaces: Vec<String>,
    /// Address of /metrics, /healthz and /readyz. Default: port 8080 of every address.
    #[arg(long, env = "PPO_OPERATOR_HTTP_ADDRESS")]
    http_address: Option<SocketAddr>,
    /// Jobs worked on at once.
    #[arg(long, env = "PPO_OPERATOR_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Seconds between two questions to each actor how training goes. At most 120, since a report's age counts as silence, and a job
    /// that is silent for 300 s is told to be stalled.
    #[arg(long, env = "PPO_OPERATOR_REPORT_INTERVAL_SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=120))]
    report_interval_seconds: u64,
    /// Let one of several replicas act, chosen by a Lease.
    #[arg(long, env = "PPO_OPERATOR_LEADER_ELECTION", default_value_t = true, action = ArgAction::Set)]
    leader_election: bool,
    /// Namespace of the Lease. Default: the operator's own.
    #[arg(long, env = "PPO_OPERATOR_LEASE_NAMESPACE")]
    lease_namespace: Option<String>,
    /// Name of the Lease. Operators that look after other namespaces have another one.
    #[arg(long, env = "PPO_OPERATOR_LEASE_NAME", default_value = "ppo-operator")]
    lease_name: String,
    /// Namespace that the operator runs in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    own_namespace: String,
    /// Name of this process among the replicas. Default: a random one.
    #[arg(long, env = "POD_NAME", value_parser = NonEmptyStringValueParser::new())]
    identity: Option<String>,
    #[command(flatten)]
    pods: PodArgs,
    /// Form of the log on standard error.
    #[arg(long, env = "PPO_OPERATOR_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Args)]
struct PodArgs {
    /// Image of ppo-worker, for pod templates that name none.
    #[arg(long, env = "PPO_OPERATOR_WORKER_IMAGE", default_value_t = PodSettings::default().worker_image)]
    worker_image: String,
    /// Image of vLLM, for pod templates that name none.
    #[arg(long, env = "PPO_OPERATOR_VLLM_IMAGE", default_value_t = PodSettings::default().vllm_image)]
    vllm_image: String,
    /// When images are pulled: Always, IfNotPresent or Never.
    #[arg(long, env = "PPO_OPERATOR_IMAGE_PULL_POLICY", default_value_t = PodSettings::default().image_pull_policy)]
    image_pull_policy: String,
    /// Resource name of a GPU.
    #[arg(long, env = "PPO_OPERATOR_GPU_RESOURCE", default_value_t = PodSettings::default().gpu_resource)]
    gpu_resource: String,
    /// Scheduler that a job's pods ask for where the coscheduling plugin places them, for pod templates that name none: schedulerName of
    /// the profile that has the plugin.
    #[arg(
        long,
        env = "PPO_OPERATOR_COSCHEDULING_SCHEDULER",
        default_value_t = PodSettings::default().coscheduling_scheduler,
        value_parser = NonEmptyStringValueParser::new()
    )]
    coscheduling_scheduler: String,
    /// User, group and file group of pods whose template names none; `none` leaves them to the cluster, as OpenShift wants it.
    #[arg(long, env = "PPO_OPERATOR_POD_USER", default_value = "65532", value_parser = user)]
    pod_user: User,
    /// File with a part of a pod template, in YAML: what pods have whose own template says nothing else.
    #[arg(long, env = "PPO_OPERATOR_POD_DEFAULTS", value_name = "FILE")]
    pod_defaults: Option<PathBuf>,
    /// Make a NetworkPolicy for every job, and delete those of running jobs where it is false.
    #[arg(long, env = "PPO_OPERATOR_NETWORK_POLICIES", default_value_t = true, action = ArgAction::Set)]
    network_policies: bool,
    /// Make a PodDisruptionBudget for the actor of every job that runs, and delete those that are there where it is false.
    #[arg(long, env = "PPO_OPERATOR_DISRUPTION_BUDGETS", default_value_t = true, action = ArgAction::Set)]
    disruption_budgets: bool,
    /// Namespace whose pods may read the metrics of role pods; repeat it for several. The operator's own always may.
    #[arg(
        long = "scraper-namespace",
        env = "PPO_OPERATOR_SCRAPER_NAMESPACE",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    scraper_namespaces: Vec<String>,
}

/// A user's number, or the cluster's choice.
#[derive(Clone, Debug)]
struct User(Option<i64>);

fn user(text: &str) -> Result<User, String> {
    match text {
        "none" => Ok(User(None)),
        number => match number.parse() {
            Ok(number) if (0..=i64::from(u32::MAX)).contains(&number) => Ok(User(Some(number))),
            _ => Err("give a number of a user, such as 65532, or none".to_owned()),
        },
    }
}

/// Between two tries of `check`.
const CHECK_PAUSE: Duration = Duration::from_millis(500);
/// For one answer: a Service without a route yet drops what it gets.
const CHECK_ANSWER: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
struct CheckArgs {
    /// The URL.
    #[arg(long)]
    url: String,
    /// Seconds to wait for a good answer, at most a day: what was just installed is not reached at once.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    timeout_seconds: u64,
}

impl RunArgs {
    fn options(self) -> anyhow::Result<Options> {
        let random = || format!("ppo-operator-{:08x}", rand::random::<u32>());
        let defaults = match &self.pods.pod_defaults {
            Some(file) => PodDefaults::read(file, &self.pods.gpu_resource)?,
            None => PodDefaults::default(),
        };
        let mut scrapers = self.pods.scraper_namespaces;
        scrapers.push(self.own_namespace.clone());
        Ok(Options {
            // Of one that is named twice each job would be worked on twice, side by side.
            namespaces: each_once(self.namespaces),
            http_address: self
                .http_address
                .unwrap_or_else(|| SocketAddr::new(everywhere(), HTTP_PORT)),
            concurrency: self.concurrency,
            report_interval: Duration::from_secs(self.report_interval_seconds),
            reconcile_deadline: RECONCILE_DEADLINE,
            lease: self.leader_election.then(|| LeaseOptions {
                namespace: self.lease_namespace.unwrap_or(self.own_namespace),
                name: self.lease_name,
            }),
            identity: self.identity.unwrap_or_else(random),
            pods: PodSettings {
                worker_image: self.pods.worker_image,
                vllm_image: self.pods.vllm_image,
                image_pull_policy: self.pods.image_pull_policy,
                gpu_resource: self.pods.gpu_resource,
                coscheduling_scheduler: self.pods.coscheduling_scheduler,
                user: self.pods.pod_user.0,
                network_policies: self.pods.network_policies.then(|| Scrapers {
                    namespaces: each_once(scrapers),
                }),
                defaults,
                disruption_budgets: self.pods.disruption_budgets,
            },
        })
    }
}

fn each_once(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Run(args) => log::init(args.log_format).and_then(|()| args.options()).and_then(start),
        Command::Crd => crd(),
        Command::Check(args) => check(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ppo-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> anyhow::Result<()> {
    // A provider that is installed already serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // One thread: the operator waits for the API server nearly all the time, and two would mostly wake each other.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let ended = runtime.block_on(async { run(connect().await?, options, stop_signal()?).await });
    // The check of a manifest may still be under way: nobody waits for it.
    runtime.shutdown_background();
    ended
}

/// The cluster that this process runs in, or that the kubeconfig names.
async fn connect() -> anyhow::Result<Client> {
    let mut config = Config::infer()
        .await
        .context("no cluster: neither a kubeconfig nor a service account was found")?;
    // An administrator finds the operator's requests in the audit log by this name.
    let agent = HeaderValue::from_static(concat!("ppo-operator/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    // kube's default is none: a list that is lost would leave a cache as it is for ever. From the request on, not from when its
    // connection was used last.
    config.read_timeout = Some(ANSWER_DEADLINE);
    config.reset_reader_on_write = true;
    Client::try_from(config).context("the cluster's address or credentials cannot be used")
}

/// Turns true at SIGTERM or SIGINT.
fn stop_signal() -> anyhow::Result<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stops");
        stop.send_replace(true);
    });
    Ok(stopped)
}

fn crd() -> anyhow::Result<()> {
    let yaml = ppo_crds::crd_yaml().map_err(|error| anyhow::anyhow!("the CRD cannot be written: {error}"))?;
    std::io::stdout()
        .write_all(yaml.as_bytes())
        .context("cannot write the CRD")
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let client = reqwest::Client::new();
        let ends = Instant::now() + Duration::from_secs(args.timeout_seconds);
        let mut answer = None;
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            let Err(error) = ask(&client, &args.url, left.min(CHECK_ANSWER)).await else {
                return Ok(());
            };
            let silent = error.is::<reqwest::Error>();
            if !silent {
                answer = Some(error.to_string());
            }
            if left > CHECK_PAUSE {
                tokio::time::sleep(CHECK_PAUSE).await;
                continue;
            }
            // The last try may have had no time for an answer: the one before says more.
            return Err(match answer.filter(|_| silent) {
                Some(answer) => error.context(format!("{answer}; then")),
                None => error,
            });
        }
    })
}

async fn ask(client: &reqwest::Client, url: &str, deadline: Duration) -> anyhow::Result<()> {
    let answer = client.get(url).timeout(deadline).send().await;
    let answer = answer.with_context(|| format!("{url} does not answer"))?;
    let status = answer.status();
    let body = answer.text().await.unwrap_or_default();
    anyhow::ensure!(status.is_success(), "{url} answered {status}: {}", body.trim());
    println!("{url} answered {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// The URL of a server that gives these answers, one for each connection.
    fn server(answers: &'static [&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut connection, _) = listener.accept().unwrap();
                let _ = connection.read(&mut [0; 1024]).unwrap();
                let head = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                connection.write_all(head.as_bytes()).unwrap();
            }
        });
        url
    }

    #[test]
    fn a_flag_given_twice_counts_as_it_was_given_last_and_a_list_has_all_each_once() {
        let words =
            "ppo-operator run --namespace=b --log-format=text --namespace=a,b --log-format=json --lease-name=mine";
        let Command::Run(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
            panic!("run was asked for");
        };
        assert!(matches!(args.log_format, LogFormat::Json));
        let options = args.options().unwrap();
        assert_eq!(options.namespaces, ["a", "b"]);
        assert_eq!(options.lease.unwrap().name, "mine");
    }

    #[test]
    fn names_that_are_empty_and_a_wait_that_no_clock_can_tell_are_refused() {
        for words in [
            "ppo-operator run --namespace=",
            "ppo-operator run --namespace=a,",
            "ppo-operator run --identity=",
            "ppo-operator check --url=http://localhost --timeout-seconds=18446744073709551615",
        ] {
            let refused = Cli::try_parse_from(words.split(' '));
            assert!(refused.is_err(), "{words}");
        }
    }

    #[test]
    fn the_profile_with_the_coscheduling_plugin_is_that_of_its_own_chart_unless_another_is_named() {
        let scheduler = |words: &str| {
            let Command::Run(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else {
                panic!("run was asked for");
            };
            args.options().unwrap().pods.coscheduling_scheduler
        };
        assert_eq!(scheduler("ppo-operator run"), "scheduler-plugins-scheduler");
        assert_eq!(scheduler("ppo-operator run --coscheduling-scheduler=gangs"), "gangs");
        // Without a name the cluster's default scheduler would have the pods, which knows nothing of the gang.
        let nameless = "ppo-operator run --coscheduling-scheduler=";
        assert!(Cli::try_parse_from(nameless.split(' ')).is_err());
    }

    #[test]
    fn a_check_tries_again_until_the_answer_is_good() {
        let url = server(&["503 Service Unavailable", "200 OK"]);
        let args = CheckArgs {
            url,
            timeout_seconds: 20,
        };
        check(&args).unwrap();
    }

    #[test]
    fn a_check_that_is_out_of_time_tells_the_last_answer() {
        // Whoever asks again is answered no more.
        let url = server(&["503 Service Unavailable"]);
        let args = CheckArgs {
            url,
            timeout_seconds: 2,
        };
        let words = format!("{:#}", check(&args).unwrap_err());
        assert!(words.contains("503"), "{words}");
    }
}
