//! Whether the process at the other end of a control connection has the device that it names: datagrams from there are
//! delivered in that device's name.
//!
//! A device keeps a random number for each peer that it dials, its *claim*, and says it when it attaches. The peer asks the control
//! thread of the named device whether that made the claim. Process ids tell nothing here: one of another pid namespace has none.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, socket_with,
};

use super::context::Context;
use super::peer::socket_name;
use super::wire::{self, Answer, Claim, Gid, Question, answer, ask};
use crate::PeerCredentials;

/// What is known of a claim.
#[derive(Debug)]
pub(super) enum Checked {
    /// The named device made it.
    True,
    /// The named device has been asked, at this socket.
    Asked(OwnedFd),
}

/// Checks that the device `gid` made this claim to `context`. This waits for nothing.
///
/// # Errors
/// The status to answer: it did not, or cannot be asked.
pub(super) fn check(context: &Arc<Context>, gid: &Gid, claim: &Claim) -> Result<Checked, u32> {
    if let Some(own) = Context::of_this_process(gid) {
        let made = own.upgrade().is_some_and(|own| own.has_claimed(&context.gid, claim));
        return if made { Ok(Checked::True) } else { Err(answer::IMPOSTOR) };
    }
    match ask(context, gid, claim) {
        Ok(Some(socket)) => Ok(Checked::Asked(socket)),
        Ok(None) | Err(io::Errno::CONNREFUSED) => Err(answer::IMPOSTOR),
        // Its backlog is full, or this process has no descriptor left.
        Err(_) => Err(answer::RESOURCES),
    }
}

/// Asks the process that listens at the control socket of the device `gid`. `None`: it is of another user.
fn ask(context: &Context, gid: &Gid, claim: &Claim) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &socket_name(context.uid, gid)?)?;
    if PeerCredentials::of(&socket)?.user != context.uid {
        return Ok(None);
    }
    let question =
        Question { what: ask::CLAIM, gid: context.gid, claim: *claim, ..Question::default() };
    wire::send(socket.as_fd(), &question, &[], SendFlags::DONTWAIT)?;
    Ok(Some(socket))
}

/// What the device that was asked answers.
///
/// # Errors
/// The status to answer: it made no such claim, or has hung up.
pub(super) fn hear(socket: &OwnedFd) -> Result<(), u32> {
    match wire::receive::<Answer>(socket, RecvFlags::DONTWAIT) {
        Ok(Some((Answer { status: answer::OK, .. }, _))) => Ok(()),
        Ok(Some(_)) => Err(answer::IMPOSTOR),
        Ok(None) | Err(_) => Err(answer::RESOURCES),
    }
}
