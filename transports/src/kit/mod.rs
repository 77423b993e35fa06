//! What backends are built from. Nothing here knows a backend.

pub(crate) mod accept_queue;
pub(crate) mod by_slot;
pub(crate) mod clusters;
pub(crate) mod completions;
pub(crate) mod counts;
pub(crate) mod device_channel;
pub(crate) mod fair_queue;
pub(crate) mod lending;
pub(crate) mod memory;
pub(crate) mod roster;
pub(crate) mod scratch;
mod send_queue;
pub(crate) mod sender;
pub(crate) mod setup;
pub(crate) mod shared_time;
mod tear_down;
pub(crate) mod wakers;
