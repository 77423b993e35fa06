//! The messages between the demo's parent and its client processes: lines of JSON over pipes.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use farcall_kv::ycsb::client::ClientConfig;
use farcall_kv::ycsb::latency::PortableLatencies;
use farcall_kv::ycsb::workload::Workload;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first line to a client, followed by the bytes of the text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) address: String,
    pub(super) run: u64,
    pub(super) me: u32,
    pub(super) clients: u32,
    pub(super) window: usize,
    pub(super) spins_before_yield: u32,
    pub(super) timeout: Duration,
    pub(super) text_bytes: usize,
}

impl Task {
    pub(super) fn client_config(&self) -> ClientConfig {
        ClientConfig {
            workload: Workload::B,
            me: self.me,
            clients: self.clients,
            window: self.window,
            spins_before_yield: self.spins_before_yield,
            timeout: self.timeout,
            inserts_are_new: true,
            seed: self.run,
        }
    }
}

/// Later lines to a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Run the workload for this long.
    Work(Duration),
    /// All writes have ended: read everything again.
    Audit,
}

/// Lines from a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// Connected, and the text has been received.
    Ready,
    /// The progress so far.
    Progress { operations: u64, wrong: u64 },
    /// The workload is done; it took this long.
    Worked(Duration),
    /// The audit is also done; these are the findings.
    Done { latencies: PortableLatencies, checked: u64, wrong: u64, reports: Vec<String> },
    /// The client cannot continue.
    Failed(String),
}

/// Writes one line.
pub(super) fn send(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads one line; `None` at the end.
pub(super) fn receive<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    if input.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
