//! farcall over the backend `tcp`, with either client.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farcall::{IdlePolicy, RunningServer, Server};
use tokio::runtime::{self, Runtime};

use super::calling::{DATA, UNCOUNTED, call_for};
use super::{Peer, SIZE};
use crate::clock::Clock;
use crate::echo::calling;
use crate::echo::load::{Calling, Totals};
use crate::echo::service::{EchoClient, EchoPollClient, EchoServer, EchoService};

fn listen(window: usize, core: usize) -> Result<RunningServer> {
    let address = crate::address::local("", "tcp", &format!("window={window}"));
    let (parrot, _) = EchoService::new();
    let server = Server::builder().service(EchoServer::new(parrot)).threads(1).pin([core]);
    server.listen(&address).with_context(|| format!("cannot listen at {address}"))
}

fn stop(server: RunningServer) -> Result<()> {
    let drained = server.shutdown();
    ensure!(drained.aborted_calls == 0 && drained.stuck_threads == 0, "{drained:?}");
    Ok(())
}

/// The polling client: its thread drives the connection.
pub(super) struct PollingFarcall {
    server: RunningServer,
    calling: Box<dyn Calling>,
}

impl PollingFarcall {
    /// Starts both.
    pub(super) fn start(window: usize, server_core: usize) -> Result<Self> {
        let server = listen(window, server_core)?;
        let client = EchoPollClient::connect(server.address()).wait()?;
        let calling = calling(SIZE, window, vec![client], Clock::new());
        Ok(Self { server, calling })
    }
}

impl Peer for PollingFarcall {
    fn name(&self) -> &'static str {
        "farcall tcp, polling"
    }

    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.calling.calls(time, totals)
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { server, calling } = *self;
        drop(calling);
        stop(server)
    }
}

/// The async client, whose connection an I/O thread drives: `wait()` for one call, tokio's runtime for more.
///
/// The I/O thread shares the core of the thread that calls, so it sleeps as soon as it has nothing to do: if it spun, as
/// it does by default, the other could not run.
pub(super) struct AsyncFarcall {
    server: RunningServer,
    client: EchoClient,
    runtime: Runtime,
    window: usize,
    clock: Clock,
}

impl AsyncFarcall {
    /// Starts both.
    pub(super) fn start(window: usize, server_core: usize) -> Result<Self> {
        let server = listen(window, server_core)?;
        let client = EchoClient::connect(server.address()).idle(IdlePolicy::PARK).wait()?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, client, runtime, window, clock: Clock::new() })
    }

    fn calls(&self, time: Duration, totals: &mut Totals) -> Result<()> {
        let Self { client, runtime, window, clock, .. } = self;
        if *window == 1 {
            return one_by_one(client, time, clock, totals);
        }
        let call = || async { Ok(client.echo_32(DATA).await?) };
        runtime.block_on(call_for(*window, time, clock, totals, call))
    }
}

fn one_by_one(
    client: &EchoClient,
    time: Duration,
    clock: &Clock,
    totals: &mut Totals,
) -> Result<()> {
    let (begin, end) = (clock.stamp(), clock.after(time));
    loop {
        let before = clock.stamp();
        let output = client.echo_32(DATA).wait()?;
        let after = clock.stamp();
        ensure!(output == DATA, "an answer differs from what was sent");
        totals.calls += 1;
        totals.latency.record(clock.nanos_between(before, after));
        if after >= end {
            totals.nanos += clock.nanos_between(begin, after);
            return Ok(());
        }
    }
}

impl Peer for AsyncFarcall {
    fn name(&self) -> &'static str {
        "farcall tcp, async"
    }

    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.calls(UNCOUNTED, &mut Totals::default())?;
        self.calls(time, totals)
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { server, client, .. } = *self;
        drop(client);
        stop(server)
    }
}
