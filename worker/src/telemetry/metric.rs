//! A number a step produces, and what every sink must know about it. The table itself is in `catalogue.rs`.

use ppo_crds::spec::Profile;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub use super::catalogue::Metric;
use super::definition::{Kind, Unit};

impl Metric {
    /// Our name: the key in metrics.jsonl, `ppo/<name>` in TensorBoard.
    pub fn name(self) -> &'static str {
        self.definition().name
    }

    /// One sentence on what the number is.
    pub fn help(self) -> &'static str {
        self.definition().help
    }

    /// What it is measured in.
    pub fn unit(self) -> Unit {
        self.definition().unit
    }

    /// How Prometheus sees it.
    pub fn kind(self) -> Kind {
        self.definition().kind
    }

    /// The name in `/metrics`: `ppo_`, our name, the unit's suffix unless the name ends in it, `_total` for a counter.
    pub fn prometheus_name(self) -> String {
        let suffix = self.unit().suffix();
        let unit = if self.name().ends_with(suffix.trim_start_matches('_')) {
            ""
        } else {
            suffix
        };
        let total = if self.kind() == Kind::Counter { "_total" } else { "" };
        format!("ppo_{}{unit}{total}", self.name())
    }

    /// The tags this number has in TensorBoard under the other framework that `profile` reproduces; none for `default`.
    pub fn aliases(self, profile: Profile) -> &'static [&'static str] {
        let definition = self.definition();
        match profile {
            Profile::Default => &[],
            Profile::Verl => definition.verl,
            Profile::Trl => definition.trl,
            Profile::Alpacafarm => definition.alpacafarm,
            Profile::Openrlhf => definition.openrlhf,
        }
    }

    /// The metric of that name, if there is one.
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.iter().copied().find(|metric| metric.name() == name)
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Metric::from_name(&name).ok_or_else(|| D::Error::custom(format!("no metric is named {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PROFILES: [Profile; 4] = [Profile::Verl, Profile::Trl, Profile::Alpacafarm, Profile::Openrlhf];

    #[test]
    fn names_are_unique_and_valid_in_every_sink() {
        let mut ours = HashSet::new();
        let mut exported = HashSet::new();
        for metric in Metric::ALL {
            assert!(
                metric
                    .name()
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            );
            assert!(ours.insert(metric.name()), "{} twice", metric.name());
            assert!(
                exported.insert(metric.prometheus_name()),
                "{} twice",
                metric.prometheus_name()
            );
            assert!(!metric.help().is_empty());
            assert_eq!(Metric::from_name(metric.name()), Some(*metric));
        }
    }

    #[test]
    fn an_alias_belongs_to_one_metric() {
        for profile in PROFILES {
            let mut seen = HashSet::new();
            for alias in Metric::ALL.iter().flat_map(|metric| metric.aliases(profile)) {
                assert!(seen.insert(*alias), "{alias} twice under {profile:?}");
            }
        }
    }

    #[test]
    fn what_dashboards_of_the_frameworks_show_is_a_number_of_ours() {
        let numbers = |group: &str, names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("{group}/{name}")).collect()
        };
        let bounded = ["mean", "max", "min"];
        let of_verl = [
            numbers(
                "actor",
                &[
                    "pg_loss",
                    "pg_clipfrac",
                    "pg_clipfrac_lower",
                    "ppo_kl",
                    "entropy",
                    "grad_norm",
                ],
            ),
            numbers("critic", &["vf_loss", "vf_explained_var"]),
            numbers("critic/score", &bounded),
            numbers("critic/rewards", &bounded),
            numbers("critic/advantages", &bounded),
            numbers("critic/returns", &bounded),
            numbers("critic/values", &bounded),
            numbers("response_length", &["mean", "max", "min", "clip_ratio"]),
            numbers("perf", &["throughput"]),
        ];
        let of_trl = [
            numbers(
                "objective",
                &["kl", "entropy", "non_score_reward", "rlhf_reward", "scores"],
            ),
            numbers("policy", &["approxkl_avg", "clipfrac_avg", "entropy_avg"]),
            numbers("loss", &["policy_avg", "value_avg"]),
            numbers("val", &["clipfrac_avg", "ratio", "num_eos_tokens"]),
            vec!["lr".to_owned(), "episode".to_owned()],
        ];
        let of_alpacafarm = [
            numbers(
                "objective",
                &["kl_sum_seq", "kl_coef", "shaped_rewards", "non_score_rewards"],
            ),
            numbers("ppo/loss", &["policy", "value", "total"]),
            numbers("ppo/policy", &["entropy", "approxkl", "clipfrac"]),
            numbers("ppo/val", &["clipfrac"]),
            numbers("loss", &["policy", "value", "entropy", "total", "grad_norm"]),
            numbers("policy", &["ratio", "advantage", "entropy", "value"]),
        ];
        for (profile, names) in [
            (Profile::Verl, of_verl.concat()),
            (Profile::Trl, of_trl.concat()),
            (Profile::Alpacafarm, of_alpacafarm.concat()),
        ] {
            let aliases: HashSet<&str> = Metric::ALL
                .iter()
                .flat_map(|metric| metric.aliases(profile))
                .copied()
                .collect();
            for name in &names {
                assert!(aliases.contains(name.as_str()), "{name} is missing under {profile:?}");
            }
        }
    }

    #[test]
    fn a_number_of_a_framework_that_only_sounds_like_one_of_ours_is_none_of_its_names() {
        for (profile, name) in [
            (Profile::Alpacafarm, "objective/rewards"),
            (Profile::Alpacafarm, "ppo/loss/grad_norm"),
            (Profile::Openrlhf, "train/return"),
            (Profile::Openrlhf, "train/values"),
        ] {
            let taken = |metric: &Metric| metric.aliases(profile).contains(&name);
            assert!(!Metric::ALL.iter().any(taken), "{name} under {profile:?}");
        }
    }

    #[test]
    fn prometheus_names_carry_the_unit_once() {
        assert_eq!(Metric::Kl.prometheus_name(), "ppo_kl");
        assert_eq!(Metric::ResponseLength.prometheus_name(), "ppo_response_length_tokens");
        assert_eq!(Metric::TokensPerSecond.prometheus_name(), "ppo_tokens_per_second");
        assert_eq!(Metric::GeneratedTokens.prometheus_name(), "ppo_generated_tokens_total");
        assert_eq!(Metric::StepSeconds.prometheus_name(), "ppo_step_seconds");
    }
}
