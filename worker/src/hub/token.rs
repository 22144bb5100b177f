//! The token for private and gated models, from where Python's `huggingface_hub` takes it.

use std::path::PathBuf;

use super::is_on;

/// `HF_TOKEN`, else what `hf auth login` has left: the file `HF_TOKEN_PATH`, or `token` in `home`, the folder that `HF_HOME` names.
pub(super) fn known_token(variable: impl Fn(&str) -> Option<String>, home: Option<PathBuf>) -> Option<String> {
    // A file's last newline comes along, also where a Secret was made from one.
    let clean = |token: String| Some(token.trim().to_owned()).filter(|token| !token.is_empty());
    if let Some(token) = variable("HF_TOKEN").and_then(clean) {
        return Some(token);
    }
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_on(&value)) {
        return None;
    }
    let file = variable("HF_TOKEN_PATH").map(PathBuf::from);
    let file = file.or_else(|| Some(home?.join("token")))?;
    std::fs::read_to_string(file).ok().and_then(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_login_is_taken_where_no_variable_has_one() {
        let home = tempfile::tempdir().unwrap();
        let login = || Some(home.path().to_owned());
        let none = |_: &str| None;
        assert_eq!(known_token(none, login()), None, "nobody has logged in");
        std::fs::write(home.path().join("token"), "of-login\n").unwrap();
        assert_eq!(known_token(none, login()), Some("of-login".to_owned()));
        assert_eq!(known_token(none, None), None);
        let given = |name: &str| (name == "HF_TOKEN").then(|| " given\n".to_owned());
        assert_eq!(known_token(given, login()), Some("given".to_owned()));
        let switched_off = |name: &str| (name == "HF_HUB_DISABLE_IMPLICIT_TOKEN").then(|| "1".to_owned());
        assert_eq!(known_token(switched_off, login()), None);
        let elsewhere = home.path().join("other");
        std::fs::write(&elsewhere, "other").unwrap();
        let named = |name: &str| (name == "HF_TOKEN_PATH").then(|| elsewhere.display().to_string());
        assert_eq!(known_token(named, login()), Some("other".to_owned()));
    }
}
