//! `datagram`: UD SEND both ways, after FaSST (OSDI 2016), with the loss recovery that FaSST leaves out.
//!
//! One UD queue pair of a server thread talks to all of its clients: a NIC keeps one context, however
//! many they are. What UD may lose, double or reorder is repaired by the client (eRPC, NSDI 2019,
//! section 5.3): the server has no timers, it answers what it is asked.
//!
//! # The life of a call
//!
//! 1. The client takes a free slot of its window, and gives it the next generation. Request and slot are
//!    kept until the response has come.
//! 2. Requests of one turn leave coalesced, as many in one datagram as fit the MTU, all of them under one
//!    doorbell. A datagram names its session and that session's epoch, a secret of the two ends:
//!    what a former life or somebody else sent is dropped.
//! 3. The server runs the handler if the generation is new to that slot. If it is the slot's own, it says
//!    "running", or repeats the response that it keeps; an older one is dropped. So a handler runs at
//!    most once, whatever the wire does.
//! 4. Responses of one turn to one client are coalesced in the same way.
//! 5. The next generation in a slot acknowledges the response before, which frees it.
//!
//! Of a call whose method is marked idempotent nothing of this is kept: a handler that answers in place writes its answer into
//! the datagram that leaves, and when that is lost, the call runs again. While a handler takes longer, its slot says so.
//!
//! A client that has been silent for twice as long as it may be has all of its answers, or does not look for them: what is
//! kept for it then is eight bytes for each slot, which say what must not run again.
//!
//! # What is lost
//!
//! A request of which nothing is heard while three later datagrams are answered is sent again at once (RACK, RFC 8985), and
//! so is a part that three later ones have overtaken. What nobody overtakes is sent again after a retransmission timeout, which
//! follows the measured round trips (Jacobson, RFC 6298), doubles each time, and has a floor and a cap. Each message tells which
//! copy it is, and its answer which copy it answers and whether it took a handler longer than a turn: so a round trip is
//! measured also where something was repeated (Karn), and never with a slow handler's time in it. Of a request that the server is
//! known to have only a short question is repeated. Many timeouts without any word from the server, over as long as `silence`
//! allows, end the connection.
//!
//! Repair is selective: what has come is not sent again.
//!
//! A session whose round trips grow by what queues take sends less (Swift, SIGCOMM 2020): its congestion window counts
//! the datagrams of requests that are under way, and the parts. In the memory of one machine there is no network to spare, and no such window.
//!
//! # Messages longer than a slot
//!
//! A longer request is announced; the server finds memory for it and says so; the client sends it in parts
//! of one datagram each, and hears which have come (a base and a mask of 64). A longer response
//! is offered, and the client asks for ranges of its parts. So the client paces both directions: no more
//! parts are under way than the server gave credits for. Transfers take turns part by part, and small
//! messages go before them.
//!
//! # Set-up
//!
//! Each end tells the other its endpoint, Q_Key, session number and MTU; the server adds the epoch and the
//! credits. A client has a queue pair for each connection, or one for all that a thread dials, if the thread says so
//! ([`ClientThread`](farcall_core::transport::ClientThread)): then datagrams find their session by its number, and the connection that is
//! polled puts by what has come for others.
//!
//! # Ends
//!
//! Either end says goodbye, best effort. Of a process that dies the other end hears by the connection's tether (the socket of the
//! handshake) at once, of a machine that dies when that has been silent for as long as `silence` allows: also a client without
//! calls, and the server, without a datagram more. A client with a call to wait for gives up a server that does not answer in
//! that time though its machine is there. Calls in flight then end, and say that they may have run. A new session has another
//! epoch, so that what the former one has sent is nobody's.
//!
//! # Knobs
//!
//! `window` (calls outstanding), `slot` (the longest message that goes whole, at most what a datagram holds),
//! `max_message`, `memory` (bytes of longer messages per thread), `silence` (how long a peer may say nothing),
//! `without` (what each optimization is worth: [`Optimization`](crate::Optimization)).
//!
//! # When to use it
//!
//! Many clients, small messages. A large message costs a copy and some overhead for each MTU, and a lost datagram
//! costs its call a round trip or two, or a retransmission timeout where nothing follows it.

mod begin;
mod calls;
mod client;
mod congestion;
mod flight;
mod heard;
mod intake;
mod landing;
mod overdue;
mod parts;
mod passing;
mod port;
mod round_trip;
mod server;
mod session;
mod sessions;
mod settling;
mod setup;
mod shared;
mod timers;
mod transfers;
mod window;
mod wire;

pub(crate) use begin::{prepare, serve};
pub(crate) use setup::check;

#[cfg(test)]
mod tests;
