//! What actor and critic each have elsewhere and share here, as the course of the learning rate: the job has the actor's, which is said where
//! the critic's would be another.

use super::draft::Draft;
use super::row::{is_null, list};

/// What to know of the critic's.
pub const SHARED: &str = "the actor's is for both here, which is said where the critic's is another";

/// A setting that actor and critic each have there.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The actor's name of it.
    pub actor: &'static str,
    /// The critic's.
    pub critic: &'static str,
    default: &'static str,
    follows: bool,
}

impl Pair {
    /// One that is `default` for both where it is not given.
    pub const fn of(actor: &'static str, critic: &'static str, default: &'static str) -> Self {
        Self {
            actor,
            critic,
            default,
            follows: false,
        }
    }

    /// One that is the actor's for a critic which is not given its own.
    pub const fn following(actor: &'static str, critic: &'static str, default: &'static str) -> Self {
        Self {
            follows: true,
            ..Self::of(actor, critic, default)
        }
    }

    /// What the actor has.
    pub fn of_actor(&self, draft: &Draft) -> Vec<String> {
        given(draft, self.actor).unwrap_or_else(|| self.by_default())
    }

    /// Whether the critic's is a reference to the actor's.
    pub fn refers(&self, draft: &Draft) -> bool {
        let values = given(draft, self.critic).unwrap_or_default();
        let [value] = values.as_slice() else {
            return false;
        };
        reference(value).is_some_and(|name| draft.names(self.actor).contains(&name))
    }

    /// What the critic has.
    pub fn of_critic(&self, draft: &Draft) -> Vec<String> {
        if self.refers(draft) {
            return self.of_actor(draft);
        }
        given(draft, self.critic).unwrap_or_else(|| match self.follows {
            true => self.of_actor(draft),
            false => self.by_default(),
        })
    }

    fn by_default(&self) -> Vec<String> {
        self.default.split(' ').map(str::to_owned).collect()
    }

    /// Says that the critic has the actor's here, where that is another.
    pub fn tell(&self, draft: &mut Draft) {
        let (actor, critic) = (self.of_actor(draft), self.of_critic(draft));
        if worth(&actor) == worth(&critic) {
            return;
        }
        let by_default = match given(draft, self.critic) {
            Some(_) => "",
            None => " by default",
        };
        let fields = draft.fields(self.critic);
        let why = format!(
            "is {}{by_default}, and the actor's is {}: here {} {} for both, and the actor's is taken",
            critic.join(" "),
            actor.join(" "),
            fields.join(" and "),
            if fields.len() > 1 { "are" } else { "is" }
        );
        let name = draft.given_as(self.critic).unwrap_or(self.critic).to_owned();
        draft.leave(&name, &why);
    }
}

/// Takes back what was said of the critic's optimizer where there is no critic.
pub fn unsay_optimizer(draft: &mut Draft) {
    if draft.has_critic() {
        return;
    }
    for given in draft.given_below("critic.optim") {
        draft.unsay(&given.name);
        draft.unsay(&given.shown);
    }
}

/// The setting that a reference of Hydra is to: `${name}`, or `${oc.select:name,otherwise}`.
fn reference(value: &str) -> Option<&str> {
    let inside = value.trim().strip_prefix("${")?.strip_suffix('}')?;
    let selected = inside.trim_start().strip_prefix("oc.select:");
    let name = selected.map_or(inside, |rest| rest.split_once(',').map_or(rest, |(name, _)| name));
    Some(name.trim())
}

/// The values of a setting; none where it is `null`.
fn given(draft: &Draft, name: &str) -> Option<Vec<String>> {
    let (values, _) = draft.values(name)?;
    (!is_null(&values)).then_some(values)
}

/// What values are worth: numbers however they are written, and words in whatever case. Below 0 is off, as 0 is.
fn worth(values: &[String]) -> Vec<String> {
    let one = |text: String| match text.parse::<f64>() {
        Ok(number) => number.max(0.0).to_string(),
        Err(_) => text.to_lowercase(),
    };
    values.iter().flat_map(|value| list(value)).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_what_they_are_worth() {
        let of = |values: &[&str]| worth(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>());
        let same = |one: &[&str], other: &[&str]| of(one) == of(other);
        assert!(same(&["1e-8"], &["0.00000001"]) && same(&["-1"], &["0"]) && same(&["Cosine"], &["cosine"]));
        assert!(same(&["[0.9, 0.95]"], &["0.9", "0.95"]));
        assert!(!same(&["0.1"], &["0.01"]) && !same(&["constant"], &["cosine"]));
    }

    #[test]
    fn a_reference_names_its_setting() {
        for text in [
            "${a.b}",
            "${ a.b }",
            "${oc.select:a.b,256}",
            "${oc.select: a.b , null}",
            "${oc.select:a.b}",
        ] {
            assert_eq!(reference(text), Some("a.b"), "{text}");
        }
        assert!(reference("256").is_none() && reference("${a.b").is_none());
    }
}
