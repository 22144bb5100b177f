//! How many processes a command of TRL starts, by its launcher's flags: every size of TRL's is that of one of them.

use crate::convert::draft::{Draft, WrongValue};

/// Of a node, by torchrun and deepspeed.
const OF_A_NODE: [&str; 2] = ["--nproc_per_node", "--num_gpus"];

/// accelerate counts all processes, torchrun and deepspeed those of a node.
pub(super) fn processes(draft: &Draft) -> Result<u64, WrongValue> {
    let given = draft.count("num_processes")?;
    if let Some(all) = given.or_else(|| launcher_value(draft, "--num_processes")) {
        return Ok(all.max(1));
    }
    let of_a_node = OF_A_NODE.iter().find_map(|flag| launcher_value(draft, flag));
    Ok(of_a_node.unwrap_or(1).saturating_mul(nodes(draft)?).max(1))
}

/// Machines that the launcher starts processes on.
pub(super) fn nodes(draft: &Draft) -> Result<u64, WrongValue> {
    let of_launcher = || {
        let flags = ["--num_machines", "--nnodes", "--num_nodes"];
        flags.iter().find_map(|flag| launcher_value(draft, flag))
    };
    let nodes = draft.count("num_machines")?.or_else(of_launcher);
    Ok(nodes.unwrap_or(1).max(1))
}

/// Says that the number of processes is not known, where a launcher has more than one by its file or by itself.
pub(super) fn unknown_processes(draft: &mut Draft) {
    let mut flags = ["--num_processes"].iter().chain(&OF_A_NODE);
    let is_said = draft.is_given("num_processes") || flags.any(|flag| launcher_value(draft, flag).is_some());
    let launches = |word: &String| ["accelerate", "deepspeed", "torchrun", "trl"].contains(&word.as_str());
    if is_said || !draft.launcher.iter().any(launches) {
        return;
    }
    let file = draft
        .text("accelerate_config")
        .or_else(|| launcher_text(draft, "--config_file"));
    let why = match file {
        Some(file) => format!("{file}, which may say how many processes there are, is not read (TRL's own say 8)"),
        None => "the launcher's command says no number of processes".into(),
    };
    let message =
        format!("{why}, so one is taken: add --num_processes N before the script, or behind `trl`, and convert again");
    draft.leave("processes", &message);
}

fn launcher_value(draft: &Draft, flag: &str) -> Option<u64> {
    launcher_text(draft, flag)?.parse().ok()
}

fn launcher_text(draft: &Draft, flag: &str) -> Option<String> {
    let words = &draft.launcher;
    let at = words.iter().position(|word| {
        word.split('=')
            .next()
            .is_some_and(|name| name.replace('-', "_") == flag.replace('-', "_"))
    })?;
    words[at]
        .split_once('=')
        .map_or_else(|| words.get(at + 1).cloned(), |(_, value)| Some(value.to_owned()))
}
