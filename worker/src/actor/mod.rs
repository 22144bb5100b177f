//! The learning role: parameters, optimizer, update, checkpoints.
