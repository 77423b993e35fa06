//! A channel on which a poller sleeps until an armed completion queue has a completion.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io;

use super::context::Context;
use super::events::set_nonblocking;
use super::status;
use super::sys::{Handle, ibv_comp_channel};
use crate::VerbsError;
use crate::event_fd::{new_event, ring};

/// A completion channel of libibverbs and an event of our own, in one set to sleep on.
#[derive(Debug)]
pub(crate) struct Channel {
    raw: Handle<ibv_comp_channel>,
    epoll: OwnedFd,
    wake: OwnedFd,
    context: Arc<Context>,
}

/// The data of an event in the set.
const COMPLETION: u64 = 0;
const WAKE: u64 = 1;

impl Channel {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Arc<Channel>, VerbsError> {
        let failed = status::resource("completion channel");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
        let wake = new_event().map_err(&failed)?;
        // SAFETY: the context is open.
        let raw = Handle::new(unsafe { (context.library.create_comp_channel)(context.raw.raw()) });
        let raw = raw.ok_or_else(|| failed(status::last()))?;
        let channel = Arc::new(Channel { raw, epoll, wake, context: Arc::clone(context) });
        set_nonblocking(channel.completions()).map_err(&failed)?;
        let (level, edge) = (epoll::EventFlags::IN, epoll::EventFlags::IN | epoll::EventFlags::ET);
        let data = epoll::EventData::new_u64;
        epoll::add(&channel.epoll, channel.completions(), data(COMPLETION), level)
            .and_then(|()| epoll::add(&channel.epoll, &channel.wake, data(WAKE), edge))
            .map_err(&failed)?;
        Ok(channel)
    }

    fn completions(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw.raw()).fd) }
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.raw()
    }

    pub(super) fn belongs_to(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// Waits up to `timeout`. Returns whether an event happened.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout)
            .unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; 2];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
            Ok(count) => count,
            Err(io::Errno::INTR) => return Ok(true), // A signal: let the caller check its state.
            Err(error) => return Err(error),
        };
        if events[..count].iter().any(|event| event.data.u64() == COMPLETION) {
            self.take_events();
        }
        Ok(count > 0)
    }

    /// Takes and acknowledges the kernel's events. A queue with unacknowledged events could never be destroyed.
    fn take_events(&self) {
        let library = self.context.library;
        loop {
            let (mut queue, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel lives, and its descriptor does not block.
            if unsafe { (library.get_cq_event)(self.raw.raw(), &mut queue, &mut context) } != 0 {
                return;
            }
            let state = self.context.events.registry.queue(queue.addr());
            // SAFETY: the queue cannot have been destroyed before its event is acknowledged.
            unsafe { (library.ack_cq_events)(queue, 1) };
            state.into_iter().for_each(|state| state.call_waker());
        }
    }

    pub(crate) fn wake(&self) {
        ring(self.wake.as_fd());
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.epoll, self.completions());
        // SAFETY: completion queues keep their channel alive, so none is left.
        unsafe { (self.context.library.destroy_comp_channel)(self.raw.raw()) };
    }
}
