//! What the demo's parent and its client processes say to each other, as lines of JSON over pipes.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use farcall_kv::ycsb::client::ClientConfig;
use farcall_kv::ycsb::latency::PortableLatencies;
use farcall_kv::ycsb::workload::Workload;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first line to a client; the text follows it, byte for byte.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) address: String,
    pub(super) run: u64,
    pub(super) me: u32,
    pub(super) clients: u32,
    pub(super) window: usize,
    pub(super) spins_before_yield: u32,
    pub(super) patience: Duration,
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
            patience: self.patience,
            inserts_are_new: true,
            seed: self.run,
        }
    }
}

/// Later lines to a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Run the workload for so long.
    Work(Duration),
    /// Nobody writes any more: read everything again.
    Audit,
}

/// Lines from a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// Connected; the text is there.
    Ready,
    /// So far it is.
    Progress { operations: u64, wrong: u64 },
    /// The workload is done; it took so long.
    Worked(Duration),
    /// The audit is done too: all that was found.
    Done { latencies: PortableLatencies, checked: u64, wrong: u64, told: Vec<String> },
    /// It cannot go on.
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
