//! What backends over lossy queue pairs repair with: UD and UC lose, double and reorder what they carry.
//!
//! The client does all of it; a server answers what it is asked, and has no timers. [`flight`] knows which datagrams with
//! requests are under way and which were overtaken, [`round_trip`] how long an answer may take, [`timers`] when to send
//! again and when to declare the server dead, [`congestion`] how much may be under way. Messages larger than a datagram go
//! in [`parts`], and [`transfers`] moves all of a client's in turn.
//!
//! Nothing here knows a backend, a wire format or a clock.

pub(crate) mod congestion;
pub(crate) mod flight;
pub(crate) mod parts;
pub(crate) mod round_trip;
pub(crate) mod timers;
pub(crate) mod transfers;
