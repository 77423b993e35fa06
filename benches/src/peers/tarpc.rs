//! tarpc over TCP or a Unix socket, with its own transport of serde, as its documentation shows.
//!
//! Two things are chosen for it. Its messages are encoded by postcard, as farcall's are, so that encodings are not
//! what is compared. Its TCP streams send at once (`TCP_NODELAY`), as farcall's do.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;

use ::tarpc::server::{BaseChannel, Channel};
use ::tarpc::tokio_serde::{Deserializer, Serializer};
use ::tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use ::tarpc::{client, context, serde_transport};
use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::asynchronous::{AsyncPeer, Echo, runtime};
use super::calling::Caller;
use super::child::Process;
use super::kind::Kind;
use super::serve::{say_ready, socket_path, start};
use super::{Peer, Setup};

#[::tarpc::service]
trait Mirror {
    async fn echo(data: Bytes) -> Bytes;
}

#[derive(Clone)]
struct Parrot;

impl Mirror for Parrot {
    async fn echo(self, _: context::Context, data: Bytes) -> Bytes {
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

struct Tarpc {
    client: MirrorClient,
    data: Bytes,
}

impl Echo for Tarpc {
    type Output = Bytes;

    async fn echo(&self) -> Result<Bytes> {
        Ok(self.client.echo(context::current(), self.data.clone()).await?)
    }
}

/// Over a Unix socket.
pub(super) fn unix(kind: Kind, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    let path = socket_path();
    let server = start(kind, &path.to_string_lossy(), setup)?;
    connected(server, setup, async || {
        let stream = UnixStream::connect(&path).await?;
        fs::remove_file(&path)?;
        Ok(stream)
    })
}

/// Over TCP.
pub(super) fn tcp(kind: Kind, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    let server = start(kind, "", setup)?;
    let address = server.ready().to_owned();
    connected(server, setup, async || without_delay(TcpStream::connect(address).await?))
}

fn connected<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    server: Process,
    setup: &Setup<'_>,
    connect: impl AsyncFnOnce() -> io::Result<T>,
) -> Result<Box<dyn Peer>> {
    let (runtime, caller) = (runtime()?, Caller::new(setup));
    let client = runtime.block_on(async {
        let transport = serde_transport::new(framed(connect().await?), Postcard);
        io::Result::Ok(MirrorClient::new(client::Config::default(), transport).spawn())
    });
    let client = Tarpc { client: client.context("cannot connect")?, data: caller.data().clone() };
    Ok(Box::new(AsyncPeer { client, runtime, caller, server }))
}

/// Serves one connection, in a server process.
pub(super) fn serve_unix(path: &str) -> Result<()> {
    runtime()?.block_on(async {
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen at {path}"))?;
        say_ready(path);
        answer(listener.accept().await?.0).await;
        Ok(())
    })
}

/// Serves one connection, in a server process.
pub(super) fn serve_tcp() -> Result<()> {
    runtime()?.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        say_ready(&listener.local_addr()?.to_string());
        answer(without_delay(listener.accept().await?.0)?).await;
        Ok(())
    })
}

fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn framed<T: AsyncRead + AsyncWrite>(stream: T) -> Framed<T, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder().new_framed(stream)
}

/// Answers until the client is gone.
async fn answer<T: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: T) {
    let channel = BaseChannel::with_defaults(serde_transport::new(framed(stream), Postcard));
    let spawn = async |call| drop(tokio::spawn(call));
    channel.execute(Parrot.serve()).for_each(spawn).await;
}
