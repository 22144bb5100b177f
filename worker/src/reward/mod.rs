//! Where scores come from: a reward model, rules, a remote server; alone or as a weighted sum.
