//! The reward functions that verl has for data sets of mathematics. It chooses by the rows' `data_source`
//! (`default_compute_score` in verl/utils/reward_score), which a command line does not have, but the names of files tell of it.

use crate::convert::draft::Draft;
use crate::convert::final_answer;
use crate::convert::row::list;

/// What paths of such data sets have in them.
const NAMES: [&str; 4] = ["gsm8k", "math", "aime", "numina"];

/// Those that verl scores as DAPO does: 1 for a right answer and -1 for a wrong one, behind `Answer:` (verl/utils/reward_score/math_dapo.py).
const OF_DAPO: [&str; 2] = ["dapo", "aime"];

const BEHIND_ANSWER: &str = "(?i)answer:(.*)";

const DAPO: &str = "the files seem to be DAPO's or AIME's, so mathMatch scores what stands behind Answer:, as verl does by the rows' data_source. \
                    With weight 2 a right answer has 2 and a wrong one 0, which differ as verl's 1 and -1 do: the mean of a group, a critic or \
                    whitening takes the rest. An evaluation counts scores of at least 1, evaluation.passScore's default, which tells them apart";

const OTHERS: &str = "the files seem to be of mathematics, so mathMatch scores; verl chooses by the rows' data_source, and wants the answer behind \
                      #### (GSM8K), in \\boxed{} (MATH) or behind Answer: (DAPO, AIME), which `extract` can want too; DAPO's and AIME's rows \
                      have 1 and -1 there, which weight: 2 comes to";

/// Compares final answers where all training files are of mathematics, and no function of one's own scores.
pub fn compare(draft: &mut Draft) {
    let (files, source) = draft.values("data.train_files").unwrap_or_default();
    let files: Vec<String> = files.iter().flat_map(|value| list(&value.to_lowercase())).collect();
    let is_mathematics = |file: &String| NAMES.iter().any(|name| file.contains(name));
    let is_own = |name: &str| name.contains("custom_reward_function") && !name.contains("overlong_buffer");
    if files.is_empty() || !files.iter().all(is_mathematics) || draft.has_name(is_own) {
        return;
    }
    let is_dapo = |file: &String| OF_DAPO.iter().any(|name| file.contains(name));
    if files.iter().all(is_dapo) {
        final_answer::compare(draft, 2.0, Some(BEHIND_ANSWER), &source);
        draft.leave("data_source", DAPO);
    } else {
        final_answer::compare(draft, 1.0, None, &source);
        draft.leave("data_source", OTHERS);
    }
}
