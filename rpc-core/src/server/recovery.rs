//! A server thread that panics starts again.
//!
//! Panics of handlers end their calls and nothing else. A panic anywhere else, in a transport or in a subscriber of the log, may have
//! left half-changed state behind. So the thread drops all of it, its clients too, and gets new transports. What stays is what
//! no panic has interrupted: the services and the counters. Other threads go on.

use super::CancelPolicy;
use super::context::CallContext;
use super::executor::Executor;
use super::panics;
use super::quota::{Accounts, SharedAccounts};
use super::thread::ServerThread;
use super::turn::{Extras, Turn};
use crate::metrics::{Connections, ThreadCounters};
use crate::panics::{Panic, contain};
use crate::time::Instant;
use crate::transport::{Renewal, ServerTransport};
use crate::wire::Status;
use std::sync::Arc;

/// A thread starts again at once after its first panic, and then at most so often. Also how often it asks for a transport that it
/// cannot have.
const PAUSE_NS: u64 = 100_000_000;

/// What a thread needs to start again.
pub(super) struct Recovery {
    /// One per address.
    pub(super) renewals: Vec<Option<Arc<dyn Renewal>>>,
    pub(super) async_calls: usize,
    pub(super) cancel: CancelPolicy,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) connections: Arc<Connections>,
    pub(super) accounts: Option<Arc<SharedAccounts>>,
    /// The thread does not start again before.
    pub(super) not_before: Instant,
}

impl ServerThread {
    /// Starts again after a panic, as soon as all addresses have transports again. Returns whether it has; otherwise the server ends, or
    /// the transports are not made twice.
    pub(super) fn recover(&mut self, panic: &Panic) -> bool {
        self.pause();
        self.drop_broken();
        let (thread, panic) = (self.index, panics::describe(panic));
        tracing::error!(thread, panic, "a server thread panicked; its clients are disconnected");
        while self.control.draining().is_none() {
            let Some(renewals) = self.recovery.renewals.iter().cloned().collect::<Option<Vec<_>>>()
            else {
                break;
            };
            let renewed = renewals.iter().map(|renewal| renewal.renew(self.index, &self.site));
            match renewed.collect::<Result<Vec<_>, _>>() {
                Ok(transports) => {
                    self.transports = transports;
                    self.replacements.forget_later();
                    self.dispatcher.look_at_all_soon();
                    self.dispatcher
                        .turn
                        .extras
                        .set(Extras::LOST, self.replacements.are_under_way());
                    tracing::info!(thread, "a server thread serves again");
                    return true;
                }
                Err(error) => tracing::error!(thread, %error, "a server thread cannot serve"),
            }
            self.pause();
        }
        false
    }

    /// Waits until the thread may start again.
    fn pause(&mut self) {
        let until = self.recovery.not_before;
        while self.site.now() < until && self.control.draining().is_none() {
            self.site.fall_asleep().sleep(Some(until));
        }
        self.recovery.not_before = self.site.now().saturating_add_nanos(PAUSE_NS);
    }

    /// Drops everything that may be half changed.
    fn drop_broken(&mut self) {
        CallContext::leave();
        let ServerThread { dispatcher, transports, recovery, site, .. } = self;
        let Recovery { async_calls, cancel, counters, accounts, connections, .. } = recovery;
        contain("answering calls of other threads", || dispatcher.end_taken(transports));
        transports.drain(..).for_each(drop_transport);
        let accounts = accounts.clone().map(Accounts::new);
        let turn = Turn::new(site.clone(), Arc::clone(counters), accounts)
            .showing(Arc::clone(connections));
        let executor = Executor::new(*async_calls, *cancel, site.clone());
        let broken = dispatcher.renew(turn, executor);
        contain("dropping handlers", || drop(broken));
        counters.end_all(Status::HandlerPanicked);
        self.control.set_connections(self.index, 0);
    }
}

fn drop_transport(transport: Box<dyn ServerTransport>) {
    contain("disconnecting clients", || drop(transport));
}
