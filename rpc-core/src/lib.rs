//! Calls, deadlines, dispatch and executors of farcall; knows no RDMA.
#![forbid(unsafe_code)]

mod blocking;
pub mod channel;
pub mod client;
pub mod codec;
mod compatibility;
pub mod error;
mod growing_queue;
#[doc(hidden)]
pub mod home;
pub mod identity;
mod idle;
pub mod lock;
pub mod metrics;
mod older;
#[doc(hidden)]
pub mod panics;
pub mod server;
pub mod service;
pub mod shape;
pub mod site;
pub mod time;
pub mod transport;
mod wire;

#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
#[expect(unreachable_pub, reason = "it is public where bugs can be planted")]
mod planted;

pub use channel::{
    Call, Channel, ChannelDriver, ChannelOptions, Connecting, Endpoint, ReconnectPolicy,
};
pub use client::{Connection, ConnectionOptions, PendingCall, PollConnecting};
pub use compatibility::{Compatibility, DeclaredMethod, MethodMismatch, MissingMethod};
pub use error::{
    Backpressure, BindError, CallError, ConnectError, DeviceFailure, FailureKind, GoneReason,
    ReserveError, RpcError, ThreadEnded, TransportFailure, Waited,
};
pub use identity::{Authentication, Identity, Key, KeyError};
pub use idle::IdlePolicy;
pub use metrics::{Metrics, MetricsSnapshot};
pub use server::{
    CallContext, CancelPolicy, ClientQuota, DrivenServer, Reply, RunningServer, Server,
    ServerBuilder, ServerThread,
};
pub use service::{
    Answer, Method, MethodDescription, OlderVersion, PollClient, Service, ServiceClient,
    ServiceDescription,
};
pub use shape::Shape;
pub use site::Site;

#[cfg(test)]
extern crate self as farcall_core;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
