//! What a run tells: metrics, TensorBoard events, samples, progress.
