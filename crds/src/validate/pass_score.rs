//! What `evaluation.passScore` means beside the sources of a reward: a score is the sum of what they give, by weight.

use crate::PpoJobSpec;
use crate::spec::RewardRule;

/// Where no sample passes, or a wrong one may: why, with what would help. None where a reward model or a server gives scores too, of which
/// nothing is known.
pub fn doubtful(spec: &PpoJobSpec) -> Option<String> {
    let (evaluation, reward) = (spec.evaluation.as_ref()?, &spec.roles.reward);
    if reward.model.is_some() || reward.remote.is_some() {
        return None;
    }
    // A rule gives 0 to 1.
    let most = |wanted: &dyn Fn(&RewardRule) -> bool| -> f64 {
        let rules = reward.rules.iter().filter(|rule| wanted(rule));
        // That of none is -0.
        rules.map(|rule| rule.weight.max(0.0)).sum::<f64>() + 0.0
    };
    let (best, by_others) = (most(&|_| true), most(&|rule| !rule.compares()));
    let pass_score = evaluation.pass_score;
    if best + 1e-9 < pass_score {
        return Some(format!(
            "is {pass_score}, and the rules of spec.roles.reward give {best} at most, so no sample passes; lower it"
        ));
    }
    let wrong_passes = by_others >= pass_score && reward.rules.iter().any(RewardRule::compares);
    wrong_passes.then(|| {
        format!(
            "is {pass_score}, which rules that do not compare with the label give by themselves ({by_others}), so a wrong answer may pass; raise \
             it above that, or give a penalty (a length, say) a negative weight"
        )
    })
}
