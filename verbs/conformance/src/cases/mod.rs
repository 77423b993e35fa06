//! The cases, grouped by what they are about. [`crate::list`] names them all.

pub(crate) mod atomics;
pub(crate) mod completions;
pub(crate) mod datagram;
pub(crate) mod death;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod lifetime;
pub(crate) mod limits;
pub(crate) mod many;
pub(crate) mod model;
pub(crate) mod one_sided;
pub(crate) mod operations;
pub(crate) mod ordering;
pub(crate) mod persistence;
pub(crate) mod protection;
pub(crate) mod receiving;
pub(crate) mod shared_receive;
pub(crate) mod watching;
pub(crate) mod window_lifetime;
pub(crate) mod windows;
