//! The places of one server thread's clients: which are taken, by clients from where, and who makes room for others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use farcall_core::Identity;
use farcall_core::time::Instant;
use farcall_core::transport::ClientId;

use crate::contract::{Config, CountsBySource, SetupError, Source};

/// How long a client may take until its first call before it makes room for others: programs connect when they start, and some
/// have nothing to call at first.
const FIRST_CALL: Duration = Duration::from_secs(30);

/// The same for one of a source with more clients than the one that wants room has.
const FIRST_CALL_OF_MANY: Duration = Duration::from_secs(1);

/// Most clients that a server thread is asked to look at together: looking at one takes some ten nanoseconds.
const CANDIDATES: usize = 64;

/// How many clients a server thread takes, and when one makes room for another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientLimits {
    max_clients: usize,
    max_per_source: usize,
    max_per_identity: usize,
    idle_timeout: Duration,
}

impl ClientLimits {
    /// Those of a server thread with this configuration, for so many clients.
    pub(crate) fn new(config: &Config, max_clients: usize) -> ClientLimits {
        let max_per_source = config.max_clients_per_source as usize;
        let max_per_identity = config.max_clients_per_identity as usize;
        let idle_timeout = config.idle_timeout;
        ClientLimits { max_clients, max_per_source, max_per_identity, idle_timeout }
    }

    /// Those of so many clients, from wherever.
    #[cfg(test)]
    pub(crate) fn of(max_clients: usize) -> ClientLimits {
        ClientLimits::new(&Config::default(), max_clients)
    }
}

/// What a client has called, as far as it tells whether the client is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Nothing so far.
    None,
    /// Something, and no call is under way. The number is another one after further calls.
    Ended(u64),
    /// Calls are under way.
    UnderWay,
}

impl Calls {
    /// The calls that were made with slots of these generations, if some were. The peer chooses generations, and counts them up.
    pub(crate) fn ended(generations: impl Iterator<Item = u32>) -> Calls {
        match generations.map(u64::from).sum() {
            0 => Calls::None,
            sum => Calls::Ended(sum),
        }
    }
}

/// A client that makes room if it has called nothing more than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: ClientId,
    pub(crate) calls: Calls,
}

/// Which client numbers are free, and who has the others.
#[derive(Debug)]
pub(super) struct Places {
    limits: ClientLimits,
    /// By number. Its memory is freed as clients leave: there may have been thousands.
    taken: BTreeMap<u32, Place>,
    /// How many of those are of clients that are being torn down.
    leaving: usize,
    free: Vec<u32>,
    /// The least number that no client has had.
    next: u32,
    generation: u32,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    source: Source,
    identity: Option<Identity>,
    /// What it had called when it was last looked at: the server thread looks only when room is wanted, so that calls cost nothing
    /// more.
    calls: Calls,
    /// Since when it is known to have called nothing more.
    since: Instant,
    /// The server thread has let go of it, and it is being torn down.
    is_leaving: bool,
}

impl Places {
    pub(super) fn new(limits: ClientLimits) -> Places {
        Places {
            limits,
            taken: BTreeMap::new(),
            leaving: 0,
            free: Vec::new(),
            next: 0,
            generation: 0,
        }
    }

