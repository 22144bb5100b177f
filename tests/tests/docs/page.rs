//! A page in Markdown, cut into what the tests look at.

use std::path::{Path, PathBuf};

/// A page.
pub struct Page {
    /// Its name, relative to the repository.
    pub name: String,
    pub text: String,
}

/// Text between backticks or fences, and where it stands.
pub struct Code {
    pub place: String,
    pub text: String,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

impl Page {
    pub fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            name: name.to_owned(),
            text,
        }
    }

    /// The pages of `docs/`.
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(repository().join("docs")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.ends_with(".md")).collect();
        names.sort();
        assert!(names.len() >= 8, "{names:?}");
        names.iter().map(|name| Self::read(&format!("docs/{name}"))).collect()
    }

    /// Lines outside fences with their numbers.
    pub fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            (!fenced && !fence).then_some((index + 1, line))
        })
    }

    /// The fenced blocks of a language; "" is none.
    pub fn blocks(&self, language: &str) -> Vec<Code> {
        let mut blocks = Vec::new();
        let mut open: Option<(bool, usize, Vec<&str>)> = None;
        for (index, line) in self.text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), open.take()) {
                (Some(of), None) => open = Some((of.trim() == language, index + 1, Vec::new())),
                (Some(_), Some((true, at, lines))) => blocks.push(Code {
                    place: format!("{}:{at}", self.name),
                    text: lines.join("\n"),
                }),
                (None, Some((wanted, at, mut lines))) => {
                    lines.push(line);
                    open = Some((wanted, at, lines));
                }
                (Some(_), Some((false, ..))) | (None, None) => {}
            }
        }
        blocks
    }

    /// What stands between backticks in the prose.
    pub fn spans(&self) -> Vec<Code> {
        let spans = self.prose().flat_map(|(number, line)| {
            let inside = line.split('`').skip(1).step_by(2);
            inside.map(move |text| (number, text))
        });
        spans
            .map(|(number, text)| Code {
                place: format!("{}:{number}", self.name),
                text: text.to_owned(),
            })
            .collect()
    }

    /// The cells of the tables whose first heading cell is `heading`, row by row.
    pub fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let cells = |line: &str| -> Vec<String> {
            let inside = line.trim().trim_matches('|');
            inside.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut rows = Vec::new();
        let mut wanted = false;
        for (_, line) in self.prose() {
            if !line.starts_with('|') {
                wanted = false;
                continue;
            }
            let row = cells(line);
            match row.first().is_some_and(|first| first.starts_with(heading)) {
                true => wanted = true,
                false if wanted && !line.starts_with("|---") => rows.push(row),
                false => {}
            }
        }
        rows
    }
}
