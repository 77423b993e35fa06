//! Asynchronous events, which concern no single work request. A thread of the context waits for them and
//! moves the affected queue pairs to the error state.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io;

use super::completion_queue::{CqState, attention};
use super::queue_pair::QpShared;
use super::sys::{
    Handle, Library, Zeroed, ibv_async_event, ibv_context, ibv_event_type as kind, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};
use crate::event_fd::{new_event, ring};
use crate::{QpState, QpType};

/// The possible targets of events: each live queue pair and completion queue of a context, by the address
/// of its handle. Events are handled under this lock, so that no handle is destroyed meanwhile.
#[derive(Debug)]
pub(super) struct Registry {
    library: &'static Library,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    pairs: HashMap<usize, RegisteredPair>,
    queues: HashMap<usize, Arc<CqState>>,
    /// The device is gone: queue pairs and queues added from now on are broken from the start.
    lost: bool,
}

#[derive(Debug)]
struct RegisteredPair {
    raw: Handle<ibv_qp>,
    shared: Arc<QpShared>,
    /// The completion queues that it uses.
    queues: [usize; 2],
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_pair(&self, raw: &Handle<ibv_qp>, shared: &Arc<QpShared>, cqs: [usize; 2]) {
        let Some(copy) = Handle::new(raw.raw()) else { return };
        let pair = RegisteredPair { raw: copy, shared: Arc::clone(shared), queues: cqs };
        self.lock().pairs.insert(raw.address(), pair);
    }

    /// Must be called before the queue pair is destroyed.
    pub(super) fn remove_pair(&self, address: usize) {
        let removed = self.lock().pairs.remove(&address);
        drop(removed); // Drop outside the lock.
    }

    pub(super) fn add_queue(&self, address: usize, state: &Arc<CqState>) {
        let mut tables = self.lock();
        if tables.lost {
            state.notice(attention::LOST);
        }
        tables.queues.insert(address, Arc::clone(state));
    }

    /// The completion queue with this address.
    pub(super) fn queue(&self, address: usize) -> Option<Arc<CqState>> {
        self.lock().queues.get(&address).cloned()
    }

    /// Must be called before the completion queue is destroyed.
    pub(super) fn remove_queue(&self, address: usize) {
        let removed = self.lock().queues.remove(&address);
        drop(removed);
    }

    /// Moves a queue pair to the error state. If it is there already, this flushes what has been posted since:
    /// some providers post receives without telling the kernel, which would then not flush them.
    #[cold]
    pub(super) fn break_pair(&self, address: usize) {
        if let Some(pair) = self.lock().pairs.get(&address) {
            self.break_registered(pair);
        }
    }

    fn break_registered(&self, pair: &RegisteredPair) {
        pair.shared.set_state(QpState::Error);
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is registered, so not destroyed yet, and cannot be under the lock.
        let code = unsafe { (self.library.modify_qp)(pair.raw.raw(), &mut attributes, mask) };
        if code != 0 {
            tracing::warn!(qp = pair.shared.number, code, "a queue pair could not be broken");
        }
    }

    fn break_all(&self, tables: &Tables, whose: impl Fn(&RegisteredPair) -> bool, why: &str) {
        for pair in tables.pairs.values().filter(|pair| whose(pair)) {
            tracing::warn!(qp = pair.shared.number, why, "a queue pair is broken");
            self.break_registered(pair);
        }
    }

    /// Handles an event. Must not drop anything here whose drop takes a lock or waits for this event.
    fn handle(&self, event: Event, port: u8) {
        let mut tables = self.lock();
        match event {
            Event::QueueOverrun(address) => {
                if let Some(queue) = tables.queues.get(&address) {
                    queue.notice(attention::OVERRUN);
                }
                self.break_all(&tables, |pair| pair.queues.contains(&address), "overrun");
            }
            Event::PairBroken(address) => {
                if let Some(pair) = tables.pairs.get(&address) {
                    self.break_registered(pair);
                }
            }
            Event::PortDown(number) if number == port => {
                // Datagrams are merely lost: they have no connection that could break.
                let connected = |pair: &RegisteredPair| {
                    pair.shared.ty != QpType::Ud && pair.shared.state() != QpState::Init
                };
                self.break_all(&tables, connected, "its port is down");
            }
            Event::DeviceLost => {
                tables.lost = true;
                tables.queues.values().for_each(|queue| queue.notice(attention::LOST));
                self.break_all(&tables, |_| true, "the device has failed or was removed");
            }
            Event::PortDown(_) | Event::Other => {}
        }
    }
}

