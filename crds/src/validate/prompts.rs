//! Rules of the prompts that a single field's limits cannot say.

use super::Problem;
use crate::PpoJobSpec;
use crate::spec::NO_TEMPLATE_VARIABLES;

/// Adds variables that no chat template would see.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    let field = "spec.prompts.chatTemplateVariables";
    let Some(variables) = &spec.prompts.chat_template_variables else {
        return;
    };
    if !spec.prompts.chat_template {
        problems.push(Problem::new(
            field,
            "they are for the chat template: give spec.prompts.chatTemplate: true, or remove them",
        ));
    }
    let wrong = NO_TEMPLATE_VARIABLES
        .iter()
        .filter(|name| variables.contains_key(**name));
    problems
        .extend(wrong.map(|name| Problem::new(format!("{field}.{name}"), "is no variable of a template; remove it")));
}
