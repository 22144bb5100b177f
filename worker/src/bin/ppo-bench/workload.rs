//! What is generated: the model, the prompts and how tokens are drawn.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ppo_crds::spec::DType;
use ppo_worker::device::DeviceArgs;
use ppo_worker::engine::{Details, Request, SamplingParams, sample_seed};

/// Longest time one run may take.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// The workload.
#[derive(Debug, Args)]
pub struct Workload {
    /// Folder in Hugging Face layout.
    #[arg(long)]
    pub model: PathBuf,
    /// Precision of weights and cache.
    #[arg(long, value_enum, default_value_t = Precision::Float32)]
    pub dtype: Precision,
    /// One prompt per line, as token ids.
    #[arg(long)]
    pub prompts: PathBuf,
    /// Tokens drawn per prompt.
    #[arg(long, default_value_t = 64)]
    pub new_tokens: usize,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Threads that compute. Default: all cores.
    #[arg(long)]
    pub threads: Option<u16>,
}

/// Precision of weights and cache.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Precision {
    /// 4 bytes a number.
    Float32,
    /// 2 bytes a number.
    Bfloat16,
}

impl From<Precision> for DType {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Float32 => Self::Float32,
            Precision::Bfloat16 => Self::Bfloat16,
        }
    }
}

impl Workload {
    /// A request for each prompt, of one sample each.
    pub fn requests(&self) -> Result<Vec<Request>> {
        if let Some(threads) = self.threads {
            tch::set_num_threads(i32::from(threads));
        }
        let params = Arc::new(sampling(self.new_tokens));
        let prompts = read_prompts(&self.prompts)?;
        let request = |(index, prompt)| Request {
            prompt,
            seeds: vec![sample_seed(0, 0, index, 0)],
            params: params.clone(),
            details: Details::default(),
        };
        Ok((0..).zip(prompts).map(request).collect())
    }
}

/// The first `batch` of them.
pub fn first(requests: &[Request], batch: usize) -> Result<Vec<Request>> {
    let first = requests.get(..batch);
    Ok(first
        .with_context(|| format!("there are only {} prompts", requests.len()))?
        .to_vec())
}

/// The middle of some rates.
pub fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The bench's sampling: the whole vocabulary at temperature 1, nothing ends a response early.
fn sampling(new_tokens: usize) -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens: new_tokens,
        min_new_tokens: 0,
        stop_token_ids: vec![],
        stop: vec![],
        skip_special: true,
    }
}

fn read_prompts(path: &Path) -> Result<Vec<Arc<[u32]>>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the prompts in {}", path.display()))?;
    let parse = |(number, line): (usize, &str)| -> Result<Arc<[u32]>> {
        let ids: std::result::Result<Arc<[u32]>, _> = line.split_whitespace().map(str::parse).collect();
        ids.with_context(|| {
            format!(
                "{}:{}: a prompt is token ids separated by blanks",
                path.display(),
                number + 1
            )
        })
    };
    text.lines().enumerate().map(parse).collect()
}
