//! What the backends whose calls have slots have in common: an end made by hand, and what it may try.

pub(crate) mod forge;
pub(crate) mod forge_pool;
pub(crate) mod hostile_clients;
pub(crate) mod hostile_servers;
pub(crate) mod hostile_swarm;
#[cfg(feature = "sim")]
pub(crate) mod racks;
pub(crate) mod tricklers;
