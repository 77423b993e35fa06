//! The built-in service by which every server of [`Server::builder`](crate::Server::builder) says what it has refused so far.
//! `farcall info ADDRESS` shows it. Like [pings](crate::ping), it is an ordinary service with a name of its own: who may
//! call may ask, unless the server's builder forbids it with [`remote_info`](crate::ServerBuilder::remote_info).

use std::sync::{Arc, OnceLock};

use crate::Metrics;

/// Says what the server has refused.
#[crate::service(name = "farcall.info", crate = crate)]
pub trait Info {
    /// How often the server has refused a peer or a message, for each [reason](crate::RefusalReason) by its name. `None`: it
    /// does not say.
    #[rpc(idempotent)]
    fn refusals(&self) -> Option<Vec<(String, u64)>>;
}

/// The implementation of the service; its cell is empty if the server does not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Informer(pub(crate) Arc<OnceLock<Metrics>>);

impl Info for Informer {
    fn refusals(&self) -> Option<Vec<(String, u64)>> {
        let metrics = self.0.get()?;
        Some(metrics.refusals().map(|(reason, count)| (reason.name().to_owned(), count)).collect())
    }
}
