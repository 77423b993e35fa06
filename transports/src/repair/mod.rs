//! What backends over lossy queue pairs repair with: UD and UC lose, double and reorder what they carry.
//!
//! The client does all of it; a server answers what it is asked, and has no timers. A [`window`] keeps each request until
//! its response has arrived, and [`retransmission`] says when to send it again: it knows which datagrams are under way and
//! which were overtaken ([`flight`]), how long an answer may take ([`round_trip`]), when something is due ([`timers`]), and
//! how much may be under way ([`congestion`]). Messages larger than a datagram go in [`parts`]; [`transfers`] moves all of a
//! client's in turn, and [`releases`] tells the server which responses it may free.
//!
//! Nothing here knows a backend, a wire format or a clock.

pub(crate) mod congestion;
pub(crate) mod flight;
pub(crate) mod parts;
pub(crate) mod releases;
pub(crate) mod retransmission;
pub(crate) mod round_trip;
pub(crate) mod timers;
pub(crate) mod transfers;
pub(crate) mod window;
