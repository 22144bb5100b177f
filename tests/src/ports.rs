//! Free ports for servers that cannot say which port they took.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};
use rand::Rng;

/// Below the range from which systems take the ports of outgoing connections, so that none of these takes ours before the
/// server listens. Drawn at random: control planes that start at the same time seldom meet.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A port on which nothing listens.
///
/// # Errors
/// When none is found.
pub fn free_port() -> Result<u16> {
    let [port] = free_ports()?;
    Ok(port)
}

/// `N` different ports on which nothing listens.
///
/// # Errors
/// When none is found.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut random = rand::rng();
    let mut held = Vec::new();
    for _ in 0..1000 {
        if held.len() == N {
            break;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, random.random_range(RANGE))) {
            held.push(listener);
        }
    }
    let ports: Vec<u16> = held
        .iter()
        .map(|held| Ok(held.local_addr()?.port()))
        .collect::<Result<_>>()?;
    match ports.try_into() {
        Ok(ports) => Ok(ports),
        Err(found) => bail!("of {N} free ports that are needed, {found:?} were found in {RANGE:?}"),
    }
}
