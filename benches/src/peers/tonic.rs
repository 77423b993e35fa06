//! tonic over a Unix socket: gRPC with a protobuf message of one `bytes` field.
//!
//! What `tonic-build` would generate from a proto file is written by hand, so that building needs no protoc. All settings are
//! the defaults.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::task;

use ::tonic::body::Body;
use ::tonic::client::Grpc;
use ::tonic::codegen::http::uri::PathAndQuery;
use ::tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use ::tonic::codegen::{BoxFuture, Service, http};
use ::tonic::transport::{Channel, Endpoint, Server};
use ::tonic::{Request, Response, Status};
use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::net::UnixListener;
use tonic_prost::ProstCodec;

use super::asynchronous::{AsyncPeer, Echo, runtime};
use super::calling::Caller;
use super::kind::Kind;
use super::serve::{say_ready, socket_path, start};
use super::{Peer, Setup};

const PATH: &str = "/peers.Mirror/Echo";

#[derive(Clone, PartialEq, prost::Message)]
struct Data {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
}

struct Tonic {
    client: Grpc<Channel>,
    data: Bytes,
}

impl Echo for Tonic {
    type Output = Bytes;

    async fn echo(&self) -> Result<Bytes> {
        // As generated clients: a clone for each call in flight.
        let mut client = self.client.clone();
        client.ready().await?;
        let request = Request::new(Data { bytes: self.data.clone() });
        let path = PathAndQuery::from_static(PATH);
        let codec = ProstCodec::<Data, Data>::default();
        Ok(client.unary(request, path, codec).await?.into_inner().bytes)
    }
}

/// Over a Unix socket.
pub(super) fn unix(kind: Kind, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
    let path = socket_path();
    let server = start(kind, &path.to_string_lossy(), setup)?;
    let (runtime, caller) = (runtime()?, Caller::new(setup));
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
    let channel = runtime.block_on(endpoint.connect()).context("cannot connect")?;
    fs::remove_file(path)?;
    let client = Tonic { client: Grpc::new(channel), data: caller.data().clone() };
    Ok(Box::new(AsyncPeer { client, runtime, caller, server }))
}

/// Serves in a server process, for as long as it lives.
pub(super) fn serve_unix(path: &str) -> Result<()> {
    runtime()?.block_on(async {
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen at {path}"))?;
        say_ready(path);
        let incoming = UnixListenerStream::new(listener);
        Ok(Server::builder().serve_with_incoming(Mirror, incoming).await?)
    })
}

/// The service: any path is the one method.
#[derive(Clone)]
struct Mirror;

impl Service<http::Request<Body>> for Mirror {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async {
            let mut grpc = ::tonic::server::Grpc::new(ProstCodec::<Data, Data>::default());
            Ok(grpc.unary(Parrot, request).await)
        })
    }
}

struct Parrot;

impl Service<Request<Data>> for Parrot {
    type Response = Response<Data>;
    type Error = Status;
    type Future = Ready<Result<Response<Data>, Status>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Status>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Data>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}
