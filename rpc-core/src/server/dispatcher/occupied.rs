//! Which transports of a thread have clients: only those are polled in each turn.

use crate::time::Instant;

/// The others are looked at once in so long, and before the thread sleeps: for new clients, and for what only a poll finds,
/// such as a device that is lost. Of a thread that is busy it takes less than one turn in a hundred.
const BETWEEN_LOOKS_NS: u64 = 100_000;

/// Which transports of one thread are polled.
#[derive(Default)]
pub(super) struct Occupied {
    /// The numbers of those that had clients when all were looked at.
    polled: Vec<u32>,
    next_look: Instant,
}

impl Occupied {
    /// The next turn looks at all transports.
    pub(super) fn look_soon(&mut self) {
        self.next_look = Instant::ZERO;
    }

    /// Whether the turn that begins is to look at all transports.
    #[inline]
    pub(super) fn is_to_look(&self, now: Instant) -> bool {
        now >= self.next_look
    }

    /// Begins a look, which [notes](Self::note) the transports that are polled from then on.
    pub(super) fn begin_look(&mut self, now: Instant) {
        self.next_look = now.saturating_add_nanos(BETWEEN_LOOKS_NS);
        self.polled.clear();
    }

    /// This transport was looked at, and is to be polled in each turn.
    pub(super) fn note(&mut self, number: u32) {
        self.polled.push(number);
    }

    /// The transports that a turn polls which does not look at all, by number.
    #[inline]
    pub(super) fn polled(&self) -> &[u32] {
        &self.polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReserveError;
    use crate::metrics::{MethodTable, ThreadCounters};
    use crate::server::CancelPolicy;
    use crate::server::dispatcher::Dispatcher;
    use crate::server::executor::Executor;
    use crate::server::table::Table;
    use crate::server::turn::Turn;
    use crate::site::Site;
    use crate::support::loopback::Clock;
    use crate::support::service::{TEST, Test};
    use crate::time::{Instant, PollAt, Progress};
    use crate::transport::{CallToken, Replies, RequestSink, ServerTransport, WindDown};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Has no clients, and asks to be polled then.
    struct Empty {
        next: PollAt,
        polls: Arc<AtomicU32>,
    }

    impl ServerTransport for Empty {
        fn poll(&mut self, _now: Instant, _sink: &mut dyn RequestSink) -> Progress {
            self.polls.fetch_add(1, Ordering::Relaxed);
            Progress { next: self.next, ..Progress::IDLE }
        }

        fn replies(&mut self) -> &mut dyn Replies {
            self
        }

        fn flush(&mut self) {}

        fn arm(&mut self) -> bool {
            true
        }

        fn connections(&self) -> usize {
            0
        }

        fn wind_down(&mut self, _now: Instant, _step: WindDown) -> bool {
            true
        }
    }

    impl Replies for Empty {
        fn reserve(&mut self, _call: &CallToken, _len: usize) -> Result<&mut [u8], ReserveError> {
            Err(ReserveError::Closed)
        }

        fn post(&mut self, _call: CallToken, _len: usize) {}

        fn waiting_limit(&self) -> u64 {
            0
        }
    }

    /// A device whose queue is to be renewed at some moment has nobody who would poll it then otherwise.
    #[test]
    fn a_transport_without_clients_is_polled_at_the_moment_that_it_names() {
        let site = Site::driven(Arc::new(Clock::virtual_time()));
        let methods = Arc::new(MethodTable::new(&[&TEST]));
        let mut dispatcher = Dispatcher::new(
            vec![Box::new(Test::default())],
            Table::new(&[&TEST]).expect("distinct ids"),
            methods.unknown(),
            Turn::new(site.clone(), Arc::new(ThreadCounters::new(&methods)), None),
            Executor::new(1, CancelPolicy::default(), site),
            None,
        );
        let polls = [(); 3].map(|()| Arc::<AtomicU32>::default());
        let later = Instant::from_nanos(1_000);
        let next = [PollAt::OnEvent, PollAt::At(later), PollAt::OnEvent];
        let empty = |(next, polls): (PollAt, &Arc<AtomicU32>)| -> Box<dyn ServerTransport> {
            Box::new(Empty { next, polls: Arc::clone(polls) })
        };
        let mut transports: Vec<_> = next.into_iter().zip(&polls).map(empty).collect();
        for _ in 0..2 {
            assert_eq!(dispatcher.turn(Instant::ZERO, &mut transports).next, PollAt::At(later));
        }
        assert_eq!(polls.map(|polls| polls.load(Ordering::Relaxed)), [1, 2, 1]);
    }

    #[test]
    fn transports_without_clients_are_looked_at_now_and_then() {
        let mut occupied = Occupied::default();
        let at = |us: u64| Instant::from_nanos(us * 1000);
        let mut looks = Vec::new();
        for us in (0..400).step_by(40) {
            if occupied.is_to_look(at(us)) {
                looks.push(us);
                occupied.begin_look(at(us));
                occupied.note(1);
            }
            assert_eq!(occupied.polled(), [1]);
        }
        assert_eq!(looks, [0, 120, 240, 360]);
        assert!(!occupied.is_to_look(at(400)));
        occupied.look_soon();
        assert!(occupied.is_to_look(at(400)));
    }
}