    /// Whether there is room for another client from that source.
    pub(super) fn check_room(&self, source: Source) -> Result<(), SetupError> {
        let in_use = self.taken.len();
        if in_use >= self.limits.max_clients {
            return Err(SetupError::Full(format!(
                "the server thread has {in_use} clients, the most that it may have"
            )));
        }
        if self.is_source_full(source, |_| true) {
            return Err(SetupError::SourceFull(
                "the server thread has as many clients of this source as it may have \
                 (max_clients_per_source)"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Whether there is room once those that are being torn down are gone.
    pub(super) fn will_have_room(&self, source: Source) -> bool {
        self.taken.len() - self.leaving < self.limits.max_clients
            && !self.is_source_full(source, |place| !place.is_leaving)
    }

    /// The generation of the last client that has got a place.
    pub(super) fn last_generation(&self) -> u32 {
        self.generation
    }

    /// Whether clients are being torn down.
    pub(super) fn has_leaving(&self) -> bool {
        self.leaving > 0
    }

    fn is_source_full(&self, source: Source, counts: impl Fn(&Place) -> bool) -> bool {
        let most = self.limits.max_per_source;
        let is_own = |place: &&Place| place.source == source && counts(place);
        most < self.limits.max_clients && self.taken.values().filter(is_own).count() >= most
    }

    /// Whether this identity may have another connection.
    fn check_identity(&self, identity: Option<&Identity>) -> Result<(), SetupError> {
        let most = self.limits.max_per_identity;
        let Some(identity) = identity.filter(|_| most < self.limits.max_clients) else {
            return Ok(());
        };
        // Those that are being torn down are no connections any more.
        let is_own =
            |place: &&Place| place.identity.as_ref() == Some(identity) && !place.is_leaving;
        if self.taken.values().filter(is_own).count() < most {
            return Ok(());
        }
        Err(SetupError::IdentityFull(format!(
            "{identity} has as many connections to this server as the quota of its clients allows"
        )))
    }

    /// A free number, in its next generation, for a client from that source, with that identity.
    pub(super) fn take(
        &mut self,
        (source, identity): (Source, Option<&Identity>),
        now: Instant,
    ) -> Result<ClientId, SetupError> {
        self.check_identity(identity)?;
        self.check_room(source)?;
        self.generation = self.generation.wrapping_add(1);
        let number = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let generation = self.generation;
        let (calls, is_leaving) = (Calls::None, false);
        let identity = identity.cloned();
        let place = Place { generation, source, identity, calls, since: now, is_leaving };
        self.taken.insert(number, place);
        Ok(ClientId { number, generation })
    }

    /// The client is being torn down. It keeps its number and its place until [`give_back`](Places::give_back): until then it has its
    /// memory and its descriptors.
    pub(super) fn leave(&mut self, number: u32) {
        if let Some(place) = self.taken.get_mut(&number)
            && !std::mem::replace(&mut place.is_leaving, true)
        {
            self.leaving += 1;
        }
    }

    /// The client is gone; another may have its number.
    pub(super) fn give_back(&mut self, number: u32) {
        if let Some(place) = self.taken.remove(&number) {
            self.leaving -= usize::from(place.is_leaving);
            self.free.push(number);
        }
    }

    /// The client was looked at, and has called that.
    pub(super) fn set_calls(&mut self, Candidate { id, calls }: &Candidate, now: Instant) {
        if let Some(place) = self.taken.get_mut(&id.number)
            && place.generation == id.generation
        {
            place.calls = *calls;
            place.since = now;
        }
    }

    /// Who makes room for a client from this source, unless they have called meanwhile: first those of the source with most
    /// clients, of them first those that have been idle for longest.
    pub(super) fn candidates(&self, source: Source, now: Instant) -> Vec<Candidate> {
        let stays = |place: &&Place| !place.is_leaving;
        let counts: CountsBySource =
            self.taken.values().filter(stays).map(|place| place.source).collect();
        let own = counts.of(source);
        let is_source_full = self.is_source_full(source, |place| stays(&place));
        let must_move = |place: &Place| {
            // With only one client more, the two sources would take turns in throwing each other out.
            let has_more = counts.of(place.source) > own + 1;
            let patience = match place.calls {
                Calls::None if has_more => FIRST_CALL_OF_MANY,
                Calls::None => FIRST_CALL,
                _ if has_more => self.limits.idle_timeout,
                _ => return false,
            };
            // If the source has as many as it may have, no client of another source helps.
            (!is_source_full || place.source == source) && now >= place.since + patience
        };
        let places = self.taken.iter().filter(|(_, place)| stays(place) && must_move(place));
        let mut found: Vec<_> = places
            .map(|(&number, place)| {
                let id = ClientId { number, generation: place.generation };
                let client = Candidate { id, calls: place.calls };
                ((Reverse(counts.of(place.source)), place.since), client)
            })
            .collect();
        found.sort_unstable_by_key(|(order, _)| *order);
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, client)| client).collect()
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

    fn numbers(clients: &[Candidate]) -> Vec<u32> {
        clients.iter().map(|client| client.id.number).collect()
    }

    fn has_room(places: &Places) -> bool {
        places.check_room(Source::Unknown).is_ok()
    }

    /// Places for four clients of the crowd, which came a millisecond after each other.
    fn crowded() -> Places {
        let mut places = Places::new(ClientLimits::of(4));
        for age in 0..4 {
            places.take((CROWD, None), at(Duration::from_millis(age))).unwrap();
        }
        assert!(!has_room(&places));
        places
    }

    #[test]
    fn a_number_that_comes_back_is_another_client() {
        let mut places = Places::new(ClientLimits::of(2));
        let first = places.take((CROWD, None), Instant::ZERO).unwrap();
        let second = places.take((CROWD, None), Instant::ZERO).unwrap();
        assert_ne!(first.number, second.number);
        let full = places.take((OTHER, None), Instant::ZERO).unwrap_err().to_string();
        assert!(full.contains("2 clients"), "{full}");
        places.give_back(first.number);
        places.give_back(first.number);
        let third = places.take((CROWD, None), Instant::ZERO).unwrap();
        assert_eq!(third.number, first.number);
        assert_ne!(third.generation, first.generation);
        assert!(!has_room(&places));
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
        let mut places = Places::new(ClientLimits::of(4));
        for source in [OTHER, CROWD, CROWD, CROWD] {
            places.take((source, None), Instant::ZERO).unwrap();
        }
        let found = places.candidates(Source::Unknown, at(FIRST_CALL));
        assert_eq!(numbers(&found), [1, 2, 3, 0]);
    }

    #[test]
    fn sources_with_as_many_clients_do_not_throw_each_other_out() {
        let mut places = Places::new(ClientLimits::of(3));
        for source in [CROWD, CROWD, OTHER] {
            places.take((source, None), Instant::ZERO).unwrap();
        }
        assert!(places.candidates(OTHER, at(FIRST_CALL_OF_MANY * 2)).is_empty());
    }

    #[test]
    fn a_client_that_has_called_stays_until_it_has_been_idle_for_the_time_out() {
        let mut places = crowded();
        let looked_at = at(FIRST_CALL);
        let first = places.candidates(OTHER, looked_at)[0].id;
        let calls = Calls::Ended(1);
        places.set_calls(&Candidate { id: first, calls }, looked_at);
        let candidates =
            |places: &Places, source, after: Duration| places.candidates(source, looked_at + after);
        let idle = places.limits.idle_timeout;
        assert_eq!(candidates(&places, OTHER, idle / 2)[0].id.number, 1);
        for client in candidates(&places, OTHER, idle / 2) {
            let calls = Calls::UnderWay;
            places.set_calls(&Candidate { calls, ..client }, looked_at + idle / 2);
        }
        assert!(candidates(&places, OTHER, idle * 3 / 4).is_empty());
        assert_eq!(candidates(&places, OTHER, idle), [Candidate { id: first, calls }]);
        assert!(candidates(&places, CROWD, idle).is_empty(), "its source has no fewer clients");
        // Another client of that number has not called.
        places.give_back(first.number);
        let next = places.take((CROWD, None), Instant::ZERO).unwrap();
        places.set_calls(&Candidate { id: first, calls }, looked_at);
        let fresh = Candidate { id: next, calls: Calls::None };
        assert!(places.candidates(OTHER, at(FIRST_CALL)).contains(&fresh));
    }

    #[test]
    fn a_source_that_has_all_that_it_may_have_leaves_room_for_others() {
        let limits = ClientLimits { max_per_source: 2, ..ClientLimits::of(4) };
        let mut places = Places::new(limits);
        for source in [CROWD, OTHER, CROWD] {
            places.take((source, None), Instant::ZERO).unwrap();
        }
        let refused = places.take((CROWD, None), Instant::ZERO).unwrap_err();
        assert!(matches!(refused, SetupError::SourceFull(_)), "{refused}");
        // Its own clients make room for it, however few the others have.
        assert_eq!(numbers(&places.candidates(CROWD, at(FIRST_CALL))), [0, 2]);
        places.take((OTHER, None), Instant::ZERO).unwrap();
        let full = places.take((CROWD, None), Instant::ZERO).unwrap_err();
        assert!(matches!(full, SetupError::Full(_)), "{full}");
    }

    #[test]
    fn an_identity_with_as_many_connections_as_it_may_have_leaves_room_for_others() {
        let limits = ClientLimits { max_per_identity: 2, ..ClientLimits::of(8) };
        let mut places = Places::new(limits);
        let (alice, bob) = (&Identity::named("alice"), &Identity::named("bob"));
        let mut take =
            |source, identity| places.take((source, identity), Instant::ZERO).map(|id| id.number);
        let first = take(CROWD, Some(alice)).unwrap();
        take(OTHER, Some(alice)).unwrap();
        let refused = take(Source::Unknown, Some(alice)).unwrap_err();
        assert!(matches!(refused, SetupError::IdentityFull(_)), "{refused}");
        assert!(refused.to_string().contains("alice"), "{refused}");
        // Others are not meant, and neither is a client that has not proven who it is.
        assert!(take(CROWD, Some(bob)).is_ok() && take(CROWD, None).is_ok());
        places.give_back(first);
        assert!(places.take((CROWD, Some(alice)), Instant::ZERO).is_ok());
    }
}
