//! `farcall info ADDRESS`: what a running server has refused.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use farcall::info::InfoPollClient;
use serde::Serialize;

use crate::credentials::Credentials;

/// Longer than a server that is there takes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the server says. Scripts read the names of the fields: only add fields.
#[derive(Debug, Serialize)]
struct Report<'a> {
    address: &'a str,
    /// How often it has refused a peer or a message, by reason; none if it does not say.
    refusals: Option<BTreeMap<String, u64>>,
}

pub(super) fn run(address: &str, credentials: &Credentials, json: bool) -> Result<ExitCode> {
    let client = credentials.of(InfoPollClient::connect(address))?;
    let mut client = client.timeout(TIMEOUT).dial_timeout(TIMEOUT).wait()?;
    let refusals = client.refusals().context("asking what the server has refused")?;
    let refusals = refusals.map(BTreeMap::from_iter);
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&Report { address, refusals })?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{address}")?;
    let Some(refusals) = refusals else {
        writeln!(out, "  does not say what it has refused")?;
        return Ok(ExitCode::SUCCESS);
    };
    let total: u64 = refusals.values().sum();
    writeln!(out, "  refused so far     {total}")?;
    for (reason, count) in refusals.iter().filter(|(_, count)| **count > 0) {
        writeln!(out, "    {reason:<16} {count}")?;
    }
    Ok(ExitCode::SUCCESS)
}
