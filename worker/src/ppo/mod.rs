//! The PPO maths: pure functions on tensors of shape [batch, time].
