//! Calls, deadlines, dispatch and executors of farcall; knows no RDMA.
#![forbid(unsafe_code)]

pub mod codec;
pub mod error;
pub mod service;
pub mod time;
pub mod transport;

pub use error::{
    Backpressure, BindError, CallError, ConnectError, FailureKind, ReserveError, RpcError,
    TransportFailure,
};
pub use service::{Answer, Method, MethodDescription, ServiceDescription};
