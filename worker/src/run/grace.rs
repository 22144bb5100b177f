//! Whether a pod that is asked to stop has enough time to save.

use std::time::Duration;

use ppo_crds::spec::Overlap;

use crate::telemetry::Stage;
use crate::trainer::PATIENCE;

/// What to say where a stop may take longer than `grace`: an update is made to its end, of which `stages` are the times, samples that are drawn
/// ahead are waited for, and then the checkpoint takes as long as `save`.
pub fn too_short(grace: Duration, stages: &[(Stage, Duration)], save: Duration, overlap: Overlap) -> Option<String> {
    let is_update = |stage: Stage| matches!(stage, Stage::UpdateActor | Stage::UpdateCritic);
    let updates = stages.iter().filter(|(stage, _)| is_update(*stage));
    let update: Duration = updates.map(|(_, took)| *took).sum();
    let ahead = match overlap {
        Overlap::None => Duration::ZERO,
        Overlap::OneStep => PATIENCE,
    };
    let most = update + ahead + save;
    (most > grace).then(|| {
        format!(
            "asked to stop, this pod may take {} s: {:.0} s for the update of a step, {} s for samples drawn ahead, {:.0} s for the checkpoint; \
             it is killed after {} s, and what was trained since the checkpoint before is lost: set terminationGracePeriodSeconds in \
             roles.actor.template.spec to more",
            most.as_secs_f64().ceil(),
            update.as_secs_f64(),
            ahead.as_secs(),
            save.as_secs_f64(),
            grace.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_told_that_it_has_too_little_time_only_where_it_has() {
        let seconds = Duration::from_secs;
        let stages = [
            (Stage::Generate, seconds(5000)),
            (Stage::UpdateActor, seconds(300)),
            (Stage::UpdateCritic, seconds(200)),
        ];
        let told = |grace, save, overlap| too_short(seconds(grace), &stages, seconds(save), overlap);
        assert_eq!(told(600, 100, Overlap::None), None);
        let words = told(600, 101, Overlap::None).unwrap();
        assert!(
            words.contains("may take 601 s") && words.contains("killed after 600 s"),
            "{words}"
        );
        let words = told(600, 100, Overlap::OneStep).unwrap();
        assert!(
            words.contains("may take 720 s") && words.contains("120 s for samples"),
            "{words}"
        );
    }
}
