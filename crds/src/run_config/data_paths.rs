//! Where rows lie.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Files and folders, in the order in which they are read. One alone is written as its path, as it was before there could be several, so that
/// checkpoints of earlier versions go on.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum DataPaths {
    /// One.
    One(PathBuf),
    /// Several, one after another.
    Several(Vec<PathBuf>),
}

impl DataPaths {
    /// All of them.
    pub fn as_slice(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }
}

impl From<PathBuf> for DataPaths {
    fn from(path: PathBuf) -> Self {
        Self::One(path)
    }
}

impl From<Vec<PathBuf>> for DataPaths {
    fn from(paths: Vec<PathBuf>) -> Self {
        match <[PathBuf; 1]>::try_from(paths) {
            Ok([only]) => Self::One(only),
            Err(paths) => Self::Several(paths),
        }
    }
}

/// For an error: the first few.
impl fmt::Display for DataPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        let paths = self.as_slice();
        let shown = paths.iter().take(SHOWN).map(|path| path.display().to_string());
        f.write_str(&shown.collect::<Vec<_>>().join(", "))?;
        match paths.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(paths: &[&str]) -> DataPaths {
        paths.iter().map(PathBuf::from).collect::<Vec<_>>().into()
    }

    #[test]
    fn one_path_is_written_as_it_was_before_there_could_be_several() {
        for (paths, written) in [
            (of(&["/a.jsonl"]), json!("/a.jsonl")),
            (of(&["/b", "/a.jsonl"]), json!(["/b", "/a.jsonl"])),
        ] {
            assert_eq!(serde_json::to_value(&paths).unwrap(), written);
            assert_eq!(serde_json::from_value::<DataPaths>(written).unwrap(), paths);
        }
        assert!(serde_json::from_value::<DataPaths>(Value::Null).is_err());
    }

    #[test]
    fn several_are_told_by_the_first_few() {
        assert_eq!(of(&["/a"]).to_string(), "/a");
        assert_eq!(of(&["/c", "/a", "/b"]).to_string(), "/c, /a, /b");
        assert_eq!(of(&["/c", "/a", "/b", "/d", "/e"]).to_string(), "/c, /a, /b and 2 more");
    }
}
