//! The poll-mode client: one thread owns the connection and drives it.

mod calls;
mod connecting;
mod connection;
mod options;
mod pending;

pub use connecting::PollConnecting;
pub use connection::Connection;
pub(crate) use connection::unencodable;
pub use options::ConnectionOptions;
pub use pending::PendingCall;

#[cfg(test)]
mod tests;
