//! The chart carries what lies elsewhere in the repository: equal, and written by this test (`make crds`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::tools::{chart, files, name, repository};

/// From each copy to its original.
fn copies() -> BTreeMap<PathBuf, PathBuf> {
    let mut copies = BTreeMap::from([(chart().join("files/ppojob.yaml"), repository().join("crds/ppojob.yaml"))]);
    for (from, to, ending) in [("grafana", "dashboards", "json"), ("prometheus", "rules", "yaml")] {
        for original in files(&repository().join("configs").join(from), ending) {
            copies.insert(chart().join("files").join(to).join(name(&original)), original);
        }
    }
    copies
}

#[test]
fn the_chart_has_the_definition_the_dashboards_and_the_alerts_of_this_repository() {
    let copies = copies();
    assert!(copies.len() >= 8, "{copies:?}");
    for (copy, original) in &copies {
        let wanted = fs::read_to_string(original).unwrap();
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::write(copy, &wanted).unwrap();
        }
        let found = fs::read_to_string(copy).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is not {}: run `make crds`",
            copy.display(),
            original.display()
        );
    }
}

#[test]
fn the_chart_has_no_dashboard_or_alert_of_its_own() {
    let copies = copies();
    for (folder, ending) in [("dashboards", "json"), ("rules", "yaml")] {
        for path in files(&chart().join("files").join(folder), ending) {
            assert!(
                copies.contains_key(&path),
                "{} has no original: delete it",
                path.display()
            );
        }
    }
}
