//! `tcp`: frames on one TCP connection, for machines without RDMA.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window and makes the request where it is sent from, after a header of 12 bytes.
//! 2. The frames of one turn leave with one system call. The socket of the handshake carries them: a connection is one socket.
//! 3. The server thread finds what has arrived, reads all of it with one system call, and hands each request over where it
//!    was read.
//! 4. Responses go the same way back, those of one turn to one client with one system call.
//! 5. The response is what frees the slot: also that of a call that was given up. It carries the generation of
//!    its request.
//!
//! A message larger than a slot is announced. Its receiver grants it when it has memory, and it is then sent in parts: they take
//! turns with the parts of other messages, and whole messages overtake them. Memory grows as the bytes arrive. What waits
//! for memory waits in a queue in which clients take turns.
//!
//! A socket that takes no more makes its sender wait. A server reads no more from a client that does not read.
//!
//! # Knobs
//!
//! `window` (calls outstanding; credits), `slot` (bytes of the longest message that is sent whole), `max_message`, `memory`
//! (bytes of large messages per thread).
//!
//! # When to use it
//!
//! Where there is no RDMA. Each call costs both ends two system calls, which take most of its time.

mod buffers;
mod client;
mod connection;
mod inbox;
mod large;
mod outbox;
mod readiness;
mod replies;
mod requests;
mod server;
mod wire;

#[cfg(test)]
mod tests;

use std::io;

use farcall_core::site::Site;
use farcall_core::transport::ClientTransport;

use crate::contract::{
    Answer, Backend, Config, DeathNotice, Fabric, PendingClient, Placement, ServerHalf, SetupError,
    TakeStream, Terms,
};
use client::{Client, Handover};
use server::Server;

/// The backend `tcp`.
#[derive(Debug)]
pub(crate) struct Tcp;

const NAME: &str = "tcp";

/// Bytes that one read takes at most: the requests of a full window, or as much as a second-level cache holds beside them.
const READ_BYTES: usize = 64 << 10;

impl Backend for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        4
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        match fabric {
            Fabric::Stream => Ok(()),
            Fabric::Verbs(_) => Err(SetupError::Unsupported(
                "tcp uses no RDMA device; use an address tcp://HOST:PORT".into(),
            )),
        }
    }

    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_DEVICE
    }

    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        self.check(&at.fabric)?;
        let (site, handover) = (at.site.clone(), Handover::default());
        Ok(Box::new(Pending { site, handover, memory: config.memory }))
    }

    fn serve(
        &self,
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError> {
        self.check(&at.fabric)?;
        let (server, intake) = Server::new(at, config, max_clients)?;
        Ok(ServerHalf { transport: Box::new(server), intake: Box::new(intake) })
    }
}

/// A client that waits for the server's welcome.
struct Pending {
    site: Site,
    handover: Handover,
    memory: u64,
}

impl PendingClient for Pending {
    fn setup(&self) -> Vec<u8> {
        wire::SETUP.to_vec()
    }

    fn take_stream(&mut self) -> Option<TakeStream> {
        Some(self.handover.take_stream())
    }

    fn finish(self: Box<Self>, answer: Answer<'_>) -> Result<Box<dyn ClientTransport>, SetupError> {
        let Answer { terms, setup, .. } = answer;
        check_setup(setup, terms)?;
        Ok(Box::new(Client::new(&self.site, terms, self.memory, self.handover)))
    }
}

/// Refuses a peer whose frames are not these.
fn check_setup(setup: &[u8], terms: &Terms) -> Result<(), SetupError> {
    if setup != wire::SETUP {
        return Err(SetupError::Misbehaved("its setup is not that of these frames"));
    }
    if terms.window > 1 << 16 {
        return Err(SetupError::Misbehaved("its window has more slots than a frame can name"));
    }
    Ok(())
}

/// Nothing has gone wrong: there is nothing to read now.
fn is_nothing_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The rule that the peer broke, if that is why its stream gives no more bytes: a socket alone has none.
#[cold]
fn broken(error: &io::Error) -> Option<inbox::Misbehaved> {
    (error.kind() == io::ErrorKind::InvalidData).then_some("its bytes are no TLS of this session")
}
