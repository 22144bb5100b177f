//! The pods of a role, found by name.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::future::join_all;
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;
use tokio::net::lookup_host;

/// For one DNS answer.
const DNS_DEADLINE: Duration = Duration::from_secs(5);
/// No role has more pods: `roles.rollout.replicas` is at most this.
const MOST: usize = 1024;

/// A server of a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The pod's name, or the address where there are no pods.
    pub name: String,
    /// `host:port`.
    pub address: String,
}

impl Member {
    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A pod of this machine that answers as `router` does.
    #[cfg(test)]
    pub async fn serving(name: &str, router: axum::Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            name: name.to_owned(),
            address,
        }
    }
}

/// Where a role's servers are.
#[derive(Clone, Debug)]
pub enum Members {
    /// Servers at given addresses.
    Fixed(Vec<Member>),
    /// Pods behind a headless Service; their number may change while the job runs.
    Pods {
        /// Pods that the job was made with.
        count: usize,
        /// Name of a pod's prefix: the job.
        job: String,
        /// The role.
        role: Role,
        /// `<service>.<namespace>.svc:<port>`.
        service: String,
    },
}

impl Members {
    /// From `service`, which is a Service's `host:port`, or `host:port` pairs with commas between them.
    ///
    /// # Errors
    /// When an address has no port.
    pub fn of(job: &str, role: Role, count: usize, service: &str) -> Result<Self> {
        let addresses: Vec<&str> = service.split(',').map(str::trim).collect();
        if let Some(wrong) = addresses.iter().find(|address| !address.contains(':')) {
            bail!("the address {wrong:?} of the {} role has no port", role.name());
        }
        let is_service = addresses.len() == 1 && addresses[0].contains(".svc:");
        if is_service {
            return Ok(Self::Pods {
                count,
                job: job.to_owned(),
                role,
                service: addresses[0].to_owned(),
            });
        }
        let member = |address: &&str| Member {
            name: (*address).to_owned(),
            address: (*address).to_owned(),
        };
        Ok(Self::Fixed(addresses.iter().map(member).collect()))
    }

    /// How many the job was made with.
    pub fn count(&self) -> usize {
        match self {
            Self::Fixed(members) => members.len(),
            Self::Pods { count, .. } => *count,
        }
    }

    /// Those that have an address now: of pods the ones the job was made with, and any that it was scaled up by.
    pub async fn present(&self) -> Vec<Member> {
        self.known_by(addresses).await
    }

    /// Those that `look_up` knows addresses of.
    async fn known_by<F: Future<Output = Vec<SocketAddr>>>(&self, look_up: impl Fn(String) -> F) -> Vec<Member> {
        let (count, job, role, service) = match self {
            Self::Fixed(members) => return members.clone(),
            Self::Pods {
                count,
                job,
                role,
                service,
            } => (*count, job, *role, service),
        };
        // A node's search domain may answer to every name; whoever answers to one that no pod has is no pod.
        let anyone = look_up(format!("{job}-{}-none.{service}", role.name())).await;
        let find = async |index: usize| {
            let name = pod_name(job, role, index as u32);
            let address = format!("{name}.{service}");
            let found = look_up(address.clone()).await;
            (!found.is_empty() && found != anyone).then_some(Member { name, address })
        };
        let (mut present, mut next) = (Vec::new(), 0);
        // One that is being made anew has no address for a while, and others may come after it.
        let mut end = count + 2;
        loop {
            let found = join_all((next..end).map(&find)).await;
            let goes_on = found.iter().rev().take(2).any(Option::is_some);
            present.extend(found.into_iter().flatten());
            if !goes_on || end >= MOST {
                return present;
            }
            (next, end) = (end, (2 * end).min(MOST));
        }
    }

    /// What is waited for, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Fixed(members) => members
                .iter()
                .map(|member| member.name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            Self::Pods { job, role, .. } => format!("pods {job}-{}-*", role.name()),
        }
    }
}

/// The addresses of `host:port`, in order; none when there is no answer in time.
async fn addresses(host: String) -> Vec<SocketAddr> {
    let answer = tokio::time::timeout(DNS_DEADLINE, lookup_host(host)).await;
    let mut addresses: Vec<SocketAddr> = answer.ok().and_then(Result::ok).into_iter().flatten().collect();
    addresses.sort_unstable();
    addresses
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Pods that are found of a job of two engines, where the network knows `known` and answers `other` of how often it was
    /// asked to any other name; and how many names were looked up.
    async fn found(known: &[u8], other: impl Fn(usize) -> Vec<SocketAddr>) -> (Vec<String>, usize) {
        let pods = Members::of("math", Role::Rollout, 2, "math-rollout.ml.svc:8000").unwrap();
        let asked = AtomicUsize::new(0);
        let present = pods.known_by(async |host| {
            let times = asked.fetch_add(1, Ordering::Relaxed);
            let name = host.strip_suffix(".math-rollout.ml.svc:8000").unwrap();
            let index = name.strip_prefix("math-rollout-").unwrap().parse().ok();
            match index.filter(|index| known.contains(index)) {
                Some(index) => vec![SocketAddr::from(([10, 0, 0, index], 8000))],
                None => other(times),
            }
        });
        let names = present.await.into_iter().map(|member| member.name).collect();
        (names, asked.into_inner())
    }

    fn names(indexes: &[u8]) -> Vec<String> {
        indexes.iter().map(|index| format!("math-rollout-{index}")).collect()
    }

    #[tokio::test]
    async fn pods_that_a_job_was_scaled_up_by_are_found_past_one_that_is_being_made_anew() {
        for indexes in [&[0, 1][..], &[1], &[0, 1, 3, 4, 5, 6]] {
            assert_eq!(found(indexes, |_| vec![]).await.0, names(indexes));
        }
    }

    #[tokio::test]
    async fn an_address_that_every_name_has_is_no_pods() {
        let (present, asked) = found(&[0], |_| vec![SocketAddr::from(([192, 0, 2, 1], 8000))]).await;
        assert_eq!(present, names(&[0]));
        assert!(asked < 10, "{asked} names were looked up");
    }

    #[tokio::test]
    async fn no_more_pods_are_looked_for_than_a_job_can_have() {
        let (present, asked) = found(&[0], |times| vec![SocketAddr::from(([192, 0, 2, 1], times as u16))]).await;
        assert_eq!((present.len(), asked), (MOST, MOST + 1));
    }

    #[test]
    fn a_service_has_pods_and_a_list_has_addresses() {
        let pods = Members::of("math", Role::Rollout, 2, "math-rollout.ml.svc:8000").unwrap();
        assert!(matches!(pods, Members::Pods { count: 2, .. }));
        let Members::Fixed(members) = Members::of("math", Role::Rollout, 2, "127.0.0.1:1, b:2").unwrap() else {
            panic!("two addresses are no Service");
        };
        assert_eq!(members[1].address, "b:2");
        assert!(Members::of("math", Role::Rollout, 2, "somewhere").is_err());
    }

    #[tokio::test]
    async fn a_pod_without_an_address_is_not_present() {
        let pods = Members::of("math", Role::Rollout, 2, "nowhere.invalid.svc:8000").unwrap();
        assert_eq!(pods.present().await, []);
    }
}
