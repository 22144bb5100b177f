//! Tables as kubectl prints them: upper-case heads, columns three spaces apart, no rules.

use super::printer::visible;

/// Rows under a head; every row has as many cells as the head.
#[derive(Debug)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(head: impl Into<Vec<&'static str>>) -> Self {
        Self {
            head: head.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Empty cells are shown as `-`, so that columns can be counted by programs.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| one_line(&cell)).collect();
        self.rows.push(cells);
    }

    /// The table, each line after `indent`, with a line break after every line.
    pub fn render(&self, indent: &str) -> String {
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells
                    .map(|cell| cell.chars().count())
                    .chain([self.head[column].len()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let head: Vec<String> = self.head.iter().map(ToString::to_string).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:<width$}"))
                .collect();
            text.push_str(format!("{indent}{}", cells.join("   ")).trim_end());
            text.push('\n');
        }
        text
    }
}

fn one_line(cell: &str) -> String {
    match cell.trim() {
        "" => "-".into(),
        cell => visible(&cell.split_whitespace().collect::<Vec<_>>().join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row(["a-long-name".into(), "Running".into()]);
        table.row(["b".into(), String::new()]);
        assert_eq!(
            table.render(""),
            "NAME          STATE\na-long-name   Running\nb             -\n"
        );
    }

    #[test]
    fn what_a_pod_said_cannot_move_the_cursor() {
        let mut table = Table::new(["MESSAGE", "AGE"]);
        table.row(["\u{1b}[1A".into(), "5m".into()]);
        assert_eq!(table.render(""), "MESSAGE     AGE\n\\u{1b}[1A   5m\n");
    }

    #[test]
    fn a_message_of_several_lines_stays_in_its_row() {
        let mut table = Table::new(["MESSAGE"]);
        table.row(["first\n  second".into()]);
        assert_eq!(table.render("  "), "  MESSAGE\n  first second\n");
    }
}
