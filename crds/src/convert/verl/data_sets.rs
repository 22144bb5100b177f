//! The reward functions that verl has for data sets of mathematics. It chooses by the rows' `data_source`
//! (`default_compute_score` in verl/utils/reward_score), which a command line does not have, but the names of files tell of it.

use crate::convert::draft::Draft;
use crate::convert::final_answer;
use crate::convert::row::list;

/// What paths of such data sets have in them.
const NAMES: [&str; 4] = ["gsm8k", "math", "aime", "numina"];

/// Compares final answers where all training files are of mathematics, and no function of one's own scores.
pub fn compare(draft: &mut Draft) {
    let (files, source) = draft.values("data.train_files").unwrap_or_default();
    let files: Vec<String> = files.iter().flat_map(|value| list(&value.to_lowercase())).collect();
    let is_mathematics = |file: &String| NAMES.iter().any(|name| file.contains(name));
    let is_own = |name: &str| name.contains("custom_reward_function") && !name.contains("overlong_buffer");
    if files.is_empty() || !files.iter().all(is_mathematics) || draft.has_name(is_own) {
        return;
    }
    final_answer::compare(draft, 1.0, None, &source);
    let why = "the files seem to be of mathematics, so mathMatch scores; verl chooses by the rows' data_source, wants the answer behind #### \
               (GSM8K), in \\boxed{} (MATH) or behind Answer: (DAPO, AIME), which `extract` can want too, and DAPO's score of a wrong answer \
               is -1, not 0";
    draft.leave("data_source", why);
}
