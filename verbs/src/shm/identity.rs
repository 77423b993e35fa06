//! Whether the process at the other end of a control connection has the device that it names: datagrams from there are
//! delivered in that device's name.

use rustix::io;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, getpid};

use super::context::Context;
use super::peer::socket_name;
use super::wire::{Gid, answer};

/// Refuses a process that is not the one that listens at the control socket of the device `gid`. The kernel tells who that is
/// (`SO_PEERCRED`); every process of the machine can read the names of such sockets. This asks and waits for nothing.
pub(super) fn check(context: &Context, gid: &Gid, process: Pid) -> Result<(), u32> {
    if *gid == context.gid {
        return if process == getpid() { Ok(()) } else { Err(answer::IMPOSTOR) };
    }
    match listener(context.uid, gid) {
        Ok(owner) if owner == process => Ok(()),
        Ok(_) | Err(io::Errno::CONNREFUSED) => Err(answer::IMPOSTOR),
        // Its backlog is full, or this process has no descriptor left.
        Err(_) => Err(answer::RESOURCES),
    }
}

/// The process that listens at the control socket of the device `gid`.
fn listener(uid: u32, gid: &Gid) -> io::Result<Pid> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &socket_name(uid, gid)?)?;
    socket_peercred(&socket).map(|credentials| credentials.pid)
}
