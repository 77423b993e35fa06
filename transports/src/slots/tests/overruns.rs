//! Completion queues of a server thread that overrun, as an injector says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farcall_core::error::FailureKind;
use farcall_verbs::Device;
use farcall_verbs::faults::FaultInjector;

use super::pair::{BOUND, Caller, Host, limits};
use crate::contract::{Answer, Backend};

/// No queue.
const NONE: u32 = u32::MAX;

/// The queue that overruns next.
struct Overrun(AtomicU32);

impl FaultInjector for Overrun {
    fn overruns(&self, queue: u32) -> bool {
        self.0.compare_exchange(queue, NONE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Overrun {
    /// The server's queue of this number overruns, and the server notices.
    fn happen(&self, queue: u32, host: &mut Host) {
        self.0.store(queue, Ordering::SeqCst);
        host.run(&mut [], |_, _| self.0.load(Ordering::SeqCst) == NONE);
    }
}

/// A server whose completion queues can overrun.
fn host(backend: &'static dyn Backend, window: u32) -> (Arc<Overrun>, Host) {
    let overrun = Arc::new(Overrun(AtomicU32::new(NONE)));
    let device = Device::open("shm").unwrap().with_faults(overrun.clone());
    let clients = Device::open("shm").unwrap();
    (overrun, Host::on(&device, clients, backend, (limits(window, 256, 1 << 20), 100)))
}

/// The client learns that its connection is gone.
fn assert_lost(host: &mut Host, caller: &mut Caller) {
    if caller.heard.closed.is_empty() {
        // Without a liveness socket, a client that only waits does not notice on every device.
        caller.send(b"anyone?");
    }
    host.run(&mut [caller], |_, callers| !callers[0].heard.closed.is_empty());
    let why = &caller.heard.closed[0];
    assert!(matches!(why.kind, FailureKind::PeerGone | FailureKind::Goodbye), "{why:?}");
}

pub(crate) fn clients_come_to_a_new_queue_after_an_overrun(backend: &'static dyn Backend) {
    let (overrun, mut host) = host(backend, 4);
    for queue in 0..3 {
        let mut lost = [host.admit(), host.admit()];
        for caller in &mut lost {
            assert_eq!(host.call(caller, b"before"), b"before");
        }
        overrun.happen(queue, &mut host);
        assert_eq!(host.transport.connections(), 0);
        assert_eq!(host.handlers.disconnected.len(), 2 * (queue as usize + 1));
        lost.iter_mut().for_each(|caller| assert_lost(&mut host, caller));
        let mut caller = host.admit();
        assert_eq!(host.call(&mut caller, b"after"), b"after");
        drop(caller);
        host.run(&mut [], |host, _| host.transport.connections() == 0);
        host.handlers.disconnected.pop();
    }
}

pub(crate) fn a_client_on_its_way_to_a_queue_that_overruns_is_dropped(
    backend: &'static dyn Backend,
) {
    let (overrun, mut host) = host(backend, 4);
    let mut before = host.admit();
    host.call(&mut before, b"before");
    let (pending, accepted) = host.admit_unfinished();
    overrun.happen(0, &mut host);
    host.run(&mut [], |host, _| host.transport.connections() == 0);
    let terms = host.config.terms();
    let answer = Answer { terms: &terms, setup: &accepted.setup, timeout: BOUND };
    // Its queue pair may be gone already, or break with the first request.
    if let Ok(transport) = pending.finish(answer) {
        let mut late = Caller::new(transport);
        assert_lost(&mut host, &mut late);
    }
    let mut caller = host.admit();
    assert_eq!(host.call(&mut caller, b"after"), b"after");
}

/// One queue has not room for so many clients.
pub(crate) fn clients_of_other_queues_go_on_after_an_overrun(backend: &'static dyn Backend) {
    const CLIENTS: usize = 70;
    let (overrun, mut host) = host(backend, 4);
    let mut callers: Vec<_> = (0..CLIENTS).map(|_| host.admit()).collect();
    for caller in &mut callers {
        assert_eq!(host.call(caller, b"before"), b"before");
    }
    overrun.happen(0, &mut host);
    let left = host.transport.connections();
    assert!((1..CLIENTS).contains(&left), "{left} clients are left: they have several queues");
    let (gone, others) = callers.split_at_mut(CLIENTS - left);
    gone.iter_mut().for_each(|caller| assert_lost(&mut host, caller));
    for caller in others {
        assert_eq!(host.call(caller, b"after"), b"after");
    }
    assert_eq!(host.transport.connections(), left);
}
