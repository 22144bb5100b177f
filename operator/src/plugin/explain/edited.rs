//! Advice to edit a pod template, made exact: where the template of the pods' role is, and what makes pods that wait take it up.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use ppo_crds::spec::{Role, RolesSpec};

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use crate::plugin::pods;

/// The template of a role that is not named.
pub const TEMPLATE: &str = "spec.roles.<role>.template";

/// Of pods that wait as they are, with the template that they were made from. Those that end are made anew, from the template of then.
const WAITING: [Cause; 4] = [Cause::Gang, Cause::Unscheduled, Cause::Preparation, Cause::Image];

/// The finding with its advice told of the roles of its pods.
pub fn of_roles(finding: Finding, evidence: &Evidence) -> Finding {
    let roles = roles(&finding, evidence);
    if roles.is_empty() || !finding.fix.contains(TEMPLATE) {
        return finding;
    }
    let mut fix = match roles.as_slice() {
        [role] => of_role(&finding.fix, *role),
        _ => finding.fix.clone(),
    };
    if WAITING.contains(&finding.cause) {
        let command = |role: &Role| format!("`kubectl ppo restart-role {} {}`", evidence.name(), role.name());
        let commands: Vec<String> = roles.iter().map(command).collect();
        fix.push_str("; pods that wait take an edited template up by ");
        fix.push_str(&commands.join(" and "));
    }
    Finding { fix, ..finding }
}

/// Advice told of one role.
pub fn of_role(fix: &str, role: Role) -> String {
    fix.replace(TEMPLATE, place(role))
}

fn roles(finding: &Finding, evidence: &Evidence) -> Vec<Role> {
    let about = evidence.living().filter(|pod| finding.pods.contains(&pod.name_any()));
    let roles: BTreeSet<Role> = about.filter_map(pods::role).collect();
    roles.into_iter().collect()
}

fn place(role: Role) -> &'static str {
    let known = RolesSpec::TEMPLATES.into_iter().find(|(known, _)| *known == role);
    known.map_or(TEMPLATE, |(_, place)| place)
}
