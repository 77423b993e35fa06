//! farcall's clients, over shared memory or TCP, with their default settings.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use farcall::{Call, RpcError, Server};
use farcall_transports::Config;
use tokio::runtime::Runtime;

use super::asynchronous::{AsyncPeer, Echo, runtime, runtime_of_threads};
use super::calling::{Caller, UNCOUNTED};
use super::child::Process;
use super::kind::Kind;
use super::serve::{say_ready, start, wait_for_end_of_input};
use super::{Peer, Setup};
use crate::clock::Clock;
use crate::echo::load::{Calling, Totals};
use crate::echo::service::{EchoClient, EchoPollClient, EchoServer, EchoService};
use crate::echo::{any_bytes, bytes, calling};

/// The backend over shared memory.
const BACKEND: &str = "write_imm";

/// What carries the calls.
#[derive(Clone, Copy)]
pub(super) enum Carrier {
    Shm,
    Tcp,
}

/// Serves at an address, in a server process.
pub(super) fn serve(address: &str, core: usize) -> Result<()> {
    let (parrot, _) = EchoService::new();
    let server = Server::builder().service(EchoServer::new(parrot)).threads(1).pin([core]);
    let server = server.listen(address).with_context(|| format!("cannot listen at {address}"))?;
    say_ready(server.address());
    wait_for_end_of_input();
    let drained = server.shutdown();
    ensure!(drained.aborted_calls == 0 && drained.stuck_threads == 0, "{drained:?}");
    Ok(())
}

fn start_server(kind: Kind, carrier: Carrier, setup: &Setup<'_>) -> Result<Process> {
    let (device, backend) = match carrier {
        Carrier::Shm => ("shm", BACKEND),
        Carrier::Tcp => ("", "tcp"),
    };
    let max_message = (2 * setup.size).max(64 << 10);
    // A client may hold half of it, with requests and responses.
    let memory = 4 * max_message + (16 << 20) + 4 * setup.window * setup.size;
    // As a program has it that does not set it.
    let window = (Config::default().window as usize).max(setup.window);
    let how = format!("max_message={max_message}&memory={memory}&window={window}");
    start(kind, &crate::address::local(device, backend, &how), setup)
}

/// The calls of one size: arrays if it is small and common, otherwise `Bytes`.
trait Argument: AsRef<[u8]> + Clone + 'static {
    fn call(self, client: &EchoClient) -> Call<Result<Self, RpcError>>;
}

macro_rules! argument {
    ($type:ty, $call:ident) => {
        impl Argument for $type {
            fn call(self, client: &EchoClient) -> Call<Result<Self, RpcError>> {
                client.$call(self)
            }
        }
    };
}

argument!([u8; 8], echo_8);
argument!([u8; 16], echo_16);
argument!([u8; 32], echo_32);
argument!([u8; 64], echo_64);
argument!(Bytes, echo);

/// The client of ordinary programs.
struct Ordinary<A> {
    client: EchoClient,
    data: A,
}

impl<A: Argument> Echo for Ordinary<A> {
    type Output = A;

    async fn echo(&self) -> Result<A> {
        Ok(self.data.clone().call(&self.client).await?)
    }
}

/// Calls awaited on a tokio runtime of one thread.
pub(super) fn asynchronous(
    kind: Kind,
    carrier: Carrier,
    setup: &Setup<'_>,
) -> Result<Box<dyn Peer>> {
    match setup.size {
        8 => start_async(kind, carrier, setup, bytes::<8>()),
        16 => start_async(kind, carrier, setup, bytes::<16>()),
        32 => start_async(kind, carrier, setup, bytes::<32>()),
        64 => start_async(kind, carrier, setup, bytes::<64>()),
        size => start_async(kind, carrier, setup, any_bytes(size)),
    }
}

fn start_async<A: Argument>(
    kind: Kind,
    carrier: Carrier,
    setup: &Setup<'_>,
    data: A,
) -> Result<Box<dyn Peer>> {
    let server = start_server(kind, carrier, setup)?;
    let client = EchoClient::connect(server.ready()).wait()?;
    let client = Ordinary { client, data };
    Ok(Box::new(AsyncPeer { client, runtime: runtime()?, caller: Caller::new(setup), server }))
}

/// Calls awaited in tasks of a tokio runtime with several threads, all on the clients' core.
pub(super) fn multi(kind: Kind, carrier: Carrier, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    match setup.size {
        8 => start_multi(kind, carrier, setup, bytes::<8>()),
        16 => start_multi(kind, carrier, setup, bytes::<16>()),
        32 => start_multi(kind, carrier, setup, bytes::<32>()),
        64 => start_multi(kind, carrier, setup, bytes::<64>()),
        size => start_multi(kind, carrier, setup, any_bytes(size)),
    }
}

