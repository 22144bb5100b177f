//! The frameworks that are read, and what is particular to each.

use super::dialect::{Dialect, Syntax};
use super::shell::Word;
use super::{ConvertError, known, openrlhf, trl, verl};

/// A framework whose flags are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// `openrlhf.cli.train_ppo_ray`, 0.6 to 0.11.
    Openrlhf,
    /// `verl.trainer.main_ppo`, and what takes its settings, with hydra overrides.
    Verl,
    /// TRL's PPO, RLOO and GRPO trainers.
    Trl,
}

impl Framework {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Openrlhf, Self::Verl, Self::Trl];

    /// Its word on our command line, which is its profile's too.
    pub fn word(self) -> &'static str {
        match self {
            Self::Openrlhf => "openrlhf",
            Self::Verl => "verl",
            Self::Trl => "trl",
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Openrlhf => "OpenRLHF",
            Self::Verl => "verl",
            Self::Trl => "TRL",
        }
    }

    /// Its programs, in words.
    pub(super) fn programs(self) -> &'static str {
        match self {
            Self::Openrlhf => "openrlhf.cli.train_ppo_ray",
            Self::Verl => "verl.trainer.main_ppo and, of its recipes, main_dapo, main_entropy and one_step_off_policy",
            Self::Trl => "`trl grpo`, `trl rloo` and scripts with ppo, rloo or grpo in their names",
        }
    }

    /// Whether a word is one of its programs.
    pub(super) fn starts(self) -> fn(&str) -> bool {
        match self {
            Self::Openrlhf => openrlhf::programs::starts,
            Self::Verl => verl::programs::starts,
            Self::Trl => trl::programs::starts,
        }
    }

    /// What to do instead of one of its programs that is not read; of `trl sft` both words are its name.
    pub(super) fn other(self) -> fn(&str) -> Option<&'static str> {
        match self {
            Self::Openrlhf => openrlhf::programs::other,
            Self::Verl => verl::programs::other,
            Self::Trl => trl::programs::other,
        }
    }

    /// Whether a word can be the first of a command that is nothing but flags.
    pub(super) fn is_flag(self) -> fn(&str) -> bool {
        match self {
            // `NAME=value` in front of a command sets a variable.
            Self::Verl => |word| {
                let setting = word.split_once('=');
                setting.is_some_and(|(name, _)| name.contains(|c: char| c.is_ascii_lowercase()))
            },
            Self::Openrlhf | Self::Trl => |word| word.starts_with("--"),
        }
    }

    /// Its settings, and what follows from several of them.
    pub(super) fn dialect(self, launcher: &[Word], flags: &[Word]) -> Result<Dialect, ConvertError> {
        Ok(match self {
            Self::Openrlhf => Dialect {
                name: self.name(),
                syntax: Syntax::Dashes,
                negates: false,
                rows: openrlhf::table::ROWS.to_vec(),
                known: known::OPENRLHF,
                finish: openrlhf::finish,
            },
            Self::Verl => verl::dialect(launcher),
            Self::Trl => trl::dialect(launcher, flags)?,
        })
    }
}
