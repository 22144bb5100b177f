//! `docs/migration.md` is written from the tables that `ppo-worker convert` reads flags with.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use ppo_crds::convert::migration_page;

#[test]
fn the_committed_migration_page_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/migration.md");
    let generated = migration_page();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/migration.md is stale: run UPDATE_EXPECT=1 cargo test -p ppo-crds"
    );
}
