//! What keeps each client in its own place: a memory window of its own, bound to the place while it has one.
//!
//! The pool itself gives nobody access. A window's key works on the queue pair of one client only, and only until the window is
//! invalidated, which is when that client has left and before another gets the place. Neither end says the key: it is the next of
//! the window's with each place.

use farcall_verbs::{
    Access, Capabilities, MemoryWindow, Operation, ProtectionDomain, QpType, SharedSlice,
    WorkRequest,
};

use crate::contract::SetupError;
use crate::kit::sender::Sender;

/// Whether windows keep clients apart on this device. On shared memory nothing does: a process that may write anywhere in the
/// pool maps all of it.
pub(super) fn guards(caps: &Capabilities) -> bool {
    let has_windows = caps.max_mw > 0
        && caps.window_bounds
        && caps.supports(QpType::Rc, Operation::BindWindow)
        && caps.supports(QpType::Rc, Operation::InvalidateWindow);
    has_windows && caps.completion_payload == 0
}

/// The window of one client.
#[derive(Debug)]
pub(super) struct Guard {
    window: MemoryWindow,
    /// The number of the work request that closes it, while that is under way.
    closing: Option<u32>,
}

impl Guard {
    pub(super) fn new(pd: &ProtectionDomain) -> Result<Guard, SetupError> {
        Ok(Guard { window: pd.alloc_memory_window()?, closing: None })
    }

    /// The key to the place for which it is opened next.
    pub(super) fn next_rkey(&self) -> u32 {
        self.window.next_rkey()
    }

    /// Lets the client into this place, before what is posted next. `false`: there is no room for that now.
    pub(super) fn open(&mut self, sender: &mut Sender, place: SharedSlice) -> bool {
        debug_assert!(self.closing.is_none() && !self.window.is_bound());
        // And for the message that tells the client.
        if sender.room() < 2 {
            return false;
        }
        let bind = WorkRequest::bind_window(&mut self.window, place, Access::REMOTE_WRITE);
        sender.post(bind, false)
    }

    /// Keeps the client out from now on. `true`: nothing of it lands any more. Otherwise to be tried again.
    pub(super) fn close(&mut self, sender: &mut Sender) -> bool {
        match self.closing {
            Some(number) => {
                let is_closed = sender.has_retired(number);
                self.closing.take_if(|_| is_closed);
                is_closed
            }
            None => {
                if sender.room() > 0 {
                    sender.post(WorkRequest::invalidate_window(&mut self.window), true);
                    self.closing = Some(sender.posted());
                    sender.ring();
                }
                false
            }
        }
    }
}
