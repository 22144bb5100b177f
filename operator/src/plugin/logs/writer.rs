//! What is printed: each line with its pod, or that and its container, before it, and whether it is all there is.

use std::collections::HashMap;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use anyhow::{Result, bail};

use crate::plugin::merge::Line;

/// Colours of the pods in turn; red is left to what the pods say.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
];

/// An error where logs are missing or broke off: what was printed is not all there is.
pub(super) fn whole(missing: usize, job: &str) -> Result<()> {
    if missing > 0 {
        bail!("{missing} of the logs of {job} could not be read to the end; try again while its pods are there");
    }
    Ok(())
}

/// Writes lines with the pod before each, in its colour.
pub(super) struct Writer {
    output: std::io::BufWriter<Box<dyn std::io::Write + Send>>,
    timestamps: bool,
    width: usize,
    colours: HashMap<String, Style>,
}

impl Writer {
    pub(super) fn new(timestamps: bool) -> Self {
        Self::onto(anstream::stdout(), timestamps)
    }

    pub(super) fn onto(output: impl std::io::Write + Send + 'static, timestamps: bool) -> Self {
        Self {
            output: std::io::BufWriter::new(Box::new(output)),
            timestamps,
            width: "reference-0".len(),
            colours: HashMap::new(),
        }
    }

    /// The pod's colour, which it has from now on, and room for its name in all further lines.
    pub(super) fn colour(&mut self, pod: &str) -> Style {
        self.width = self.width.max(pod.len());
        let next = COLOURS[self.colours.len() % COLOURS.len()].on_default();
        *self.colours.entry(pod.into()).or_insert(next)
    }

    pub(super) fn write(&mut self, pod: &str, line: &Line) -> Result<()> {
        let style = self.colour(pod);
        write!(self.output, "{style}{pod:<width$}{style:#}  ", width = self.width)?;
        if let Some(time) = line.time.filter(|_| self.timestamps) {
            write!(self.output, "{time} ")?;
        }
        writeln!(self.output, "{}", line.text)?;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.output.flush()?)
    }
}
