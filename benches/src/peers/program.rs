//! Peers that are programs of their own at both ends: see `benches/ucx/main.c` for what they are told and answer.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::child::{Done, Process};
use super::{Peer, Setup};
use crate::echo::load::Totals;

/// For UCX, unless the user says otherwise: the transports of one machine, and where warnings go, which is where answers go
/// otherwise.
const UCX_SETTINGS: [(&str, &str); 2] =
    [("UCX_TLS", "posix,sysv,cma,self"), ("UCX_LOG_FILE", "stderr")];

struct ProgramPeer {
    client: Process,
    server: Process,
}

/// Starts the program's two ends, the client with `options`. The server rests until the first turn.
pub(super) fn start(
    program: Option<&Path>,
    options: &[&str],
    setup: &Setup<'_>,
) -> Result<Box<dyn Peer>> {
    let program = program.context("no program")?;
    let [server_core, client_core] = setup.cores;
    let end = |role: &str, core: usize| {
        let mut command = Command::new(program);
        command.args([role, &core.to_string(), &setup.size.to_string(), &setup.window.to_string()]);
        let unset = UCX_SETTINGS.into_iter().filter(|(name, _)| env::var_os(name).is_none());
        command.envs(unset);
        command
    };
    let mut server = Process::start(&mut end("server", server_core)).context("the server")?;
    let client = Process::start(end("client", client_core).arg(server.ready()).args(options));
    let client = client.context("the client")?;
    server.order("rest")?;
    Ok(Box::new(ProgramPeer { client, server }))
}

impl ProgramPeer {
    /// The server works during the measurement.
    fn measure(&mut self, what: &str, time: Duration) -> Result<Done> {
        self.server.order("work")?;
        let done = self.client.measure(&format!("{what} {}", time.as_nanos()), time)?;
        self.server.order("rest")?;
        Ok(done)
    }
}

impl Peer for ProgramPeer {
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        let done = self.measure("turn", time)?;
        totals.calls += done.calls;
        totals.nanos += done.nanos;
        done.samples.into_iter().for_each(|nanos| totals.latency.record(nanos.into()));
        Ok(())
    }

    fn call_after(&mut self, silence: Duration) -> Result<u64> {
        let done = self.measure("after", silence)?;
        done.samples.first().map(|&nanos| nanos.into()).context("the program timed no call")
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { client, server } = *self;
        client.stop().context("the client")?;
        server.stop().context("the server")
    }
}