/// An asynchronous event, reduced to what matters here. Addresses are those of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    QueueOverrun(usize),
    PairBroken(usize),
    PortDown(u8),
    DeviceLost,
    Other,
}

/// Converts an event from its number and what it refers to.
fn parse_event(number: u32, address: usize, port: i32) -> Event {
    let is = |event: kind| number == event as u32;
    if is(kind::IBV_EVENT_CQ_ERR) {
        Event::QueueOverrun(address)
    } else if is(kind::IBV_EVENT_QP_FATAL)
        || is(kind::IBV_EVENT_QP_REQ_ERR)
        || is(kind::IBV_EVENT_QP_ACCESS_ERR)
        || is(kind::IBV_EVENT_PATH_MIG_ERR)
    {
        Event::PairBroken(address)
    } else if is(kind::IBV_EVENT_PORT_ERR) {
        Event::PortDown(port as u8)
    } else if is(kind::IBV_EVENT_DEVICE_FATAL) {
        Event::DeviceLost
    } else {
        Event::Other
    }
}

/// The thread that waits for a context's events.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) registry: Arc<Registry>,
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Stop {
    told: AtomicBool,
    event: OwnedFd,
}

impl Events {
    pub(super) fn start(
        library: &'static Library,
        context: &Handle<ibv_context>,
        port: u8,
    ) -> io::Result<Events> {
        let registry = Arc::new(Registry { library, tables: Mutex::default() });
        let stop = Arc::new(Stop { told: AtomicBool::new(false), event: new_event()? });
        let context = Handle::new(context.raw()).ok_or(io::Errno::INVAL)?;
        let (ours, its_stop) = (Arc::clone(&registry), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("farcall-ibv".into())
            .spawn(move || run(&context, &ours, &its_stop, port))
            .map_err(|error| io::Errno::from_io_error(&error).unwrap_or(io::Errno::AGAIN))?;
        Ok(Events { registry, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread, before the context is closed.
    pub(super) fn stop(&self) {
        self.stop.told.store(true, Ordering::Release);
        ring(self.stop.event.as_fd());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(context: &Handle<ibv_context>, registry: &Registry, stop: &Stop, port: u8) {
    // SAFETY: the context stays open until `stop` was told and this thread has ended.
    let fd = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
    if set_nonblocking(fd).is_err() {
        return; // Errors still arrive as completions; only those without one go unseen.
    }
    loop {
        let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&stop.event, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(io::Errno::INTR) => {}
            Err(_) => return,
        }
        if stop.told.load(Ordering::Acquire) {
            return;
        }
        let broken = fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        let mut found = false;
        while take(context, registry, port) {
            found = true;
        }
        if broken && !found {
            registry.handle(Event::DeviceLost, port);
            return;
        }
    }
}

/// Takes one event, if there is one.
fn take(context: &Handle<ibv_context>, registry: &Registry, port: u8) -> bool {
    let library = registry.library;
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open, and the structure ours.
    if unsafe { (library.get_async_event)(context.raw(), event.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: filled by the call. The number is read as one: newer kernels have events that the
    // enumeration of the binding lacks. Of the union, pointer and port number are both plain bytes.
    let (number, address, port_number) = unsafe {
        let event = event.as_ptr();
        let number = (&raw const (*event).event_type).cast::<u32>().read();
        ((number), (*event).element.qp.addr(), (*event).element.port_num)
    };
    registry.handle(parse_event(number, address, port_number), port);
    // SAFETY: taken above and acknowledged once. Until here, its target cannot be destroyed.
    unsafe { (library.ack_async_event)(event.as_mut_ptr()) };
    true
}

/// Makes libibverbs' reads from this descriptor nonblocking.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_mean_what_the_specification_says() {
        assert_eq!(parse_event(0, 7, 0), Event::QueueOverrun(7));
        for number in [1, 2, 3, 7] {
            assert_eq!(parse_event(number, 7, 0), Event::PairBroken(7));
        }
        assert_eq!(parse_event(8, 0, 0), Event::DeviceLost);
        assert_eq!(parse_event(10, 0, 2), Event::PortDown(2));
        for number in [4, 5, 6, 9, 11, 15, 16, 18, 19, 77] {
            assert_eq!(parse_event(number, 7, 1), Event::Other);
        }
    }
}
