//! What stands between a sign and the one that closes it: `$(...)`, `${...}`, `((...))`.

use super::{Lexer, Unreadable};

/// Nobody quotes commands within quoted commands as deep as this.
const DEEPEST: usize = 16;

impl Lexer<'_> {
    /// What stands before the sign that closes one that was read. One in quotes closes no parenthesis.
    pub(super) fn enclosed(&mut self, opens: char, closes: char, what: &'static str) -> Result<String, Unreadable> {
        let text = self.rest.text;
        if let Some(length) = (opens == '(').then(|| to_parenthesis(text, 0)).flatten() {
            self.rest.text = &text[length + 1..];
            return Ok(text[..length].to_owned());
        }
        let (mut inside, mut open) = (String::new(), 1);
        loop {
            let c = self.rest.next().ok_or(Unreadable::Unclosed(what))?;
            if c == opens {
                open += 1;
            } else if c == closes {
                open -= 1;
            }
            if open == 0 {
                return Ok(inside);
            }
            inside.push(c);
        }
    }
}

/// How far the parenthesis is that closes one in front of a text of commands, in which quotes, comments and texts behind `<<EOF` close none.
fn to_parenthesis(text: &str, depth: usize) -> Option<usize> {
    let (mut at, mut open, mut before) = (0, 1, ' ');
    let mut ends = Vec::new();
    loop {
        let rest = &text[at..];
        let c = rest.chars().next()?;
        at += match c {
            '\\' => 1 + rest[1..].chars().next()?.len_utf8(),
            '\'' | '`' => rest[1..].find(c)? + 2,
            '"' => quoted(rest, depth)?,
            '#' if before.is_whitespace() || ";|&(".contains(before) => rest.find('\n')?,
            '<' if rest.starts_with("<<<") => 3,
            '<' if rest.starts_with("<<") => {
                let word = rest[2..].trim_start_matches(['-', ' ', '\t']);
                let end = word.find(|c: char| c.is_whitespace() || ";|&<>()".contains(c))?;
                ends.push(word[..end].replace(['\'', '"', '\\'], ""));
                rest.len() - word.len() + end
            }
            '\n' => {
                let mut length = 1;
                for end in ends.drain(..) {
                    length += behind_line(&rest[length..], &end)?;
                }
                length
            }
            c => {
                open += i64::from(c == '(') - i64::from(c == ')');
                if open == 0 {
                    return Some(at);
                }
                c.len_utf8()
            }
        };
        before = c;
    }
}

/// How long a text in double quotes is, with both of them.
fn quoted(text: &str, depth: usize) -> Option<usize> {
    let mut at = 1;
    loop {
        let rest = &text[at..];
        at += match rest.chars().next()? {
            '"' => return Some(at + 1),
            '\\' => 1 + rest[1..].chars().next()?.len_utf8(),
            '$' if rest[1..].starts_with('(') && depth < DEEPEST => to_parenthesis(&rest[2..], depth + 1)? + 3,
            c => c.len_utf8(),
        };
    }
}

/// How far it is behind the line that is `end`.
fn behind_line(text: &str, end: &str) -> Option<usize> {
    let mut length = 0;
    for line in text.split_inclusive('\n') {
        length += line.len();
        if line.trim() == end {
            return Some(length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parenthesis_in_quotes_comments_and_texts_closes_nothing() {
        for text in [
            r#"echo "a)b")"#,
            "echo 'a)b')",
            r"echo a\)b)",
            r#"echo "$(echo ")")")"#,
            "echo a # it's )\n)",
            "cat <<EOF\nit's )\nEOF\n)",
            "cat <<-'E' | tr a b\n)\n\tE\n)",
            "(a) (b))",
            "$((1 << 2)))",
            "echo é`)`)",
        ] {
            assert_eq!(to_parenthesis(text, 0), Some(text.len() - 1), "{text}");
        }
        for text in ["", "a", "'", "\"a)", "\\", "<<EOF\n)", "#)", "é"] {
            assert_eq!(to_parenthesis(text, 0), None, "{text}");
        }
        let deep = "\"$(".repeat(100_000);
        assert_eq!(to_parenthesis(&deep, 0), None);
    }
}
