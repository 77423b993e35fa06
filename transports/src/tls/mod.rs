//! TLS 1.3 on the socket of a handshake, with rustls (feature `tls`).
//!
//! Both ends shake hands within TLS, so what they say of themselves there (queue pairs, keys, epochs) comes from the ends of
//! these certificates. What happens to the socket after the handshake depends on the backend:
//!
//! - A backend on a stream (`tcp`) takes it over, and the calls travel within TLS too.
//! - For a backend on a device it is the liveness socket from then on. It carries no more bytes, so the session is dropped.
//!   What the device moves is not encrypted.
//!
//! [`ServerTls`] and [`ClientTls`] are what programs give to `ServerBuilder::tls` and to `tls` of a client that connects.
//! A `Session` is one connection's state, without a socket: the bytes go in and out by hand, so each wait is bounded by the
//! deadline of the handshake. Without the feature there are no settings, and a `Session` is a type without values.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod failure;
#[cfg(feature = "tls")]
mod pem;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod settings;
#[cfg(feature = "tls")]
mod stream;
#[cfg(all(test, feature = "tls"))]
mod tests;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Session, client_session, knows, server_session};
#[cfg(feature = "tls")]
pub use pem::{Authorities, Certificate, TlsError};
#[cfg(feature = "tls")]
pub(crate) use session::{Session, client_session, knows, server_session};
#[cfg(feature = "tls")]
pub use settings::{ClientTls, ServerTls};

/// Why TLS has failed, and the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failure(pub(crate) String);

/// The answer to a TLS peer from an end without TLS: the fatal alert `unexpected_message` (RFC 8446, section 6).
pub(crate) const NOT_SPOKEN: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0a];
