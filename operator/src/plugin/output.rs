//! How a command prints: the values of `--output`.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// How a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// More columns.
    Wide,
    /// For programs.
    Json,
    /// For programs, and easier to read.
    Yaml,
    /// `ppojob.ppojob.dev/NAME`, as `kubectl` takes it.
    Name,
}

/// Of commands that print jobs.
pub const OBJECTS: &[Output] = &[Output::Wide, Output::Json, Output::Yaml, Output::Name];
/// Of commands that print what is no object of the cluster.
pub const TEXTS: &[Output] = &[Output::Wide, Output::Json, Output::Yaml];

/// Takes those that a command can print; of any other it says which these are.
pub fn one_of(fits: &'static [Output]) -> impl TypedValueParser<Value = Output> {
    let names = fits.iter().filter_map(Output::to_possible_value);
    PossibleValuesParser::new(names).try_map(|name| Output::from_str(&name, false))
}
