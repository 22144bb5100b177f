//! `ppo-worker report`: one HTML file with the curves and samples of a run.
