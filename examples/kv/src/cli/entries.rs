//! `get`, `put`, `del` and `scan`: single entries.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Result;
use farcall_kv::tsv;

use super::args::{DelArgs, GetArgs, PutArgs, ScanArgs};
use super::pages::Pages;
use super::{bytes, connect, exit};

/// Writes a value without a line end; in hexadecimal, as a line.
pub(crate) fn get(args: &GetArgs) -> Result<ExitCode> {
    let key = bytes::from_argument(&args.key, args.hex)?;
    let client = connect(&args.server.address, args.server.timeout)?;
    let Some(value) = client.get(&key).wait()? else {
        return Ok(exit::NOT_FOUND.into());
    };
    let mut out = BufWriter::new(io::stdout().lock());
    if args.hex {
        bytes::write_hex(&mut out, &value)?;
        out.write_all(b"\n")?;
    } else {
        out.write_all(&value)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Sets a value.
pub(crate) fn put(args: &PutArgs) -> Result<ExitCode> {
    bytes::only_one_from_stdin(&args.key, &args.value)?;
    let key = bytes::from_argument(&args.key, args.hex)?;
    let value = bytes::from_argument(&args.value, args.hex)?;
    let client = connect(&args.server.address, args.server.timeout)?;
    client.put(&key, &value).wait()?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes a key.
pub(crate) fn del(args: &DelArgs) -> Result<ExitCode> {
    let key = bytes::from_argument(&args.key, args.hex)?;
    let client = connect(&args.server.address, args.server.timeout)?;
    let existed = client.del(&key).wait()?;
    Ok(if existed { ExitCode::SUCCESS } else { exit::NOT_FOUND.into() })
}

/// Lists entries.
pub(crate) fn scan(args: &ScanArgs) -> Result<ExitCode> {
    let key = |argument: &Option<_>| {
        argument.as_ref().map(|key: &std::ffi::OsString| bytes::from_argument(key, args.hex))
    };
    let prefix = key(&args.prefix).transpose()?.unwrap_or_default();
    let from = key(&args.from).transpose()?.unwrap_or_else(|| prefix.clone());
    let to = key(&args.to).transpose()?;
    let mut left = args.limit.unwrap_or(u64::MAX);

    let mut pages = Pages::connect(&args.server.address, args.server.timeout)?.starting(from);
    let mut out = BufWriter::new(io::stdout().lock());
    while left > 0
        && let Some(page) = pages.next_up_to(u32::try_from(left).unwrap_or(u32::MAX))?
    {
        for (key, value) in page {
            let beyond = to.as_ref().is_some_and(|to| key[..] >= to[..]);
            if beyond || !key.starts_with(&prefix) {
                left = 0;
                break;
            }
            left -= 1;
            if args.hex {
                bytes::write_hex(&mut out, &key)?;
                out.write_all(b"\t")?;
                bytes::write_hex(&mut out, &value)?;
                out.write_all(b"\n")?;
            } else {
                tsv::write_entry(&mut out, &key, &value)?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
