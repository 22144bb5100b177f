//! Prompts from files: parsing, filtering, deterministic order.
