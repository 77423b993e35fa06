//! The places of a server thread's clients: which are taken, by clients from where, and who makes room for others.
//!
//! What is counted are connections. Further lanes of one take places of their own, whichever backends they come over, and count for
//! nothing until the lane that counted has gone.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant as StdInstant};

use farcall_core::Identity;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{ClientId, ClientInfo, ConnectionId};

use crate::planted::{Bug, is_planted};

use super::{Config, CountsBySource, SetupError, Source, deadline_in};

/// How long a client may take until its first call before it makes room for others: programs connect when they start, and some
/// have nothing to call at first.
const FIRST_CALL: Duration = Duration::from_secs(30);

/// The same for one of a source with more clients than the one that wants room has.
const FIRST_CALL_OF_MANY: Duration = Duration::from_secs(1);

/// Most clients that a server thread is asked to look at together: looking at one takes some ten nanoseconds.
const CANDIDATES: usize = 64;

/// How many clients a server thread takes, and when one makes room for another.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    max_clients: usize,
    max_per_source: usize,
    max_per_identity: usize,
    idle_timeout: Duration,
}

impl ClientLimits {
    /// Those of a server thread with this configuration, for so many clients.
    pub fn new(config: &Config, max_clients: usize) -> ClientLimits {
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

/// Where a server thread is told that a client is to make room.
pub(crate) trait AskForRoom: Send + Sync {
    /// The first of these clients that is still idle makes room. `false`: the thread is gone.
    fn ask(&self, request: RoomRequest) -> bool;
}

/// A client from that source found all places taken.
#[derive(Debug)]
pub(crate) struct RoomRequest {
    pub(crate) source: Source,
    /// The first of these that is still idle makes room.
    pub(crate) candidates: Vec<Candidate>,
    /// How many places had been taken by then.
    takings: u64,
}

/// The places of the connections that one server thread has at one address, over whichever backends.
pub struct ThreadPlaces {
    places: Mutex<Places>,
    /// A place is free, or the server thread has looked for one that it can free.
    news: Condvar,
    site: Site,
}

impl fmt::Debug for ThreadPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPlaces").finish_non_exhaustive()
    }
}

