//! The token of a server as its command line gives it, and which servers may listen without one.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use ppo_crds::pod::env;

use crate::manifest::Invalid;

/// Flags about who may call a server.
#[derive(Clone, Debug, Args)]
pub struct AccessArgs {
    /// Bearer token that callers must send.
    #[arg(
        long,
        visible_alias = "token",
        env = env::TOKEN,
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    api_key: Option<String>,
    /// File that holds the bearer token: other users of this machine do not see it in the process list. Where it is given it counts, whatever
    /// the variable holds.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let anybody who reaches the address use the server. Without it a server without a token listens on loopback only.
    #[arg(long)]
    allow_anonymous: bool,
}

impl AccessArgs {
    /// The token that callers must send; None: none.
    ///
    /// # Errors
    /// When its file cannot be read or holds none.
    pub fn token(&self) -> Result<Option<String>> {
        match &self.api_key_file {
            Some(file) => read_token(file).map(Some),
            // A file's last newline comes along where a Secret was made from one.
            None => {
                let token = self.api_key.as_deref().map(str::trim);
                Ok(token.filter(|token| !token.is_empty()).map(str::to_owned))
            }
        }
    }

    /// Refuses a server that is open to everybody, unless that is what was asked for. `lets` is what anybody could do then.
    ///
    /// # Errors
    /// When it listens for other machines without a token.
    pub fn check(&self, host: IpAddr, token: Option<&str>, lets: &str) -> Result<()> {
        if token.is_some() || host.is_loopback() || self.allow_anonymous {
            return Ok(());
        }
        let words = format!(
            "listening on {host} without a token lets anybody {lets}: give --api-key-file or {}, listen on 127.0.0.1, or say \
             --allow-anonymous",
            env::TOKEN
        );
        Err(Invalid::new(words).into())
    }
}

fn read_token(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the token in {}", file.display()))?;
    let token = text.trim();
    if token.is_empty() {
        let words = format!("{} is empty: it should hold the token", file.display());
        return Err(Invalid::new(words).into());
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_last_newline_is_no_part_of_the_token_whichever_way_it_comes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "right\n").unwrap();
        let args = |api_key: Option<&str>, api_key_file| AccessArgs {
            api_key: api_key.map(str::to_owned),
            api_key_file,
            allow_anonymous: false,
        };
        for given in [args(Some("right\n"), None), args(None, Some(file))] {
            assert_eq!(given.token().unwrap().as_deref(), Some("right"));
        }
        assert_eq!(args(Some(" \n"), None).token().unwrap(), None);
    }
}
