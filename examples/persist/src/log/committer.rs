//! The thread that leads for futures, which must not block. It is started for the first of them.

use std::sync::Arc;
use std::thread;

use super::Shared;
use super::state::State;
use crate::error::Error;

impl Shared {
    /// Has the thread lead, unless there is a leader: that one calls it when it is done.
    pub(super) fn start_committer(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if state.committer.is_none() {
            let shared = self.clone();
            let thread = thread::Builder::new().name("persist-commit".to_owned());
            let started = thread.spawn(move || shared.run_committer());
            state.committer = Some(started.map_err(|why| Error::io("start", "a thread", why))?);
        }
        if !state.leading {
            self.futures.notify_one();
        }
        Ok(())
    }

    fn run_committer(&self) {
        let mut state = self.lock();
        while !state.closed {
            state = if state.leading {
                self.wait(&self.futures, state)
            } else if state.take_wants_segment() {
                // Those who wait for it are told why it failed, if it did.
                self.next_segment(state).unwrap_or_else(|_| self.lock())
            } else if state.has_room_wakers() || state.has_wakers() && state.has_work() {
                self.lead(state)
            } else {
                self.wait(&self.futures, state)
            };
        }
    }
}