impl ThreadPlaces {
    /// Those of the thread of this site, within these limits.
    pub fn new(site: &Site, limits: ClientLimits) -> Arc<ThreadPlaces> {
        let (places, news) = (Mutex::new(Places::new(limits)), Condvar::new());
        Arc::new(ThreadPlaces { places, news, site: site.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where that connection came, and who its client has proven to be; `None`: the thread has none of this id.
    pub fn find(&self, id: ConnectionId) -> Option<(Source, Option<Identity>)> {
        let places = self.lock();
        let place = places.taken.values().find(|place| place.is_lane_of(id))?;
        Some((place.source, place.identity.clone()))
    }
}

/// The places of one half's clients: one backend's, of a thread that may serve others too.
#[derive(Debug)]
pub(crate) struct HalfPlaces {
    thread: Arc<ThreadPlaces>,
    half: u32,
}

impl HalfPlaces {
    /// Those of one more half of the thread, which has memory for so many clients.
    pub(crate) fn new(
        thread: Arc<ThreadPlaces>,
        most: usize,
        asks: Weak<dyn AskForRoom>,
    ) -> HalfPlaces {
        let half = thread.lock().add_half(most, asks);
        HalfPlaces { thread, half }
    }

    /// A free number, in its next generation, for a client from that source, with that information.
    pub(crate) fn take(&self, client: (Source, &ClientInfo)) -> Result<ClientId, SetupError> {
        let now = self.thread.site.now();
        self.thread.lock().take(self.half, client, now)
    }

    /// The client is being torn down. It keeps its number and its place until [`give_back`](Self::give_back): until then it has its
    /// memory and its descriptors.
    pub(crate) fn leave(&self, number: u32) {
        self.thread.lock().leave((self.half, number));
    }

    /// The client is gone; another may have its number.
    pub(crate) fn give_back(&self, number: u32) {
        self.thread.lock().give_back((self.half, number));
        self.thread.news.notify_all();
    }

    /// All places are taken, or all that the source may have, and a client from that source wants one. Has the server thread drop
    /// a client that is idle, and waits for that at most for `wait`. `false`: there is none that must make room.
    pub(crate) fn make_room(&self, source: Source, wait: Duration) -> bool {
        let ThreadPlaces { news, site, .. } = &*self.thread;
        let deadline = deadline_in(wait);
        let mut places = self.thread.lock();
        while places.check_room(self.half, source).is_err() {
            if !places.will_have_room(self.half, source) {
                let Some((asks, request)) = places.request(source, site.now()) else {
                    return false;
                };
                if !asks.upgrade().is_some_and(|asks| asks.ask(request)) {
                    return false;
                }
            }
            let left = deadline.saturating_duration_since(StdInstant::now());
            let waited = news.wait_timeout(places, left);
            let (held, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
            if outcome.timed_out() {
                return true;
            }
            places = held;
        }
        true
    }

    /// Whether a client must still make room. Not if there is room, at the latest when those that were dropped are torn down; and not
    /// if somebody has got a place since: it may have been who asked. Who waits longer asks again.
    pub(crate) fn is_room_wanted(&self, request: &RoomRequest) -> bool {
        let places = self.thread.lock();
        let is_wanted =
            places.takings == request.takings && !places.will_have_room(self.half, request.source);
        if !is_wanted {
            self.thread.news.notify_all();
        }
        is_wanted
    }

    /// These clients stay: they are not idle. This is what they have called.
    pub(crate) fn keep(&self, clients: &[Candidate]) {
        let (mut places, now) = (self.thread.lock(), self.thread.site.now());
        clients.iter().for_each(|client| places.set_calls(self.half, client, now));
        self.thread.news.notify_all();
    }

    /// The server thread has ended. Those that it has dropped before are waited for, if that takes no longer than so, and no client has a
    /// place any more.
    pub(crate) fn end(&self, bound: Duration) {
        let has_leaving =
            |places: &mut Places| places.halves.get(&self.half).is_some_and(|it| it.leaving > 0);
        let waited = self.thread.news.wait_timeout_while(self.thread.lock(), bound, has_leaving);
        let (mut places, _) = waited.unwrap_or_else(PoisonError::into_inner);
        places.forget_half(self.half);
        self.thread.news.notify_all();
    }
}

/// Which places are free, and who has the others.
#[derive(Debug)]
struct Places {
    limits: ClientLimits,
    /// By half and number. Its memory is freed as clients leave: there may have been thousands.
    taken: BTreeMap<PlaceKey, Place>,
    halves: BTreeMap<u32, Half>,
    next_half: u32,
    /// Connections that have a place, and how many of those are being torn down.
    connections: usize,
    leaving: usize,
    /// How many places have been taken so far.
    takings: u64,
}

/// The half, and the number of its client.
type PlaceKey = (u32, u32);

/// The numbers of one half's clients.
struct Half {
    asks: Weak<dyn AskForRoom>,
    /// How many clients it has memory for.
    most: usize,
    /// Those that it has, and how many of them are being torn down.
    clients: usize,
    leaving: usize,
    free: Vec<u32>,
    /// The least number that no client has had.
    next: u32,
    generation: u32,
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Half").field("clients", &self.clients).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Place {
    generation: u32,
    source: Source,
    identity: Option<Identity>,
    connection: Option<ConnectionId>,
    /// It counts for its connection: one lane does.
    is_counted: bool,
    /// What it had called when it was last looked at: the server thread looks only when room is wanted, so that calls cost nothing
    /// more.
    calls: Calls,
    /// Since when it is known to have called nothing more.
    since: Instant,
    /// The server thread has let go of it, and it is being torn down.
    is_leaving: bool,
}

impl Place {
    /// It is a lane of that connection, and stays.
    fn is_lane_of(&self, id: ConnectionId) -> bool {
        self.connection == Some(id) && !self.is_leaving
    }
}

impl Places {
    fn new(limits: ClientLimits) -> Places {
        Places {
            limits,
            taken: BTreeMap::new(),
            halves: BTreeMap::new(),
            next_half: 0,
            connections: 0,
            leaving: 0,
            takings: 0,
        }
    }

    fn add_half(&mut self, most: usize, asks: Weak<dyn AskForRoom>) -> u32 {
        let number = self.next_half;
        self.next_half += 1;
        let (clients, leaving, next, generation) = (0, 0, 0, 0);
        let half = Half { asks, most, clients, leaving, free: Vec::new(), next, generation };
        self.halves.insert(number, half);
        number
    }

    /// The half is gone, with all its clients.
    fn forget_half(&mut self, half: u32) {
        let keys: Vec<_> =
            self.taken.range((half, 0)..=(half, u32::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.give_back(key));
        self.halves.remove(&half);
    }

    /// Whether a half has memory for another client.
    fn check_half(&self, half: u32) -> Result<(), SetupError> {
        match self.halves.get(&half) {
            Some(half) if half.clients < half.most => Ok(()),
            Some(half) => Err(full(half.clients)),
            None => {
                Err(SetupError::Full("the server's threads start again after a failure".into()))
            }
        }
    }

    /// Whether there is room for another connection from that source, over that half.
    fn check_room(&self, half: u32, source: Source) -> Result<(), SetupError> {
        self.check_half(half)?;
        if self.connections >= self.limits.max_clients {
            return Err(full(self.connections));
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
    fn will_have_room(&self, half: u32, source: Source) -> bool {
        self.halves.get(&half).is_some_and(|half| half.clients - half.leaving < half.most)
            && self.connections - self.leaving < self.limits.max_clients
            && !self.is_source_full(source, |place| !place.is_leaving)
    }

    fn is_source_full(&self, source: Source, counts: impl Fn(&Place) -> bool) -> bool {
        let most = self.limits.max_per_source;
        let is_own = |place: &&Place| place.is_counted && place.source == source && counts(place);
        most < self.limits.max_clients && self.taken.values().filter(is_own).count() >= most
    }

    /// Whether this identity may have another connection.
    fn check_identity(&self, identity: Option<&Identity>) -> Result<(), SetupError> {
        let most = self.limits.max_per_identity;
        let Some(identity) = identity.filter(|_| most < self.limits.max_clients) else {
            return Ok(());
        };
        // Those that are being torn down are no connections any more.
        let is_own = |place: &&Place| {
            place.is_counted && place.identity.as_ref() == Some(identity) && !place.is_leaving
        };
        if self.taken.values().filter(is_own).count() < most {
            return Ok(());
        }
        Err(SetupError::IdentityFull(format!(
            "{identity} has as many connections to this server as the quota of its clients allows"
        )))
    }

    /// A free number of the half, in its next generation, for a client from that source, with that information. It is another lane if
    /// its connection has one already.
    fn take(
        &mut self,
        half: u32,
        (source, info): (Source, &ClientInfo),
        now: Instant,
    ) -> Result<ClientId, SetupError> {
        let ClientInfo { connection, identity, .. } = info;
        let is_lane = connection.is_some_and(|id| self.taken.values().any(|it| it.is_lane_of(id)));
        if is_lane {
            self.check_half(half)?;
        } else {
            self.check_identity(identity.as_ref())?;
            self.check_room(half, source)?;
            self.connections += 1;
        }
        self.takings += 1;
        let Some(numbers) = self.halves.get_mut(&half) else { return Err(full(0)) };
        numbers.clients += 1;
        numbers.generation = numbers.generation.wrapping_add(1);
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        let generation = numbers.generation;
        let place = Place {
            generation,
            source,
            identity: identity.clone(),
            connection: *connection,
            is_counted: !is_lane,
            calls: Calls::None,
            since: now,
            is_leaving: false,
        };
        self.taken.insert((half, number), place);
        Ok(ClientId { number, generation })
    }

    /// Another lane of this one's connection counts from now on, if there is one.
    fn hand_over(&mut self, key: PlaceKey) {
        let counted = self.taken.get(&key).filter(|place| place.is_counted && !place.is_leaving);
        let Some(id) = counted.and_then(|place| place.connection) else { return };
        let heir =
            |(other, place): &(&PlaceKey, &mut Place)| **other != key && place.is_lane_of(id);
        let Some((_, heir)) = self.taken.iter_mut().find(heir) else { return };
        heir.is_counted = true;
        if let Some(place) = self.taken.get_mut(&key) {
            place.is_counted = false;
        }
    }

    fn leave(&mut self, key: PlaceKey) {
        self.hand_over(key);
        if let Some(place) = self.taken.get_mut(&key)
            && !std::mem::replace(&mut place.is_leaving, true)
        {
            self.leaving += usize::from(place.is_counted);
            if let Some(half) = self.halves.get_mut(&key.0) {
                half.leaving += 1;
            }
        }
    }

    fn give_back(&mut self, key: PlaceKey) {
        self.hand_over(key);
        let Some(place) = self.taken.remove(&key) else { return };
        let is_forgotten = is_planted(Bug::ForgottenEnd) && place.connection.is_some();
        self.connections -= usize::from(place.is_counted && !is_forgotten);
        self.leaving -= usize::from(place.is_counted && place.is_leaving);
        if let Some(half) = self.halves.get_mut(&key.0) {
            half.clients -= 1;
            half.leaving -= usize::from(place.is_leaving);
            half.free.push(key.1);
        }
    }

    /// The client was looked at, and has called that.
    fn set_calls(&mut self, half: u32, Candidate { id, calls }: &Candidate, now: Instant) {
        if let Some(place) = self.taken.get_mut(&(half, id.number))
            && place.generation == id.generation
        {
            place.calls = *calls;
            place.since = now;
        }
    }

    /// Who makes room for a client from this source, unless they have called meanwhile: first those of the source with most
    /// connections, of them first those that have been idle for longest. With their halves.
    fn candidates(&self, source: Source, now: Instant) -> Vec<(u32, Candidate)> {
        let stays = |place: &&Place| !place.is_leaving;
        let counted = self.taken.values().filter(stays).filter(|place| place.is_counted);
        let counts: CountsBySource = counted.map(|place| place.source).collect();
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
            .map(|(&(half, number), place)| {
                let id = ClientId { number, generation: place.generation };
                let client = Candidate { id, calls: place.calls };
                ((Reverse(counts.of(place.source)), place.since), (half, client))
            })
            .collect();
        found.sort_unstable_by_key(|(order, _)| *order);
        found.truncate(CANDIDATES);
        found.into_iter().map(|(_, client)| client).collect()
    }

    /// What to ask, and whom: the half of the client that comes first, for itself and those of its half. The others are asked next if none
    /// of these is idle.
    fn request(&self, source: Source, now: Instant) -> Option<(Weak<dyn AskForRoom>, RoomRequest)> {
        let candidates = self.candidates(source, now);
        let half = candidates.first()?.0;
        let of_half = candidates.into_iter().filter(|(of, _)| *of == half);
        let candidates = of_half.map(|(_, client)| client).collect();
        let request = RoomRequest { source, candidates, takings: self.takings };
        Some((Weak::clone(&self.halves.get(&half)?.asks), request))
    }
}

fn full(clients: usize) -> SetupError {
    SetupError::Full(format!("the server thread has {clients} clients, the most that it may have"))
}
