//! The pods of a role, found by name.

use std::time::Duration;

use anyhow::{Result, bail};
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;
use tokio::net::lookup_host;

/// For one DNS answer.
const DNS_DEADLINE: Duration = Duration::from_secs(5);

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
        let (count, job, role, service) = match self {
            Self::Fixed(members) => return members.clone(),
            Self::Pods {
                count,
                job,
                role,
                service,
            } => (*count, job, *role, service),
        };
        let mut present = Vec::new();
        let mut absent = 0;
        for index in 0u32.. {
            let name = pod_name(job, role, index);
            let address = format!("{name}.{service}");
            let answer = tokio::time::timeout(DNS_DEADLINE, lookup_host(address.clone())).await;
            if matches!(answer, Ok(Ok(_))) {
                present.push(Member { name, address });
                absent = 0;
                continue;
            }
            absent += 1;
            // One that is being made anew has no address for a while, and others may come after it.
            if index as usize >= count && absent > 1 {
                break;
            }
        }
        present
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

#[cfg(test)]
mod tests {
    use super::*;

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
