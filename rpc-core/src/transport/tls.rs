//! TLS settings on their way from a program to the transport that knows what they say. Nothing here does.

use core::any::Any;
use core::fmt;
use std::sync::Arc;

/// Settings of a client for TLS: made from `farcall::tls::ClientTls`.
#[derive(Clone)]
pub struct DialTls(Arc<dyn Any + Send + Sync>);

impl DialTls {
    /// These settings, for a transport that knows their type.
    #[doc(hidden)]
    pub fn new<T: Any + Send + Sync>(settings: T) -> DialTls {
        DialTls(Arc::new(settings))
    }

    /// The settings, if they are of this type.
    #[doc(hidden)]
    pub fn settings<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for DialTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialTls").finish_non_exhaustive()
    }
}

/// Settings of a server for TLS: made from `farcall::tls::ServerTls`.
#[derive(Clone)]
pub struct BindTls {
    settings: Arc<dyn Any + Send + Sync>,
    identifies_clients: bool,
}

impl BindTls {
    /// These settings, for a transport that knows their type. `identifies_clients`: each client shows a certificate.
    #[doc(hidden)]
    pub fn new<T: Any + Send + Sync>(settings: T, identifies_clients: bool) -> BindTls {
        BindTls { settings: Arc::new(settings), identifies_clients }
    }

    /// The settings, if they are of this type.
    #[doc(hidden)]
    pub fn settings<T: Any>(&self) -> Option<&T> {
        self.settings.downcast_ref()
    }

    /// Whether each client shows a certificate, which says who it is.
    pub(crate) fn identifies_clients(&self) -> bool {
        self.identifies_clients
    }
}

impl fmt::Debug for BindTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BindTls")
            .field("identifies_clients", &self.identifies_clients)
            .finish_non_exhaustive()
    }
}
