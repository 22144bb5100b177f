//! `ppo-bench weights`: weights from a publication into the engine behind its door, as the trainer sends them after a step, in turns
//! with a plain copy of as many bytes through a socket. Both ends share the machine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use ppo_worker::actor::parameters::Parameters;
use ppo_worker::model::kind;
use ppo_worker::model::marks::Changed;
use ppo_worker::model::{ModelConfig, Weights};
use ppo_worker::native::allocator;
use ppo_worker::native::bytes::byte_length;
use ppo_worker::roles::Publication;
use ppo_worker::rollout::weights::delta::Delta;
use serde_json::json;
use tch::Kind;

use super::server::Server;
use super::workload::{DEADLINE, Precision, median};

/// Bytes that the plain copy hands over at once.
const CHUNK: usize = 1 << 20;

#[derive(Debug, Args)]
pub struct WeightsArgs {
    /// Folder in Hugging Face layout.
    #[arg(long)]
    model: PathBuf,
    /// Precision of the weights.
    #[arg(long, value_enum, default_value_t = Precision::Bfloat16)]
    dtype: Precision,
    /// Transfers that the medians are taken of, after one to warm up.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// One in so many numbers changes from version to version, and what changed is sent. Default: all weights are sent.
    #[arg(long)]
    changed: Option<i64>,
    /// Threads that compute. Default: all cores.
    #[arg(long)]
    threads: Option<u16>,
}

pub fn weights(args: &WeightsArgs) -> Result<()> {
    ensure!(args.runs > 0, "--runs must be at least 1");
    // As the processes of a job do.
    allocator::keep_memory();
    if let Some(threads) = args.threads {
        tch::set_num_threads(i32::from(threads));
    }
    let config = ModelConfig::read(&args.model)?;
    let mut weights = Weights::load(&args.model, &config, kind(args.dtype.into()))?;
    let bytes: usize = weights.0.values().map(byte_length).sum();
    let server = Server::start(&args.model, args.dtype.into())?;
    let publication = Publication::default();
    let mut changing = args.changed.map(|each| Changing::of(&mut weights, each)).transpose()?;
    let (mut sent, mut copied, mut bytes_sent) = (Vec::new(), Vec::new(), 0);
    for (run, version) in (0..=args.runs).zip(1..) {
        let changed = changing.as_mut().map(Changing::step).transpose()?;
        let began = Instant::now();
        let delta = match changed.filter(|_| publication.is_held()) {
            Some(changed) => Delta::of(&(&weights).into(), &changed)?,
            None => None,
        };
        bytes_sent = delta.as_ref().map_or(bytes as u64, Delta::bytes);
        publication.publish_with((&weights).into(), version, delta);
        let sending = server.endpoint.update_weights(&publication, version, DEADLINE);
        server.runtime.block_on(sending).context("sending weights")?;
        let seconds = (began.elapsed().as_secs_f64(), copy(bytes)?);
        if run > 0 {
            sent.push(seconds.0);
            copied.push(seconds.1);
        }
    }
    let (sent, copied) = (median(&mut sent), median(&mut copied));
    let mib = mebibytes(bytes as u64);
    let figures = json!({
        "mib": mib,
        "sent_mib": mebibytes(bytes_sent),
        "seconds": sent,
        "mib_per_s": mib / sent,
        "copy_mib_per_s": mib / copied,
        "ratio": copied / sent,
        "runs": args.runs,
    });
    println!("{figures}");
    Ok(())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Weights of which an optimizer would change some numbers from version to version.
struct Changing {
    parameters: Parameters,
    each: i64,
}

impl Changing {
    /// One in `each` of `weights`.
    fn of(weights: &mut Weights, each: i64) -> Result<Self> {
        ensure!(each > 0, "--changed must be at least 1");
        let mut parameters = Parameters::adopt(weights)?;
        parameters.mark_changes()?;
        Ok(Self { parameters, each })
    }

    fn step(&mut self) -> Result<Changed> {
        self.parameters.clear_marks()?;
        let (count, each) = (self.parameters.count(), self.each as f64);
        self.parameters.change_master(0, count, |weights, _| {
            let chosen = weights.f_rand_like()?.f_lt(1.0 / each)?.f_to_kind(Kind::Float)?;
            // To the next number of bfloat16, or the one after it.
            let _ = weights.shallow_clone().f_mul_(&(chosen * 0.01 + 1.0))?;
            Ok(())
        })?;
        self.parameters
            .changed()?
            .context("only bfloat16 weights are sent as what changed")
    }
}

/// Seconds that so many bytes take from memory to memory through a socket.
fn copy(bytes: usize) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let sender = std::thread::spawn(move || -> Result<()> {
        let (mut out, source) = (TcpStream::connect(address)?, vec![1; CHUNK]);
        let mut left = bytes;
        while left > 0 {
            out.write_all(&source[..left.min(CHUNK)])?;
            left -= left.min(CHUNK);
        }
        Ok(())
    });
    let (mut incoming, _) = listener.accept()?;
    let mut target = vec![0; CHUNK];
    let (began, mut left) = (Instant::now(), bytes);
    while left > 0 {
        let read = incoming.read(&mut target[..left.min(CHUNK)])?;
        ensure!(read > 0, "the copy through a socket broke off");
        left -= read;
    }
    let seconds = began.elapsed().as_secs_f64();
    sender
        .join()
        .map_err(|_| anyhow!("the sender of the plain copy panicked"))??;
    Ok(seconds)
}
