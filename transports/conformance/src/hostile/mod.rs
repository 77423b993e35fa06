//! Peers that break the rules: the half that all backends share.
//!
//! A hostile client or server does the handshake by hand over a [`Stream`], and then drives the device by hand; what it says
//! there is up to the backend's own folder in [`backends`](crate::backends).

mod handshake;
mod latencies;
mod stream;
mod under_attack;

pub use handshake::{
    decode_setup, encode_setup, hello, read_frame, shake_hands, terms, welcome_client,
    welcome_client_and,
};
pub(crate) use latencies::Latencies;
#[cfg(feature = "tls")]
pub(crate) use stream::poll_in;
pub use stream::{Clock, RawConnection, RawListener, RealClock, Stream};
pub(crate) use under_attack::{
    LIMIT, SLOT, assert_honest_clients_served, assert_nothing_stays_behind,
    assert_served_after_message_limit, assert_served_after_stall_limit,
    assert_served_before_stall_limit, serve, setup,
};
