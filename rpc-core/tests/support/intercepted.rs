//! A transport whose polls a test sees: it may block in one, or panic.

use super::loopback::Loopback;
use farcall_core::Site;
use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    ClientLayer, ClientTransport, Dial, DialOptions, NewConnection, ReplySink,
};
use std::sync::Arc;

/// What a test does in each poll, before the transport polls.
pub type OnPoll = Arc<dyn Fn() + Send + Sync>;

/// Dials connections that call this in each poll.
#[derive(Clone)]
pub struct Intercepted {
    pub net: Loopback,
    pub on_poll: OnPoll,
}

impl Dial for Intercepted {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let NewConnection { transport, compatibility, connection } =
            self.net.dial(service, site, options)?;
        let transport = Box::new(Layer { inner: transport, on_poll: self.on_poll.clone() });
        Ok(NewConnection { transport, compatibility, connection })
    }
}

struct Layer {
    inner: Box<dyn ClientTransport>,
    on_poll: OnPoll,
}

impl ClientLayer for Layer {
    fn inner(&self) -> &dyn ClientTransport {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn ClientTransport {
        &mut *self.inner
    }

    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        (self.on_poll)();
        self.inner.poll(now, sink)
    }
}
