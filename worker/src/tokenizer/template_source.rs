//! Which chat template of a model folder is meant. transformers has written them in two ways (`save_chat_templates` in
//! `tokenization_utils_base.py`): the one for all chats as `chat_template.jinja` and further ones, by their names, in
//! `additional_chat_templates/`; before that one or a list of named ones inside `tokenizer_config.json`. Where there is any such file, what
//! the configuration has is passed over, as there (`_from_pretrained`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::config::TokenizerConfig;
use crate::hub::templates::{CHAT_TEMPLATE, MORE_TEMPLATES, more_templates};

/// A template that is not compiled yet.
pub(super) struct Source {
    /// Its Jinja.
    pub text: String,
    /// What it is called in an error.
    pub called: String,
}

/// The template for all chats, if the folder has one.
///
/// # Errors
/// When it cannot be read, or there are others and none for all chats.
pub(super) fn for_all_chats(folder: &Path, config: &TokenizerConfig) -> Result<Option<Source>> {
    // One that is called so wins in transformers, too.
    let files = [named("default"), PathBuf::from(CHAT_TEMPLATE)];
    for file in files {
        if let Some(source) = read(&folder.join(file))? {
            return Ok(Some(source));
        }
    }
    ensure!(
        more_templates(folder)?.is_empty(),
        "{} has chat templates, and none of them is for all chats: add that one as {}",
        folder.join(MORE_TEMPLATES).display(),
        folder.join(CHAT_TEMPLATE).display()
    );
    let place = configuration(folder);
    let text = config.chat_template().with_context(|| place.clone())?;
    let called = format!("{place}: chat template");
    Ok(text.map(|text| Source { text, called }))
}

/// The template for chats with tools, where there is one of their own (Hermes 2 Pro, Hermes 3).
///
/// # Errors
/// When it cannot be read.
pub(super) fn for_tools(folder: &Path, config: &TokenizerConfig) -> Result<Option<Source>> {
    const NAME: &str = "tool_use";
    let file = read(&folder.join(named(NAME)))?;
    if file.is_some() || folder.join(CHAT_TEMPLATE).exists() || !more_templates(folder)?.is_empty() {
        return Ok(file);
    }
    let called = format!("{}: chat template {NAME:?}", configuration(folder));
    Ok(config.named_template(NAME).map(|text| Source {
        text: text.to_owned(),
        called,
    }))
}

/// The file of the template of that name, inside the model's folder.
fn named(name: &str) -> PathBuf {
    Path::new(MORE_TEMPLATES).join(format!("{name}.jinja"))
}

fn configuration(folder: &Path) -> String {
    folder.join("tokenizer_config.json").display().to_string()
}

fn read(file: &Path) -> Result<Option<Source>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(Source {
            text,
            called: format!("{}: chat template", file.display()),
        })),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The templates of a folder with these files, and with these named ones in its configuration: for all chats and for those with tools.
    fn found(files: &[(&str, &str)], named: &[(&str, &str)]) -> [Result<Option<String>, String>; 2] {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let list: Value = named
            .iter()
            .map(|(name, text)| json!({"name": name, "template": text}))
            .collect();
        let config = TokenizerConfig {
            chat_template: Some(list).filter(|_| !named.is_empty()),
            ..TokenizerConfig::default()
        };
        [for_all_chats, for_tools].map(|look| {
            let found = look(folder.path(), &config).map_err(|error| format!("{error:#}"))?;
            Ok(found.map(|source| source.text))
        })
    }

    fn text(text: &str) -> Result<Option<String>, String> {
        Ok(Some(text.to_owned()))
    }

    #[test]
    fn files_with_names_are_templates_of_those_names() {
        let [all, tools, rag] = [
            ("chat_template.jinja", "all"),
            ("additional_chat_templates/tool_use.jinja", "tools"),
            ("additional_chat_templates/rag.jinja", "rag"),
        ];
        assert_eq!(found(&[all, tools, rag], &[]), [text("all"), text("tools")]);
        assert_eq!(found(&[all, rag], &[]), [text("all"), Ok(None)]);
        assert_eq!(found(&[all], &[]), [text("all"), Ok(None)]);
        assert_eq!(found(&[], &[]), [Ok(None), Ok(None)]);
        let default = ("additional_chat_templates/default.jinja", "named");
        assert_eq!(found(&[default, all], &[]), [text("named"), Ok(None)]);
        let other = ("additional_chat_templates", "a file");
        assert_eq!(found(&[other, all], &[]), [text("all"), Ok(None)]);
    }

    #[test]
    fn any_file_stands_for_all_that_the_configuration_has() {
        let named = [("default", "configured"), ("tool_use", "configured tools")];
        assert_eq!(found(&[], &named), [text("configured"), text("configured tools")]);
        assert_eq!(
            found(&[("chat_template.jinja", "all")], &named),
            [text("all"), Ok(None)]
        );
        let notes = ("additional_chat_templates/notes.txt", "no template");
        assert_eq!(found(&[notes], &named), [text("configured"), text("configured tools")]);
        let tools = ("additional_chat_templates/tool_use.jinja", "tools");
        let [all, with_tools] = found(&[tools], &named);
        assert_eq!(with_tools, text("tools"));
        let error = all.unwrap_err();
        assert!(
            error.contains("none of them is for all chats: add that one as ")
                && error.ends_with("/chat_template.jinja"),
            "{error}"
        );
    }
}
