//! Which transports of a thread have clients: only those are polled in each turn.

use crate::transport::ServerTransport;

/// The others are looked at once in so many turns, and before the thread sleeps: for new clients, and for what only a poll finds,
/// such as a device that is lost.
const TURNS_PER_LOOK: u32 = 64;

/// The transports of one thread that are polled.
#[derive(Default)]
pub(super) struct Occupied {
    numbers: Vec<u32>,
    turns_until_look: u32,
}

impl Occupied {
    /// The next turn looks at all transports.
    pub(super) fn look_soon(&mut self) {
        self.turns_until_look = 0;
    }

    /// A turn begins. Whether it looks at all transports.
    #[inline]
    pub(super) fn begin_turn(&mut self) -> bool {
        match self.turns_until_look.checked_sub(1) {
            Some(left) => {
                self.turns_until_look = left;
                false
            }
            None => true,
        }
    }

    /// All were looked at: from now on those are polled that have clients.
    pub(super) fn note(&mut self, transports: &[Box<dyn ServerTransport>]) {
        self.turns_until_look = TURNS_PER_LOOK - 1;
        self.numbers.clear();
        let numbered = (0..).zip(transports);
        self.numbers.extend(numbered.filter(|(_, it)| !it.is_vacant()).map(|(number, _)| number));
    }

    /// Their numbers.
    #[inline]
    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReserveError;
    use crate::time::{Instant, Progress};
    use crate::transport::{CallToken, Replies, RequestSink, WindDown};
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::Arc;

    /// With so many connections.
    struct Counted(Arc<AtomicUsize>);

    impl ServerTransport for Counted {
        fn poll(&mut self, _: Instant, _: &mut dyn RequestSink) -> Progress {
            Progress::IDLE
        }

        fn replies(&mut self) -> &mut dyn Replies {
            self
        }

        fn flush(&mut self) {}

        fn arm(&mut self) -> bool {
            true
        }

        fn connections(&self) -> usize {
            self.0.load(Relaxed)
        }

        fn wind_down(&mut self, _: Instant, _: WindDown) -> bool {
            true
        }
    }

    impl Replies for Counted {
        fn reserve(&mut self, _: &CallToken, _: usize) -> Result<&mut [u8], ReserveError> {
            Err(ReserveError::Closed)
        }

        fn post(&mut self, _: CallToken, _: usize) {}

        fn waiting_limit(&self) -> u64 {
            0
        }
    }

    #[test]
    fn transports_without_clients_are_looked_at_once_in_many_turns() {
        let clients = [0, 3, 0].map(|count| Arc::new(AtomicUsize::new(count)));
        let transports = clients.clone().map(|count| Box::new(Counted(count)) as _);
        let mut occupied = Occupied::default();
        assert!(occupied.begin_turn(), "nothing is known at first");
        occupied.note(&transports);
        assert_eq!(occupied.numbers(), [1]);
        clients[2].store(1, Relaxed);
        assert_eq!((0..200).find(|_| occupied.begin_turn()), Some(TURNS_PER_LOOK as usize - 1));
        occupied.note(&transports);
        assert_eq!(occupied.numbers(), [1, 2]);
        occupied.look_soon();
        assert!(occupied.begin_turn());
    }
}
