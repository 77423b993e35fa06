//! tarpc over TCP or a Unix socket, with its own transport of serde, as its documentation shows.
//!
//! Two things are chosen for it. Its messages are encoded by postcard, as farcall's are, so that encodings are not
//! what is compared. Its TCP streams send at once (`TCP_NODELAY`), as farcall's do.

use std::io;
use std::net::{self, Ipv4Addr};
use std::os::unix;
use std::pin::Pin;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::tarpc::server::{BaseChannel, Channel};
use ::tarpc::tokio_serde::{Deserializer, Serializer};
use ::tarpc::tokio_util::codec::LengthDelimitedCodec;
use ::tarpc::{client, context, serde_transport};
use anyhow::{Context, Result, anyhow};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{self, Runtime};

use super::calling::{DATA, UNCOUNTED, call_for};
use super::{Peer, SIZE};
use crate::clock::Clock;
use crate::cores;
use crate::echo::load::Totals;

#[::tarpc::service]
trait Mirror {
    async fn echo_32(data: [u8; SIZE]) -> [u8; SIZE];
}

#[derive(Clone)]
struct Parrot;

impl Mirror for Parrot {
    async fn echo_32(self, _: context::Context, data: [u8; SIZE]) -> [u8; SIZE] {
        data
    }
}

struct Postcard;

impl<T: Serialize> Serializer<T> for Postcard {
    type Error = io::Error;

    fn serialize(self: Pin<&mut Self>, item: &T) -> io::Result<Bytes> {
        postcard::to_allocvec(item).map(Bytes::from).map_err(io::Error::other)
    }
}

impl<T: for<'de> Deserialize<'de>> Deserializer<T> for Postcard {
    type Error = io::Error;

    fn deserialize(self: Pin<&mut Self>, bytes: &BytesMut) -> io::Result<T> {
        postcard::from_bytes(bytes).map_err(io::Error::other)
    }
}

/// A client and its server, each on a tokio runtime of one thread.
pub(super) struct Tarpc {
    name: &'static str,
    // Dropped in this order: when the client's runtime ends, so does the stream, and with it the server's thread.
    client: MirrorClient,
    runtime: Runtime,
    server: JoinHandle<Result<()>>,
    window: usize,
    clock: Clock,
}

impl Tarpc {
    /// Its name in reports, over TCP.
    pub(super) const OVER_TCP: &str = "tarpc tcp";

    /// Starts both, over TCP.
    pub(super) fn over_tcp(window: usize, server_core: usize) -> Result<Self> {
        let streams = tcp_pair().context("cannot connect over loopback")?;
        Self::start(Self::OVER_TCP, streams, TcpStream::from_std, window, server_core)
    }

    /// Starts both, over a Unix socket.
    pub(super) fn over_unix_socket(window: usize, server_core: usize) -> Result<Self> {
        let (one, other) = unix::net::UnixStream::pair().context("cannot make a Unix socket")?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Self::start("tarpc unix", (one, other), UnixStream::from_std, window, server_core)
    }

    /// `register` puts a stream on the runtime in whose context it is called.
    fn start<S, T>(
        name: &'static str,
        (near, far): (S, S),
        register: fn(S) -> io::Result<T>,
        window: usize,
        server_core: usize,
    ) -> Result<Self>
    where
        S: Send + 'static,
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let server = thread::Builder::new().name("tarpc".into()).spawn(move || {
            cores::pin(server_core)?;
            runtime()?.block_on(async {
                serve(register(far)?).await;
                Ok(())
            })
        })?;
        let runtime = runtime()?;
        let client = runtime.block_on(async {
            let transport = serde_transport::new(framed(register(near)?), Postcard);
            io::Result::Ok(MirrorClient::new(client::Config::default(), transport).spawn())
        })?;
        Ok(Self { name, client, runtime, server, window, clock: Clock::new() })
    }

    fn calls(&self, time: Duration, totals: &mut Totals) -> Result<()> {
        let Self { client, runtime, window, clock, .. } = self;
        let call = || async { Ok(client.echo_32(context::current(), DATA).await?) };
        runtime.block_on(call_for(*window, time, clock, totals, call))
    }
}

impl Peer for Tarpc {
    fn name(&self) -> &'static str {
        self.name
    }

    fn turn(&mut self, time: Duration, totals: &mut Totals) -> Result<()> {
        self.calls(UNCOUNTED, &mut Totals::default())?;
        self.calls(time, totals)
    }

    fn stop(self: Box<Self>) -> Result<()> {
        let Self { client, runtime, server, .. } = *self;
        drop((client, runtime));
        server.join().map_err(|_| anyhow!("its thread panicked"))?
    }
}

fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

fn framed<T: AsyncRead + AsyncWrite>(
    stream: T,
) -> ::tarpc::tokio_util::codec::Framed<T, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder().new_framed(stream)
}

/// Answers until the client is gone.
async fn serve<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: T) {
    let channel = BaseChannel::with_defaults(serde_transport::new(framed(stream), Postcard));
    let answer = async |call| drop(tokio::spawn(call));
    channel.execute(Parrot.serve()).for_each(answer).await;
}

/// Both ends of a connection over loopback, for a runtime.
fn tcp_pair() -> io::Result<(net::TcpStream, net::TcpStream)> {
    let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = net::TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((near, far))
}
