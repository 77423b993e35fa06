//! The places of one server thread's clients: which are taken, by clients from where, and who makes room for others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use farcall_core::time::Instant;

use super::accept_queue::ClientId;
use crate::contract::{CountsBySource, SetupError, Source};

/// How long a client may take until its first call before it makes room for others: programs connect when they start, and some
/// have nothing to call at first.
const FIRST_CALL: Duration = Duration::from_secs(30);

/// The same for one of a source with more clients than the one that wants room has.
const FIRST_CALL_OF_MANY: Duration = Duration::from_secs(1);

/// Most clients that a server thread is asked to look at together: looking at one takes some ten nanoseconds.
const CANDIDATES: usize = 64;

/// Which client numbers are free, and who has the others.
#[derive(Debug)]
pub(super) struct Places {
    max_clients: usize,
    /// By number. Its memory is freed as clients leave: there may have been thousands.
    taken: BTreeMap<u32, Place>,
    free: Vec<u32>,
    /// The least number that no client has had.
    next: u32,
    generation: u32,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    source: Source,
    since: Instant,
    /// It was found to have called.
    has_called: bool,
}

impl Places {
    pub(super) fn new(max_clients: usize) -> Places {
        Places { max_clients, taken: BTreeMap::new(), free: Vec::new(), next: 0, generation: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.taken.len() < self.max_clients
    }

    /// A free number, in its next generation, for a client from that source.
    pub(super) fn take(&mut self, source: Source, now: Instant) -> Result<ClientId, SetupError> {
        if !self.has_room() {
            let in_use = self.taken.len();
            return Err(SetupError::Full(format!(
                "the server thread has {in_use} clients, the most that it may have"
            )));
        }
        self.generation = self.generation.wrapping_add(1);
        let number = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let generation = self.generation;
        let place = Place { generation, source, since: now, has_called: false };
        self.taken.insert(number, place);
        Ok(ClientId { number, generation })
    }

    /// The client is gone; another may have its number.
    pub(super) fn give_back(&mut self, number: u32) {
        if self.taken.remove(&number).is_some() {
            self.free.push(number);
        }
    }

    /// The client has called: it makes room for nobody.
    pub(super) fn set_called(&mut self, id: ClientId) {
        if let Some(place) = self.taken.get_mut(&id.number)
            && place.generation == id.generation
        {
            place.has_called = true;
        }
    }

    /// Who makes room for a client from this source, unless they have called: first those of the source with most clients,
    /// the oldest of them first.
    pub(super) fn candidates(&self, source: Source, now: Instant) -> Vec<ClientId> {
        let counts: CountsBySource = self.taken.values().map(|place| place.source).collect();
        let own = counts.of(source);
        let must_move = |place: &Place| {
            // With only one client more, the two sources would take turns in throwing each other out.
            let has_more = counts.of(place.source) > own + 1;
            let patience = if has_more { FIRST_CALL_OF_MANY } else { FIRST_CALL };
            !place.has_called && now >= place.since + patience
        };
        let places = self.taken.iter().filter(|(_, place)| must_move(place));
        let mut found: Vec<_> = places
            .map(|(&number, place)| {
                let id = ClientId { number, generation: place.generation };
                ((Reverse(counts.of(place.source)), place.since), id)
            })
            .collect();
        found.sort_unstable_by_key(|(order, _)| *order);
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: Source = Source::Process(1);
    const OTHER: Source = Source::Process(2);

    fn at(time: Duration) -> Instant {
        Instant::ZERO + time
    }

    fn numbers(ids: &[ClientId]) -> Vec<u32> {
        ids.iter().map(|id| id.number).collect()
    }

    /// Places for four clients of the crowd, which came a millisecond after each other.
    fn crowded() -> Places {
        let mut places = Places::new(4);
        for age in 0..4 {
            places.take(CROWD, at(Duration::from_millis(age))).unwrap();
        }
        assert!(!places.has_room());
        places
    }

    #[test]
    fn a_number_that_comes_back_is_another_client() {
        let mut places = Places::new(2);
        let first = places.take(CROWD, Instant::ZERO).unwrap();
        let second = places.take(CROWD, Instant::ZERO).unwrap();
        assert_ne!(first.number, second.number);
        let full = places.take(OTHER, Instant::ZERO).unwrap_err().to_string();
        assert!(full.contains("2 clients"), "{full}");
        places.give_back(first.number);
        places.give_back(first.number);
        let third = places.take(CROWD, Instant::ZERO).unwrap();
        assert_eq!(third.number, first.number);
        assert_ne!(third.generation, first.generation);
        assert!(!places.has_room());
    }

    #[test]
    fn the_oldest_clients_that_have_not_called_make_room() {
        let places = crowded();
        let later = FIRST_CALL + Duration::from_millis(1);
        assert_eq!(numbers(&places.candidates(CROWD, at(later))), [0, 1]);
        assert!(places.candidates(CROWD, at(FIRST_CALL_OF_MANY * 2)).is_empty());
    }

    #[test]
    fn a_source_with_many_clients_makes_room_early() {
        let places = crowded();
        let later = FIRST_CALL_OF_MANY + Duration::from_millis(1);
        assert_eq!(numbers(&places.candidates(OTHER, at(later))), [0, 1]);
        assert!(places.candidates(OTHER, at(FIRST_CALL_OF_MANY / 2)).is_empty());
    }

    #[test]
    fn the_source_with_most_clients_is_first() {
        let mut places = Places::new(4);
        for source in [OTHER, CROWD, CROWD, CROWD] {
            places.take(source, Instant::ZERO).unwrap();
        }
        let found = places.candidates(Source::Unknown, at(FIRST_CALL));
        assert_eq!(numbers(&found), [1, 2, 3, 0]);
    }

    #[test]
    fn sources_with_as_many_clients_do_not_throw_each_other_out() {
        let mut places = Places::new(3);
        for source in [CROWD, CROWD, OTHER] {
            places.take(source, Instant::ZERO).unwrap();
        }
        assert!(places.candidates(OTHER, at(FIRST_CALL_OF_MANY * 2)).is_empty());
    }

    #[test]
    fn a_client_that_has_called_stays() {
        let mut places = crowded();
        let first = places.candidates(OTHER, at(FIRST_CALL))[0];
        places.set_called(first);
        assert_eq!(places.candidates(OTHER, at(FIRST_CALL))[0].number, 1);
        // Another client of that number has not.
        places.give_back(first.number);
        let next = places.take(CROWD, Instant::ZERO).unwrap();
        places.set_called(first);
        assert!(places.candidates(OTHER, at(FIRST_CALL)).contains(&next));
    }
}
