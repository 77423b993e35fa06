//! One error type per thing that can go wrong; each says what, where, and the mend.

use std::io;
use std::time::Duration;

use crate::{Operation, QpState, QpType};

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has this name.
    #[error("no device is named {name:?}; there are: {known}{hint}")]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are, with commas.
        known: String,
        /// Why there may be no more, and the mend; empty, or starts with a semicolon.
        hint: String,
    },
    /// The device has nothing to choose there.
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
        /// The file that it is opened by.
        file: String,
    },
    /// The kernel has the device, and there is no file to open it by.
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
        /// The port asked for.
        port: u8,
        /// The number of its ports.
        ports: u8,
    },
    /// The port has no address that is used by default.
    #[error(
        "device {device} has no RoCEv2 IPv4 GID on port {port}; assign an IPv4 address to its network \
         interface, or pass gid_index; there are: {known}"
    )]
    NoGid {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The GIDs there are, with commas.
        known: String,
    },
    /// The port has no GID of that index.
    #[error("device {device} has no GID index {index} on port {port}; there are: {known}")]
    GidIndex {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The index asked for.
        index: u8,
        /// The GIDs there are, with commas.
        known: String,
    },
    /// The operating system refused something that the device needs.
    #[error("device {device}: {what}: {source}")]
    System {
        /// The device's name.
        device: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a resource of a device could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// More was asked than [`Capabilities`](crate::Capabilities) allow.
    #[error("{what} of {asked} is outside the device's range 1 to {max}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// The value asked for.
        asked: usize,
        /// The largest value allowed.
        max: usize,
    },
    /// Two resources that must come from one device or protection domain do not.
    #[error("{0} belongs to another device or protection domain")]
    Foreign(&'static str),
    /// The configuration contradicts itself.
    #[error("{0}")]
    Invalid(&'static str),
    /// The device has no such thing.
    #[error("this device has no {0} (see its capabilities); choose another device")]
    Unsupported(&'static str),
    /// A region of persistent memory cannot be opened like this.
    #[error("persistent memory {name:?}: {problem}")]
    Persistent {
        /// The region's name.
        name: String,
        /// What is in the way, and the mend.
        problem: String,
    },
    /// More memory would have to be locked than this process may.
    #[error(
        "registering {len} bytes: this process may lock {limit} bytes of memory; raise that \
         (ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or memlock in limits.conf)"
    )]
    LockedMemory {
        /// Bytes that were to be registered.
        len: usize,
        /// Bytes that may be locked.
        limit: u64,
    },
    /// The peer behind an endpoint cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
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
    /// The endpoint belongs to another kind of device, or to a queue pair of another type.
    #[error("the peer's endpoint does not match: {0}")]
    Mismatch(&'static str),
    /// No way leads to the peer's address.
    #[error(
        "no way to the peer at {gid}: {source}; check addresses and routes of the network interfaces, \
         and that both sides use GIDs of one network"
    )]
    Unreachable {
        /// The peer's address.
        gid: String,
        /// What the system said.
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
    /// Nobody listens behind the endpoint any more.
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
    /// The peer answered with something that is not this protocol.
    #[error("the peer's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The peer did not answer in time.
    #[error("the peer did not answer within {0:?}")]
    Timeout(Duration),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a work request was not taken. Nothing of it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many work requests as it was made for; poll completions, then post again.
    #[error("the queue is full; poll completions to retire work requests")]
    QueueFull,
    /// The queue pair's state does not allow it.
    #[error("queue pair is in state {0:?}")]
    State(QpState),
    /// This type of queue pair does not carry this operation.
    #[error("queue pairs of type {ty:?} do not carry {operation:?}")]
    Unsupported {
        /// The queue pair's type.
        ty: QpType,
        /// The operation asked for.
        operation: Operation,
    },
    /// The message is longer than the device or the queue pair's type allows.
    #[error("message of {len} bytes is over the limit of {max}")]
    TooLong {
        /// The message's length.
        len: u64,
        /// The longest allowed.
        max: u64,
    },
    /// A datagram without a destination, or a destination on a connected queue pair.
    #[error("a destination belongs to a UD SEND, and only to that")]
    Destination,
    /// The local and the remote length differ, or an atomic's result has no room.
    #[error("local length {local} does not fit remote length {remote}")]
    Length {
        /// Bytes at this side.
        local: u64,
        /// Bytes at the other side.
        remote: u64,
    },
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair has a shared receive queue; post receives there")]
    HasSrq,
    /// The memory belongs to another device or protection domain.
    #[error("the memory belongs to another protection domain")]
    Foreign,
    /// An atomic's remote address is no multiple of 8.
    #[error("an atomic at {addr:#x}, which is no multiple of 8")]
    Misaligned {
        /// The remote address.
        addr: u64,
    },
    /// The device refused for a reason that it should not have.
    #[error("the device refused the work request (errno {errno})")]
    Device {
        /// What it said.
        errno: i32,
    },
}

/// A completion queue cannot be polled any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// More completions were outstanding than the queue has room for. Completions were lost.
    #[error("completion queue overrun: more completions outstanding than its capacity")]
    Overrun,
    /// The device has failed, or was taken away. Nothing completes on it any more.
    #[error("the device has failed or was removed; open it again")]
    DeviceLost,
}

/// A slice does not lie in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie in a region of {region} bytes")]
pub struct OutOfRange {
    /// Where the slice was to start.
    pub offset: u64,
    /// How long it was to be.
    pub len: u64,
    /// The region's length.
    pub region: u64,
}

/// Bytes that are not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an endpoint: {0}")]
pub struct EndpointError(pub(crate) &'static str);
