//! Calls of a server: `append`, `read`, `write`, `commit`, `checkpoint`.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use farcall::{Bytes, ConnectError, Connecting, ReconnectPolicy, ServiceClient};
use farcall_persist::ranges::service::{RangeStoreClient, RangeWrite};
use farcall_persist::service::PersistentClient;
use farcall_persist::{Level, Lsn};

use super::args::{AppendArgs, CommitArgs, LevelArg, ReadArgs, ServerArgs, WriteArgs};

fn connect(server: &ServerArgs) -> Result<PersistentClient> {
    finish(PersistentClient::connect(server.address.as_str()), server)
}

/// The ranges of the same server.
fn connect_ranges(server: &ServerArgs) -> Result<RangeStoreClient> {
    finish(RangeStoreClient::connect(server.address.as_str()), server)
}

fn finish<C: ServiceClient>(connecting: Connecting<C>, server: &ServerArgs) -> Result<C> {
    let timeout: Duration = server.timeout;
    connecting
        .timeout(timeout)
        .dial_timeout(timeout)
        .reconnect(ReconnectPolicy::NEVER)
        .wait()
        .map_err(|why| no_connection(&server.address, why))
}

fn no_connection(address: &str, why: ConnectError) -> Error {
    let is_there = !matches!(why, ConnectError::NoServer { .. });
    let why = Error::new(why);
    if is_there {
        return why;
    }
    why.context(format!("start one with: farcall-persist serve --dir DIR --listen '{address}'"))
}

/// The bytes of an argument, or of standard input.
fn payload(argument: &str) -> Result<Bytes> {
    if argument != "-" {
        return Ok(argument.to_owned().into());
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes.into())
}

/// Appends, and prints where the record is and which level was reached.
pub(crate) fn append(args: &AppendArgs) -> Result<bool> {
    let payload = payload(&args.payload)?;
    let ack = connect(&args.server)?.append(payload, args.level.into()).wait()?;
    println!("{}\t{}", ack.lsn, name(ack.level));
    Ok(true)
}

fn name(level: Level) -> String {
    format!("{level:?}").to_lowercase()
}

/// Writes bytes of the ranges, and prints which level was reached.
pub(crate) fn write(args: &WriteArgs) -> Result<bool> {
    let write = RangeWrite { at: args.at, bytes: payload(&args.payload)? };
    commit_writes(vec![write], args.level, &args.server)
}

/// Writes at several places, all or none, and prints which level was reached.
pub(crate) fn commit(args: &CommitArgs) -> Result<bool> {
    let write =
        |(at, payload): &(u64, String)| RangeWrite { at: *at, bytes: payload.clone().into() };
    commit_writes(args.writes.iter().map(write).collect(), args.level, &args.server)
}

fn commit_writes(writes: Vec<RangeWrite>, level: LevelArg, server: &ServerArgs) -> Result<bool> {
    let ack = connect_ranges(server)?.commit(writes, level.into()).wait()?;
    println!("{}", name(ack.level));
    Ok(true)
}

/// Makes a checkpoint of the ranges.
pub(crate) fn checkpoint(server: &ServerArgs) -> Result<bool> {
    connect_ranges(server)?.checkpoint().wait()?;
    Ok(true)
}

/// Writes the payload of a record, or bytes of the ranges, to standard output.
pub(crate) fn read(args: &ReadArgs) -> Result<bool> {
    let payload = match args.length {
        Some(length) => connect_ranges(&args.server)?.read(args.at, length).wait()?,
        None => connect(&args.server)?.read(Lsn(args.at)).wait()?,
    };
    io::stdout().lock().write_all(&payload)?;
    io::stdout().flush()?;
    Ok(true)
}
