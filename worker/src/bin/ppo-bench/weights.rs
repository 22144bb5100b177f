//! `ppo-bench weights`: weights from a publication into the engine behind its door, as the trainer sends them after a step, in turns
//! with a plain copy of as many bytes through a socket. Both ends share the machine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use ppo_worker::model::kind;
use ppo_worker::model::{ModelConfig, Weights};
use ppo_worker::native::allocator;
use ppo_worker::native::bytes::byte_length;
use ppo_worker::roles::Publication;
use serde_json::json;

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
    let weights = Weights::load(&args.model, &config, kind(args.dtype.into()))?;
    let bytes: usize = weights.0.values().map(byte_length).sum();
    let server = Server::start(&args.model, args.dtype.into())?;
    let publication = Publication::default();
    let (mut sent, mut copied) = (Vec::new(), Vec::new());
    for (run, version) in (0..=args.runs).zip(1..) {
        publication.publish(weights.shallow_clone(), version);
        let began = Instant::now();
        let sending = server.endpoint.update_weights(&publication, version, DEADLINE);
        server.runtime.block_on(sending).context("sending weights")?;
        let seconds = (began.elapsed().as_secs_f64(), copy(bytes)?);
        if run > 0 {
            sent.push(seconds.0);
            copied.push(seconds.1);
        }
    }
    let (sent, copied) = (median(&mut sent), median(&mut copied));
    let mib = bytes as f64 / f64::from(1 << 20);
    let figures = json!({
        "mib": mib,
        "seconds": sent,
        "mib_per_s": mib / sent,
        "copy_mib_per_s": mib / copied,
        "ratio": copied / sent,
        "runs": args.runs,
    });
    println!("{figures}");
    Ok(())
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
