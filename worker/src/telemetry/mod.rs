//! What a run reports: metrics (JSONL, TensorBoard, Prometheus), samples, events, progress, the log.
//!
//! The trainer fills a [`StepReport`] and hands it to the [`Recorder`]; the recorder fans it out, one sink per file.

mod before_after;
mod catalogue;
mod definition;
mod engine;
mod exposition;
mod http;
mod jsonl;
mod live;
pub mod log;
mod metric;
mod probes;
mod progress;
mod recorder;
mod request_times;
pub mod run_dir;
mod stage;
mod step;
pub mod table;
mod tensorboard;
mod test_sets;
mod time_left;

pub use before_after::{Answer, BeforeAfter, BeforeAfterRow, PassAtN, SetBeforeAfter, passes};
pub use definition::{Kind, Unit};
pub use exposition::Exposition;
pub use http::Server;
pub(crate) use jsonl::{each as each_line, read as read_lines};
pub use live::Live;
pub use metric::Metric;
pub use probes::probes;
pub use progress::OutputMode;
pub(crate) use progress::{duration, screen};
pub use recorder::{Recorder, Watched};
pub use request_times::RequestTimes;
pub use run_dir::RunDir;
pub use stage::Stage;
pub(crate) use step::reward_source;
pub use step::{EvaluationReport, EventRecord, SampleRecord, SetReport, StepReport, TokenRecord};
