//! `append` and `read`: calls of a server.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use farcall::{ConnectError, ReconnectPolicy};
use farcall_persist::Lsn;
use farcall_persist::service::PersistentClient;

use super::args::{AppendArgs, ReadArgs, ServerArgs};

fn connect(server: &ServerArgs) -> Result<PersistentClient> {
    let timeout: Duration = server.timeout;
    PersistentClient::connect(server.address.as_str())
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

/// Appends, and prints where the record is and which level was reached.
pub(crate) fn append(args: &AppendArgs) -> Result<bool> {
    let payload = if args.payload == "-" {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        bytes
    } else {
        args.payload.clone().into_bytes()
    };
    let ack = connect(&args.server)?.append(payload.into(), args.level.into()).wait()?;
    println!("{}\t{}", ack.lsn, format!("{:?}", ack.level).to_lowercase());
    Ok(true)
}

/// Writes the payload of a record to standard output.
pub(crate) fn read(args: &ReadArgs) -> Result<bool> {
    let payload = connect(&args.server)?.read(Lsn(args.lsn)).wait()?;
    io::stdout().lock().write_all(&payload)?;
    io::stdout().flush()?;
    Ok(true)
}
