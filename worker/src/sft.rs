//! `ppo-worker sft`: supervised warm start on prompt and response pairs.
