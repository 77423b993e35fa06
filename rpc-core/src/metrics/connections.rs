//! Which connections a server thread has: their lanes, since when, and why. The thread notes what comes and goes; any thread reads.

use crate::identity::Identity;
use crate::site::Site;
use crate::time::Instant;
use crate::transport::{ClientId, LaneInfo, LaneReason};
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open connection of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenConnection {
    /// The server thread that serves it.
    pub thread: usize,
    /// Its number at that thread. No other connection has had it.
    pub number: u64,
    /// Who the client has proven to be.
    pub identity: Option<Identity>,
    /// Lanes that it has had so far, those included that have ended.
    pub lanes_so_far: u64,
    /// Its lanes, the oldest first. There is one, but for a connection that moves.
    pub lanes: Vec<OpenLane>,
}

/// A lane of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenLane {
    /// The backend's name.
    pub backend: &'static str,
    /// For how long it has been open.
    pub open_for: Duration,
    /// Why the client has opened it. A [trial](LaneReason::Trial) that has outlived the lanes before it is [`LaneReason::Moved`].
    pub why: LaneReason,
}

/// The transport's number at the thread, and the client's of the transport.
pub(crate) type LaneKey = (u32, ClientId);

/// The connections of one thread.
pub(crate) struct Connections {
    site: Site,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their numbers.
    open: BTreeMap<u64, Entry>,
    last_number: u64,
    /// The number of each lane's connection.
    of_lane: BTreeMap<LaneKey, u64>,
    /// Lanes so far, by backend and reason.
    lanes_so_far: BTreeMap<(&'static str, LaneReason), u64>,
}

struct Entry {
    identity: Option<Identity>,
    lanes_so_far: u64,
    lanes: Vec<LaneEntry>,
}

struct LaneEntry {
    key: LaneKey,
    info: LaneInfo,
    since: Instant,
}

impl Connections {
    /// Those of the thread of this site: none.
    pub(crate) fn new(site: &Site) -> Connections {
        Connections { site: site.clone(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane is here: of the connection of that number, if that is open, or else of a new one. Gives the connection's number.
    #[cold]
    pub(crate) fn add_lane(
        &self,
        of: Option<u64>,
        (key, info): (LaneKey, LaneInfo),
        identity: Option<Identity>,
    ) -> u64 {
        let since = self.site.now();
        let mut state = self.lock();
        let state = &mut *state;
        *state.lanes_so_far.entry((info.backend, info.why)).or_default() += 1;
        let number = of.filter(|number| state.open.contains_key(number)).unwrap_or_else(|| {
            state.last_number += 1;
            state.last_number
        });
        let lanes = || Vec::with_capacity(1);
        let new = || Entry { identity, lanes_so_far: 0, lanes: lanes() };
        let connection = state.open.entry(number).or_insert_with(new);
        connection.lanes_so_far += 1;
        connection.lanes.push(LaneEntry { key, info, since });
        state.of_lane.insert(key, number);
        number
    }

    /// The lane is gone, if it was shown; the connection ends with its last one.
    #[cold]
    pub(crate) fn remove_lane(&self, key: LaneKey) {
        let mut state = self.lock();
        let Some(number) = state.of_lane.remove(&key) else { return };
        let Some(connection) = state.open.get_mut(&number) else { return };
        connection.lanes.retain(|lane| lane.key != key);
        if connection.lanes.is_empty() {
            state.open.remove(&number);
        }
    }

    /// All lanes of this transport are gone.
    pub(crate) fn remove_lanes_of(&self, transport: u32) {
        let keys: Vec<_> =
            self.lock().of_lane.keys().filter(|key| key.0 == transport).copied().collect();
        keys.into_iter().for_each(|key| self.remove_lane(key));
    }

    /// All are gone.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        state.open.clear();
        state.of_lane.clear();
    }

    /// The first `most` of them, as those of this thread.
    pub(super) fn list(&self, thread: usize, most: usize) -> Vec<OpenConnection> {
        let now = self.site.now();
        let state = self.lock();
        let told = |(&number, entry): (&u64, &Entry)| OpenConnection {
            thread,
            number,
            identity: entry.identity.clone(),
            lanes_so_far: entry.lanes_so_far,
            lanes: entry.lanes(now),
        };
        state.open.iter().take(most).map(told).collect()
    }

    /// Adds how many connections there are, by the backend of the lane that was opened last.
    pub(super) fn count_open(&self, by_backend: &mut BTreeMap<&'static str, u64>) {
        let state = self.lock();
        // A backend that had connections is shown when it has none.
        state
            .lanes_so_far
            .keys()
            .for_each(|(backend, _)| _ = by_backend.entry(backend).or_default());
        for lane in state.open.values().filter_map(|entry| entry.lanes.last()) {
            *by_backend.entry(lane.info.backend).or_default() += 1;
        }
    }

    /// Adds how many lanes there have been so far.
    pub(super) fn count_lanes(&self, lanes: &mut BTreeMap<(&'static str, LaneReason), u64>) {
        for (key, count) in &self.lock().lanes_so_far {
            *lanes.entry(*key).or_default() += count;
        }
    }
}

impl Entry {
    fn lanes(&self, now: Instant) -> Vec<OpenLane> {
        let is_only = self.lanes.len() == 1;
        let told = |lane: &LaneEntry| {
            let LaneInfo { backend, why } = lane.info;
            let why = if is_only && why == LaneReason::Trial { LaneReason::Moved } else { why };
            OpenLane { backend, open_for: now - lane.since, why }
        };
        self.lanes.iter().map(told).collect()
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("open", &self.lock().open.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Clock;
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::sync::Arc;

    #[derive(Default)]
    struct ByHand(AtomicU64);

    impl Clock for ByHand {
        fn now(&self) -> Instant {
            Instant::from_nanos(self.0.load(Relaxed))
        }
    }

    const fn key(number: u32) -> LaneKey {
        (0, ClientId { number, generation: 1 })
    }

    const fn lane(backend: &'static str, why: LaneReason) -> LaneInfo {
        LaneInfo { backend, why }
    }

    #[test]
    fn a_connection_is_shown_with_its_lanes_until_the_last_is_gone() {
        let clock = Arc::new(ByHand::default());
        let connections = Connections::new(&Site::driven(clock.clone()));
        let alice = || Some(Identity::named("alice"));
        let first = (key(0), lane("write_imm", LaneReason::First));
        let number = connections.add_lane(None, first, alice());
        clock.0.store(1_000, Relaxed);
        let second = (key(1), lane("datagram", LaneReason::Trial));
        assert_eq!(connections.add_lane(Some(number), second, alice()), number);
        clock.0.store(1_500, Relaxed);
        let shown = |connections: &Connections| {
            let [OpenConnection { thread: 7, number: 1, identity, lanes_so_far: 2, lanes }] =
                &connections.list(7, 9)[..]
            else {
                panic!("{:?}", connections.list(7, 9));
            };
            assert_eq!(*identity, alice());
            let lanes = lanes.iter().map(|it| (it.backend, it.open_for.as_nanos(), it.why));
            lanes.collect::<Vec<_>>()
        };
        let trial = ("datagram", 500, LaneReason::Trial);
        assert_eq!(shown(&connections), [("write_imm", 1_500, LaneReason::First), trial]);
        connections.remove_lane(key(0));
        connections.remove_lane(key(0));
        assert_eq!(shown(&connections), [("datagram", 500, LaneReason::Moved)]);
        connections.remove_lane(key(1));
        assert_eq!(connections.list(7, 9), []);
        let late = (key(2), lane("rfp", LaneReason::Trial));
        assert_eq!(connections.add_lane(Some(number), late, None), number + 1, "that has ended");
    }

    #[test]
    fn connections_count_where_their_newest_lane_is() {
        let connections = Connections::new(&Site::new());
        let add = |of, number, backend, why| {
            connections.add_lane(of, (key(number), lane(backend, why)), None)
        };
        let numbers = [0, 1, 2].map(|number| add(None, number, "write_imm", LaneReason::First));
        add(Some(numbers[1]), 9, "rfp", LaneReason::Trial);
        assert_eq!(connections.list(0, 2).len(), 2, "no more than were asked for");
        let mut open = BTreeMap::new();
        connections.count_open(&mut open);
        assert_eq!(open.into_iter().collect::<Vec<_>>(), [("rfp", 1), ("write_imm", 2)]);
        connections.clear();
        let (mut open, mut lanes) = (BTreeMap::new(), BTreeMap::new());
        connections.count_open(&mut open);
        connections.count_lanes(&mut lanes);
        assert_eq!(open.into_iter().collect::<Vec<_>>(), [("rfp", 0), ("write_imm", 0)]);
        let counted = [(("rfp", LaneReason::Trial), 1), (("write_imm", LaneReason::First), 3)];
        assert_eq!(lanes.into_iter().collect::<Vec<_>>(), counted);
    }
}
