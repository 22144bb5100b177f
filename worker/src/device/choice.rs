//! `--device`: what a person asks to compute on.

use std::fmt;
use std::str::FromStr;

/// What a person asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A GPU where there is one.
    #[default]
    Auto,
    /// The CPU, whatever else is there.
    Cpu,
    /// A GPU: that of the process' number in its pod, or a certain one.
    Cuda(Option<usize>),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "" | "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            _ => number(text)
                .map(|number| Self::Cuda(Some(number)))
                .ok_or_else(|| "want auto, cpu, cuda, or cuda:N with the number of a GPU".to_owned()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(number)) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "cpu", "cuda", "cuda:3"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "CUDA"] {
            assert!(text.parse::<Choice>().unwrap_err().contains("cuda:N"), "{text}");
        }
    }
}
