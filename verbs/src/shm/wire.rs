//! The protocol between a context and its peers over a Unix socket: fixed-size records with file
//! descriptors attached. It is not on the data path.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Must change with any record or shared memory layout.
pub(crate) const PROTOCOL_VERSION: u32 = 7;

/// The most descriptors attached to one record.
pub(crate) const MAX_FDS: usize = 4;

/// Identifies a context.
pub(crate) type Gid = [u8; 16];

/// A random number that a device keeps for each peer: only the two know it.
pub(crate) type Claim = [u8; 16];

/// Kinds of requests.
pub(crate) mod ask {
    /// Greeting. The answer carries the file of region words.
    pub(crate) const HELLO: u32 = 1;
    /// Connect to a queue pair. The answer carries its inbox, unless it is asked for within a process.
    pub(crate) const ATTACH: u32 = 2;
    /// Map a region by its key. The answer carries its file.
    pub(crate) const REGION: u32 = 3;
    /// A notice that an attached queue pair is gone. It has no answer.
    pub(crate) const CLOSED: u32 = 4;
    /// No question: a region was written whose owner waits for that. There is no answer.
    pub(crate) const WRITTEN: u32 = 5;
    /// Find a memory window by a key. The answer says where its record is.
    pub(crate) const WINDOW: u32 = 6;
    /// No question: a region has been mapped, whose owner may then close its file. There is no answer.
    pub(crate) const MAPPED: u32 = 7;
    /// Has the device that is asked claimed this to the one that asks? The answer says OK, or IMPOSTOR.
    pub(crate) const CLAIM: u32 = 8;
}

/// Status codes of answers.
pub(crate) mod answer {
    pub(crate) const OK: u32 = 0;
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const NO_QUEUE_PAIR: u32 = 2;
    pub(crate) const TAKEN: u32 = 3;
    pub(crate) const TYPE: u32 = 4;
    pub(crate) const NO_REGION: u32 = 5;
    pub(crate) const RESOURCES: u32 = 6;
    pub(crate) const MALFORMED: u32 = 7;
    pub(crate) const IMPOSTOR: u32 = 8;

    /// The reason as text.
    pub(crate) fn reason(status: u32) -> &'static str {
        match status {
            VERSION => "it speaks another version of the shared-memory protocol",
            NO_QUEUE_PAIR => "its queue pair is gone, or was never there",
            TAKEN => "its queue pair is connected to another peer",
            TYPE => "its queue pair is of another type",
            NO_REGION => "it has no memory region with this key",
            RESOURCES => {
                "the process there has no memory or descriptor left; raise its limit of open files (ulimit -n)"
            }
            MALFORMED => "it did not understand the request",
            IMPOSTOR => "the device that was named belongs to another process",
            _ => "for a reason unknown to this version",
        }
    }
}

/// How the receives are counted that a sender uses.
pub(crate) mod receives {
    /// For this sender alone, in the inbox.
    pub(crate) const OURS: u32 = 0;
    /// In a credit page (the second descriptor); each sender takes a receive before using it.
    pub(crate) const TAKEN: u32 = 1;
    /// In a credit page (the second descriptor); receives are counted but not taken.
    pub(crate) const SEEN: u32 = 2;
}

/// A request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Question {
    pub(crate) what: u32,
    pub(crate) version: u32,
    /// ATTACH, CLOSED: the requester's context and queue pair. CLAIM: the context that asks.
    pub(crate) gid: Gid,
    /// ATTACH: what the requester claims to the peer. CLAIM: what was claimed.
    pub(crate) claim: Claim,
    pub(crate) from_qp: u32,
    /// ATTACH, CLOSED: the target queue pair; ATTACH: also its type, and the secret of its endpoint.
    pub(crate) to_qp: u32,
    pub(crate) secret: u64,
    pub(crate) ty: u32,
    /// REGION, WINDOW: the requested key. WRITTEN, MAPPED: the key of the region.
    pub(crate) rkey: u32,
}

/// An answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub(crate) struct Answer {
    pub(crate) status: u32,
    /// ATTACH: the inbox's layout.
    pub(crate) cells: u32,
    pub(crate) lengths: u32,
    /// ATTACH, REGION: the protection domain.
    pub(crate) pd: u32,
    /// ATTACH: how receives are counted (see [`receives`]).
    pub(crate) receives: u32,
    /// REGION: the access flags, the slot of its region word, and the word's value while the region lives.
    /// WINDOW: the slot of its record. ATTACH: one more than the index at which the peer calls for the queue pair, in the page that
    /// comes before the event; 0 if it need not.
    pub(crate) access: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// ATTACH: the number of the event (the last descriptor), which all queue pairs of a device share; 0 if there is
    /// none.
    pub(crate) event: u64,
    /// REGION: its address and length.
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// Sends a record and its descriptors. Use `DONTWAIT` if the sender must not block.
pub(crate) fn send<T: IntoBytes + Immutable>(
    socket: BorrowedFd<'_>,
    record: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = io::retry_on_intr(|| {
        sendmsg(
            socket,
            &[IoSlice::new(record.as_bytes())],
            &mut control,
            flags | SendFlags::NOSIGNAL,
        )
    })?;
    if sent == size_of::<T>() { Ok(()) } else { Err(io::Errno::MSGSIZE) }
}

/// Receives one record and its descriptors; `None` at the end of the connection.
pub(crate) fn receive<T: FromBytes + IntoBytes>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut record = T::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = io::retry_on_intr(|| {
        recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(record.as_mut_bytes())],
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    // A record of another size is not part of the protocol.
    if got.bytes != size_of::<T>() || got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Errno::BADMSG);
    }
    // Descriptors that this process has no room for are lost, but the record is complete, so the connection
    // continues.
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Errno::MFILE);
    }
    Ok(Some((record, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn each_refusal_has_a_reason_of_its_own() {
        let reasons: Vec<_> =
            (answer::VERSION..=answer::IMPOSTOR + 1).map(answer::reason).collect();
        let others = |n: usize| reasons[n + 1..].iter().any(|other| *other == reasons[n]);
        assert!((0..reasons.len()).all(|n| !others(n)), "{reasons:?}");
    }

    #[test]
    fn a_record_arrives_with_its_descriptors() {
        let (ours, theirs) = pair();
        let question = Question { what: ask::REGION, rkey: 7, ..Question::default() };
        let fds = [ours.as_fd(), theirs.as_fd()];
        send(ours.as_fd(), &question, &fds, SendFlags::empty()).unwrap();
        let (got, fds) = receive::<Question>(&theirs, RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((got, fds.len()), (question, 2));
    }

    #[test]
    fn the_end_of_a_connection_is_not_an_error() {
        let (ours, theirs) = pair();
        drop(ours);
        assert!(receive::<Question>(&theirs, RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn a_record_of_another_size_is_refused() {
        let (ours, theirs) = pair();
        send(ours.as_fd(), &7u32, &[], SendFlags::empty()).unwrap();
        let got = receive::<Question>(&theirs, RecvFlags::empty());
        assert_eq!(got.unwrap_err(), io::Errno::BADMSG);
    }
}
