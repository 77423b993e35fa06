//! One error type per operation. Each error says what failed, where, and how to fix it.

use std::fmt::{self, Display as _};
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{Operation, QpState, QpType, WindowError};

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error("no device is named {name:?}; there are: {known}{hint}")]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The existing names, comma-separated.
        known: String,
        /// Why devices may be missing, and how to fix it; empty, or starts with a semicolon.
        hint: String,
    },
    /// The device does not have this option.
    #[error("device {device} has no {option}; leave it out")]
    NoSuchOption {
        /// The device's name.
        device: String,
        /// The option.
        option: &'static str,
    },
    /// This user may not use the device.
    #[error(
        "device {device}: no permission to open {file}; make it readable and writable for this user (the \
         udev rules of rdma-core do), or run as one who may"
    )]
    NoPermission {
        /// The device's name.
        device: String,
        /// The device file.
        file: String,
    },
    /// The kernel has the device, but no file to open it with.
    #[error(
        "device {device} has no file in /dev/infiniband; load the kernel module ib_uverbs, and give \
         containers that folder"
    )]
    NoDeviceFile {
        /// The device's name.
        device: String,
    },
    /// The device has no such port.
    #[error("device {device} has no port {port}; it has ports 1 to {ports}")]
    NoPort {
        /// The device's name.
        device: String,
        /// The requested port.
        port: u8,
        /// The number of ports of the device.
        ports: u8,
    },
    /// The port has no address to use by default.
    #[error(
        "device {device} has no RoCEv2 IPv4 GID on port {port}; assign an IPv4 address to its network \
         interface, or pass gid_index; there are: {known}"
    )]
    NoGid {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The existing GIDs, comma-separated.
        known: String,
    },
    /// The port has no GID with that index.
    #[error("device {device} has no GID index {index} on port {port}; there are: {known}")]
    GidIndex {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The requested index.
        index: u8,
        /// The existing GIDs, comma-separated.
        known: String,
    },
    /// The operating system refused something that the device needs.
    #[error("device {device}: {what}: {}", with_mend(source))]
    System {
        /// The device's name.
        device: String,
        /// The attempted operation.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// An error of the operating system; if a limit of this process is the cause, with the limit.
fn with_mend(error: &io::Error) -> impl fmt::Display {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    fmt::from_fn(move |f| {
        error.fmt(f)?;
        let current = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
        match errno {
            Some(Errno::FBIG) => write!(
                f,
                "; this process may make no file longer than {} bytes, and memory that processes share is a file; raise that (ulimit -f, LimitFSIZE of systemd)",
                current(Resource::Fsize)
            ),
            Some(Errno::MFILE) => write!(
                f,
                "; this process may have {} open files; raise that (ulimit -n, LimitNOFILE of systemd)",
                current(Resource::Nofile)
            ),
            _ => Ok(()),
        }
    })
}

/// Why a resource of a device could not be created or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The request exceeds the [`Capabilities`](crate::Capabilities).
    #[error("{what} of {asked} is outside the device's range 1 to {max}")]
    Limit {
        /// The name of the limit.
        what: &'static str,
        /// The requested value.
        asked: usize,
        /// The largest value allowed.
        max: usize,
    },
    /// Two resources that must come from one device or protection domain do not.
    #[error("{0} belongs to another device or protection domain")]
    Foreign(&'static str),
    /// The configuration is contradictory.
    #[error("{0}")]
    Invalid(&'static str),
    /// The device does not support this.
    #[error("this device has no {0} (see its capabilities); choose another device")]
    Unsupported(&'static str),
    /// A region of persistent memory cannot be opened.
    #[error("persistent memory {name:?}: {problem}")]
    Persistent {
        /// The region's name.
        name: String,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The process may not lock enough memory.
    #[error(
        "registering {len} bytes: this process may lock {limit} bytes of memory; raise that \
         (ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or memlock in limits.conf)"
    )]
    LockedMemory {
        /// Bytes to be registered.
        len: usize,
        /// Bytes that the process may lock.
        limit: u64,
    },
    /// The peer of an endpoint cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The operating system refused the operation.
    #[error("{what}: {}", with_mend(source))]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Why a queue pair could not be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The queue pair is not in a state that can be connected.
    #[error("queue pair is in state {0:?}; only one in Init can be connected")]
    State(QpState),
    /// The operation does not exist for this type of queue pair.
    #[error("a queue pair of type {0:?} is not connected this way")]
    Type(QpType),
    /// The device has no dynamic connections.
    #[error(
        "this device connects each queue pair to one peer; dynamic connections need one whose `caps().dynamic_connections` is true"
    )]
    NotDynamic,
    /// The endpoint belongs to another kind of device, or to a queue pair of another type.
    #[error("the peer's endpoint does not match: {0}")]
    Mismatch(&'static str),
    /// There is no route to the peer's address.
    #[error(
        "no route to the peer at {gid}: {source}; check addresses and routes of the network interfaces, \
         and that both sides use GIDs of one network"
    )]
    Unreachable {
        /// The peer's address.
        gid: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The port has no link.
    #[error("port {port} of device {device} is down; bring its network interface up")]
    PortDown {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
    },
    /// The device of the endpoint no longer exists.
    #[error("the peer's device is gone: {0}")]
    PeerGone(io::Error),
    /// The peer refused.
    #[error("the peer refused: {0}")]
    Refused(&'static str),
    /// The peer runs under another user.
    #[error("the peer runs as user {theirs}, this process as user {ours}")]
    OtherUser {
        /// The peer's user id.
        theirs: u32,
        /// Our user id.
        ours: u32,
    },
    /// The peer's answer does not follow this protocol.
    #[error("the peer's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The peer did not answer in time.
    #[error("the peer did not answer within {0:?}")]
    Timeout(Duration),
    /// The operating system refused the operation.
    #[error("{what}: {}", with_mend(source))]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Why a work request was not accepted. A request that is refused has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many work requests as it was created for; poll completions, then post again.
    #[error("the queue is full; poll completions to retire work requests")]
    QueueFull,
    /// The queue pair's state does not allow it.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// This type of queue pair does not support this operation.
    #[error("queue pairs of type {ty:?} do not support {operation:?}")]
    Unsupported {
        /// The queue pair's type.
        ty: QpType,
        /// The requested operation.
        operation: Operation,
    },
    /// The message is longer than the device or the queue pair's type allows.
    #[error("message of {len} bytes is over the limit of {max}")]
    TooLong {
        /// The message's length.
        len: u64,
        /// The largest length allowed.
        max: u64,
    },
    /// A datagram has no destination, or a connected queue pair was given one.
    #[error("a UD SEND needs a destination, and other work requests take none")]
    Destination,
    /// The local and the remote length differ, or the destination of an atomic's result is too short.
    #[error("local length {local} does not fit remote length {remote}")]
    Length {
        /// Local length in bytes.
        local: u64,
        /// Remote length in bytes.
        remote: u64,
    },
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair has a shared receive queue; post receives there")]
    HasSrq,
    /// The memory belongs to another device or protection domain.
    #[error("the memory belongs to another protection domain")]
    Foreign,
    /// A memory window cannot be bound or invalidated like this.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The remote address of an atomic is not a multiple of 8.
    #[error("an atomic at {addr:#x}, which is not a multiple of 8")]
    Misaligned {
        /// The remote address.
        addr: u64,
    },
    /// The device refused a valid work request.
    #[error("the device refused the work request (errno {errno})")]
    Device {
        /// The errno of the device.
        errno: i32,
    },
}

/// Why a completion queue can no longer be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// More completions were outstanding than fit, and completions were lost.
    #[error("completion queue overrun: more completions outstanding than its capacity")]
    Overrun,
    /// The device has failed or was removed. There will be no more completions.
    #[error("the device has failed or was removed; open it again")]
    DeviceLost,
}

/// A slice does not lie in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie in a region of {region} bytes")]
pub struct OutOfRange {
    /// The requested start of the slice.
    pub offset: u64,
    /// The requested length of the slice.
    pub len: u64,
    /// The region's length.
    pub region: u64,
}

/// The bytes are not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an endpoint: {0}")]
pub struct EndpointError(pub(crate) &'static str);
