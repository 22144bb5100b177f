//! `ppo-worker math`: the PPO functions on given numbers.