fn start_multi<A: Argument + Send + Sync>(
    kind: Kind,
    carrier: Carrier,
    setup: &Setup<'_>,
    data: A,
) -> Result<Box<dyn Peer>> {
    let server = start_server(kind, carrier, setup)?;
    let client = EchoClient::connect(server.ready()).wait()?;
    let client = Arc::new(Ordinary { client, data });
    let caller = Arc::new(Caller::new(setup));
    Ok(Box::new(MultiPeer {
        client,
        runtime: runtime_of_threads()?,
        caller,
        window: setup.window,
        server,
    }))
}

/// Each outstanding call is a task's.
struct MultiPeer<A> {
    client: Arc<Ordinary<A>>,
    runtime: Runtime,
    caller: Arc<Caller>,
    window: usize,
    server: Process,
}

impl<A: Argument + Send + Sync> MultiPeer<A> {
    fn tasks(&self, time: Duration) -> Result<Totals> {
        let task = |_| {
            let (client, caller) = (self.client.clone(), self.caller.clone());
            self.runtime.spawn(async move {
                let call = || async { Ok(client.data.clone().call(&client.client).await?) };
                caller.one_task(time, call).await
            })
        };
        let tasks: Vec<_> = (0..self.window).map(task).collect();
        let mut all = Totals::default();
        for task in tasks {
            all.add_concurrent(&self.runtime.block_on(task)??);
        }
        Ok(all)
    }
}

impl<A: Argument + Send + Sync> Peer for MultiPeer<A> {
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.tasks(UNCOUNTED)?;
        totals.add_concurrent(&self.tasks(time)?);
        Ok(())
    }

    fn call_after(&mut self, silence: Duration) -> Result<u64> {
        let Self { client, caller, runtime, .. } = self;
        let (client, caller) = (client.clone(), caller.clone());
        // The task's thread sleeps in silence.
        let call = runtime.spawn(async move {
            client.data.clone().call(&client.client).await?;
            tokio::time::sleep(silence).await;
            caller.time_one(|| async { Ok(client.data.clone().call(&client.client).await?) }).await
        });
        runtime.block_on(call)?
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { client, runtime, server, .. } = *self;
        drop(runtime);
        drop(client);
        server.stop()
    }
}

/// Calls that block the thread.
pub(super) fn wait(kind: Kind, carrier: Carrier, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    match setup.size {
        8 => start_wait(kind, carrier, setup, bytes::<8>()),
        16 => start_wait(kind, carrier, setup, bytes::<16>()),
        32 => start_wait(kind, carrier, setup, bytes::<32>()),
        64 => start_wait(kind, carrier, setup, bytes::<64>()),
        size => start_wait(kind, carrier, setup, any_bytes(size)),
    }
}

fn start_wait<A: Argument>(
    kind: Kind,
    carrier: Carrier,
    setup: &Setup<'_>,
    data: A,
) -> Result<Box<dyn Peer>> {
    let server = start_server(kind, carrier, setup)?;
    let client = EchoClient::connect(server.ready()).wait()?;
    let client = Ordinary { client, data };
    Ok(Box::new(WaitPeer { client, caller: Caller::new(setup), server }))
}

struct WaitPeer<A> {
    client: Ordinary<A>,
    caller: Caller,
    server: Process,
}

impl<A: Argument> Ordinary<A> {
    fn wait(&self) -> Result<A> {
        Ok(self.data.clone().call(&self.client).wait()?)
    }
}

impl<A: Argument> Peer for WaitPeer<A> {
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.caller.blocking_turn(time, totals, || self.client.wait())
    }

    fn call_after(&mut self, silence: Duration) -> Result<u64> {
        self.caller.call_after(silence, || self.client.wait())
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { client, server, .. } = *self;
        drop(client);
        server.stop()
    }
}

/// The client of a thread that drives its own connection.
pub(super) fn poll(kind: Kind, carrier: Carrier, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    let server = start_server(kind, carrier, setup)?;
    let client = EchoPollClient::connect(server.ready()).wait()?;
    let calling = calling(setup.size, setup.window, vec![client], Clock::new());
    Ok(Box::new(PollPeer { calling, silent: None, caller: Caller::new(setup), server }))
}

struct PollPeer {
    calling: Box<dyn Calling>,
    /// The connection of the calls after silence.
    silent: Option<EchoPollClient>,
    caller: Caller,
    server: Process,
}

impl Peer for PollPeer {
    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.calling.calls(time, totals)
    }

    fn call_after(&mut self, silence: Duration) -> Result<u64> {
        let Self { silent, caller, server, .. } = self;
        let client = match silent {
            Some(client) => client,
            None => silent.insert(EchoPollClient::connect(server.ready()).wait()?),
        };
        caller.call_after(silence, || Ok(client.echo(caller.data().clone())?))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { calling, silent, server, .. } = *self;
        drop((calling, silent));
        server.stop()
    }
}
