//! `datagram`: UD SEND both ways, after FaSST (OSDI 2016), with the loss recovery that FaSST leaves out.
//!
//! One UD queue pair of a server thread talks to all of its clients: a NIC keeps one context, however many they are. UD may
//! lose, double or reorder datagrams; the client repairs that (eRPC, NSDI 2019, section 5.3). The server has no timers: it
//! answers what it is asked.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window, in its next generation. Request and slot are kept until the response has
//!    arrived.
//! 2. Requests of one turn leave coalesced, as many in one datagram as fit the MTU, all of them under one doorbell. A
//!    datagram names its session and the session's epoch, a secret of the two ends; datagrams of a former session, or from
//!    another queue pair or device, are dropped.
//! 3. The server runs the handler if the generation is new to that slot. If it is the slot's own, the server says that the
//!    call runs, or repeats the response that it keeps; an older one is dropped. So a handler runs at most once, whatever
//!    the network does.
//! 4. Responses of one turn to one client are coalesced in the same way.
//! 5. The next generation in a slot acknowledges the response before, which frees it.
//!
//! Of a call whose method both ends declare idempotent nothing of this is kept: a handler that answers in place writes its response
//! into the datagram that leaves, and when that is lost, the call runs again. While a handler takes longer, its slot says so.
//!
//! A client that has been silent for twice as long as it may be has all of its responses, or does not look for them. Then
//! the server keeps eight bytes for each of its slots, which say what must not run again.
//!
//! # Loss
//!
//! A request that the server has not mentioned while it answered three later datagrams is sent again at once (RACK,
//! RFC 8985), and so is a part that three later ones have overtaken. Other losses are found by a retransmission timeout, which
//! follows the measured round trips (Jacobson, RFC 6298), doubles each time, and has a floor and a cap. Each message tells which
//! copy it is; its answer tells which copy it answers, and whether that took longer than a turn. So round trips are also
//! measured where something was repeated (Karn), and never include the time of a slow handler. If the server is known to have
//! a request, only a short question is repeated. A server that is silent during many timeouts, over as long as `silence` allows,
//! is declared dead.
//!
//! Repair is selective: what has arrived is not sent again.
//!
//! A session whose round trips grow in queues sends less (Swift, SIGCOMM 2020): its congestion window counts the datagrams of
//! requests that are under way, and the parts. Within one machine there is no network, and no such window.
//!
//! # Messages larger than a slot
//!
//! A larger request is announced; the server finds memory for it and says so; the client sends it in parts of one datagram
//! each, and is told which have arrived (a base and a mask of 64). A larger response is lent: the client asks for ranges of
//! its parts, and releases it. So the client paces both directions: no more parts are under way than the server gave credits
//! for. Transfers take turns part by part, and small messages go before them.
//!
//! # Set-up
//!
//! Each end tells the other its endpoint, Q_Key, session number and MTU; the server adds the epoch of its datagrams and the
//! credits. The epoch of the client's datagrams it tells by datagram: the client asks for it before it counts as connected.
//! So only a client is served that receives at the address that it gave, and nobody can have a stranger flooded with
//! responses. The answer is no longer than the question. Epochs and Q_Keys are random numbers of the operating system. A client
//! has a queue pair for each connection, or one for all of its [site](farcall_core::site::Site): then datagrams find their
//! session by its number, and the polled connection queues datagrams that arrived for the others.
//!
//! # Ends
//!
//! Either end says goodbye, best effort. The death of a process is noticed at once by the connection's liveness socket (the
//! socket of the handshake); the death of a machine when that socket has been silent for as long as `silence` allows. Neither
//! needs a call or a datagram. A client with calls outstanding also gives up a server that does not answer in that time
//! though its machine does. Calls in flight then end, and say that they may have run. A new session has another epoch, so
//! that datagrams of the former one are dropped.
//!
//! # Knobs
//!
//! `window` (calls outstanding), `slot` (the longest small message, at most what a datagram holds), `max_message`, `memory`
//! (bytes of large messages per thread), `silence` (how long a peer may say nothing). With the cargo feature `ablation` also
//! `without`, to measure what each optimization is worth.
//!
//! # When to use it
//!
//! Many clients, small messages. A large message costs a copy and some overhead for each MTU, and a lost datagram costs its
//! call a round trip or two, or a retransmission timeout if nothing follows it.

#[cfg_attr(
    not(feature = "ablation"),
    expect(unreachable_pub, reason = "it is public where optimizations can be turned off")
)]
mod ablation;
mod calls;
mod client;
mod client_port;
mod idle_sessions;
mod in_place;
mod large;
mod outgoing;
mod pending;
mod port;
mod replies;
mod requests;
mod server;
mod session;
mod setup;
mod shared;
mod wire;

#[cfg(test)]
mod tests;

#[cfg(not(feature = "ablation"))]
use ablation::Without;
#[cfg(feature = "ablation")]
pub use ablation::{Optimization, Without};

use crate::contract::{
    Backend, Config, DeathNotice, Fabric, OptionSpec, PendingClient, Placement, ServerHalf,
    SetupError,
};
use client_port::ClientPort;
use pending::Pending;
use server::Server;
use setup::Sizes;
use shared::PortShare;

/// The backend `datagram`.
#[derive(Debug)]
pub(crate) struct Datagram;

const NAME: &str = "datagram";

impl Backend for Datagram {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u8 {
        2
    }

    fn options(&self) -> &'static [OptionSpec] {
        ablation::OPTIONS
    }

    fn suits_many_clients(&self) -> bool {
        true
    }

    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError> {
        setup::check(fabric.device(NAME)?.caps())
    }

    fn death_notice(&self) -> DeathNotice {
        DeathNotice::BY_SOCKET
    }

    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        self.check(&at.fabric)?;
        let device = at.fabric.device(NAME)?;
        let without = Without::of(config);
        if at.share {
            let port = PortShare::open(at.site, device, without)?;
            return Ok(Box::new(Pending::new(port, config)));
        }
        let sizes = Sizes::of_client(config.window, device.caps(), without);
        let port = ClientPort::open(at.site, device, &sizes)?;
        Ok(Box::new(Pending::new(port, config)))
    }

    fn serve(
        &self,
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError> {
        self.check(&at.fabric)?;
        let device = at.fabric.device(NAME)?;
        let (server, intake) = Server::new(at, device, config, max_clients)?;
        Ok(ServerHalf { transport: Box::new(server), intake: Box::new(intake) })
    }
}
