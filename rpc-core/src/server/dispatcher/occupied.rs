//! Which transports of a thread have clients: only those are polled in each turn.

/// The others are looked at once in so many turns, and before the thread sleeps: for new clients, and for what only a poll finds,
/// such as a device that is lost.
const TURNS_PER_LOOK: u32 = 64;

/// Which transports of one thread are polled.
#[derive(Default)]
pub(super) struct Occupied {
    /// By the number of the transport: it had no clients when it was looked at.
    vacant: Vec<bool>,
    turns_until_look: u32,
}

impl Occupied {
    /// The next turn looks at all transports.
    pub(super) fn look_soon(&mut self) {
        self.turns_until_look = 0;
    }

    /// A turn begins. Whether it looks at all transports, and [notes](Self::note) how each is.
    #[inline]
    pub(super) fn begin_turn(&mut self) -> bool {
        let looks = self.turns_until_look == 0;
        self.turns_until_look = if looks { TURNS_PER_LOOK } else { self.turns_until_look } - 1;
        looks
    }

    /// This transport was looked at.
    pub(super) fn note(&mut self, number: u32, is_vacant: bool) {
        let number = number as usize;
        if self.vacant.len() <= number {
            self.vacant.resize(number + 1, false);
        }
        self.vacant[number] = is_vacant;
    }

    /// Whether a turn that does not look at all polls this transport: also one that has come since.
    #[inline]
    pub(super) fn has(&self, number: u32) -> bool {
        self.vacant.get(number as usize) != Some(&true)
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
    fn transports_without_clients_are_looked_at_once_in_many_turns() {
        let mut occupied = Occupied::default();
        let polled = |occupied: &Occupied| [0, 1, 2].map(|number| occupied.has(number));
        assert!(occupied.begin_turn(), "nothing is known at first");
        occupied.note(0, true);
        occupied.note(2, true);
        assert_eq!(polled(&occupied), [false, true, false]);
        assert!(occupied.has(3), "it has come since");
        assert_eq!((0..200).find(|_| occupied.begin_turn()), Some(TURNS_PER_LOOK as usize - 1));
        occupied.note(2, false);
        assert_eq!(polled(&occupied), [false, true, true]);
        occupied.look_soon();
        assert!(occupied.begin_turn());
    }
}
