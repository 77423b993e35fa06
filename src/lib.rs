//! RPC over RDMA for Rust programs, and over memory shared between threads and processes.
//!
//! A service is a trait with the attribute [`service`]. The attribute generates a server for any
//! implementation of the trait, and two clients: one whose calls are futures for any executor, and one for a
//! thread that polls its own connection. The address that both ends use selects the device and the protocol
//! of the calls; see [`Address`].
//!
//! ```
//! use farcall::Server;
//!
//! #[farcall::service]
//! trait Greeter {
//!     /// Returns a greeting for this name.
//!     fn hello(&self, name: &str) -> String;
//! }
//!
//! struct English;
//!
//! impl Greeter for English {
//!     fn hello(&self, name: &str) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(GreeterServer::new(English)).listen("shm://greeter")?;
//! let client = GreeterClient::connect("shm://greeter").wait()?;
//! assert_eq!(client.hello("world").wait()?, "Hello, world!");
//! server.shutdown();
//! # Ok(())
//! # }
//! ```
//!
//! # Which client
//!
//! | | for | |
//! |---|---|---|
//! | `GreeterClient`, `.await` | async programs, on any executor | a call is a future; dropping it cancels the call |
//! | `GreeterClient`, `.wait()` | programs without an executor | the caller blocks, and drives the connection itself |
//! | `GreeterPollClient` | a thread that owns its connection | lowest latency; `start_hello` keeps many calls outstanding |
//!
//! # Addresses
//!
//! `shm://NAME` is memory that processes of one user share, `rdma://HOST:PORT` an RDMA device, and `tcp://HOST:PORT` needs no device. Options
//! follow a question mark: `shm://greeter?backend=datagram&window=128`. The book's page on addresses lists them; [`Address`] builds one in parts.
//!
//! # Features
//!
//! All are off by default:
//!
//! - `ibverbs`: RDMA devices, for `rdma://` addresses. libibverbs is loaded when the first one is used.
//! - `tls`: TLS for `rdma://` and `tcp://` addresses, in the module `tls`.
//! - `tokio`: `ServerBuilder::tokio`, for handlers that use a tokio runtime. Clients need no feature.
//! - `sim`: servers and clients on a simulated rack, in the module `rack`, for tests with faults.
//!
//! # Further reading
//!
//! The book in the folder `book/src` of the repository explains all of this, and the folder `examples` has programs of one page.
//!
//! # Results of a call
//!
//! A method that returns `Result<T, E>` gives its caller `Result<T, `[`CallError<E>`](CallError)`>`: the value, the service's own
//! error, or an [`RpcError`]. Any other method gives `Result<T, RpcError>`. A handler runs at most once per call, and
//! [`RpcError::may_have_run`] says whether it may have.
#![forbid(unsafe_code)]

pub mod buffers;
pub mod bulk;
mod connect;
pub mod info;
pub mod memory;
pub mod mesh;
pub mod ping;
#[cfg(feature = "sim")]
pub mod rack;

pub use bytes::{self, Bytes};
pub use farcall_core::lock;
pub use farcall_core::metrics::{MoveEvent, OpenConnection, OpenLane, RefusalReason};
pub use farcall_core::server::Drained;
pub use farcall_core::shape::{self, Shape};
pub use farcall_core::site::{self, Site};
pub use farcall_core::time::{self, Progress};
pub use farcall_core::transport::{ConnectionId, DialOptions, Lane, LaneReason, ToAddress};
pub use farcall_core::{
    Authentication, Backpressure, BindError, Call, CallContext, CallError, CancelPolicy, Channel,
    ChannelOptions, ClientQuota, Compatibility, ConnectError, Connecting, Connection,
    ConnectionOptions, DeviceFailure, DrivenServer, Endpoint, GoneReason, Identity, IdlePolicy,
    Key, KeyError, MethodDescription, MethodMismatch, Metrics, MetricsSnapshot, MissingMethod,
    PendingCall, PollClient, PollConnecting, ReconnectPolicy, RpcError, RunningServer,
    ServerBuilder, Service, ServiceClient, ServiceDescription, ThreadEnded, Waited,
};
pub use farcall_macros::{Grow, Shape, service};
pub use farcall_transports::{Address, AddressBuilder, AddressError};
pub use farcall_verbs::numa;

#[cfg(feature = "tls")]
pub mod tls;

pub use self::connect::Server;

/// The names that most programs use: `use farcall::prelude::*`.
pub mod prelude {
    pub use crate::{CallError, PollClient, RpcError, Server, ServiceClient};
}

/// Names for generated code only.
#[doc(hidden)]
pub mod __private {
    pub use core::fmt;
    pub use core::future::Future;
    pub use std::clone::Clone;
    pub use std::convert::From;
    pub use std::marker::{Send, Sync};
    pub use std::option::Option;
    pub use std::result::Result::{self, Err, Ok};
    pub use std::sync::Arc;

    pub use farcall_core::codec::growing;
    pub use farcall_core::codec::{
        Decode, Fixed, Opt, Raw, Reader, Seq, Serde, Whole, encoded, part,
    };
    pub use farcall_core::service::{Reserved, read_result, read_value, side};
    pub use farcall_core::shape::{Field, Node, Shape, Signature, Variant};
    pub use farcall_core::time::Progress;
    pub use farcall_core::transport::{Message, ToAddress};
    pub use farcall_core::{
        Answer, Call, CallError, Channel, ConnectError, Connecting, Connection, Method,
        MethodDescription, OlderVersion, PendingCall, PollClient, PollConnecting, Reply, RpcError,
        Service, ServiceClient, ServiceDescription,
    };

    pub use serde;

    pub use crate::connect::{connect, connect_poll};
}

/// Compiles and runs the code of README and book as documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../book/src/quick-start.md")]
    struct QuickStart;

    #[doc = include_str!("../book/src/memory.md")]
    struct LentMemory;

    #[doc = include_str!("../book/src/bulk.md")]
    struct BulkData;

    #[doc = include_str!("../book/src/concurrency.md")]
    struct Concurrency;

    #[doc = include_str!("../book/src/threads-and-cores.md")]
    struct ThreadsAndCores;

    #[doc = include_str!("../book/src/changing-services.md")]
    struct ChangingServices;

    #[doc = include_str!("../book/src/testing.md")]
    struct Testing;

    #[doc = include_str!("../book/src/streams.md")]
    struct Streams;

    #[doc = include_str!("../book/src/operation.md")]
    struct Operation;

    #[doc = include_str!("../book/src/limits.md")]
    struct Limits;

    #[doc = include_str!("../book/src/security.md")]
    struct Security;

    #[doc = include_str!("../book/src/rolling-upgrades.md")]
    struct RollingUpgrades;

    #[doc = include_str!("../book/src/addresses.md")]
    struct Addresses;

    #[doc = include_str!("../book/src/errors.md")]
    struct Errors;

    #[doc = include_str!("../book/src/devices.md")]
    struct Devices;

    #[cfg(feature = "tokio")]
    #[doc = include_str!("../book/src/tokio.md")]
    struct Tokio;

    #[cfg(feature = "sim")]
    #[doc = include_str!("../book/src/simulated-rack.md")]
    struct SimulatedRack;

    #[doc = include_str!("../book/src/rdma-hardware.md")]
    struct RdmaHardware;

    #[doc = include_str!("../book/src/backend-tcp.md")]
    struct BackendTcp;
}
