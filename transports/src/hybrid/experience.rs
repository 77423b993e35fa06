//! What earlier trials have shown: which ways need not be tried when the load changes.
//!
//! A trial in which a thousand clients move there and back costs tens of milliseconds. A server that has compared two ways under a load
//! like this one, or under one of fewer clients, knows how the trial would end.

/// Loads that are remembered; the oldest is forgotten first.
const LOADS: usize = 16;

/// Loads are alike if neither their clients nor the lengths of their requests differ by so much.
const ALIKE: f64 = 2.0;

/// A way is as quick as it was under another load if calls take no more than so many times as long, or as short.
const SAME: f64 = 1.3;

/// What takes so many times as long is expected to take longer also where the numbers of clients differ by the square of [`ALIKE`].
const FAR_WORSE: f64 = 2.0;

/// A way that was so much quicker is worth a trial.
const GAIN: f64 = 0.9;

/// What of a load decides which way is the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Features {
    /// Clients that call.
    pub(super) clients: f64,
    /// The mean length of their requests.
    pub(super) bytes: f64,
}

impl Features {
    fn has_like_bytes(&self, other: &Features) -> bool {
        is_within(ALIKE, self.bytes.max(1.0) / other.bytes.max(1.0))
    }

    fn has_like_clients(&self, other: &Features, factor: f64) -> bool {
        is_within(factor, self.clients.max(1.0) / other.clients.max(1.0))
    }

    fn is_like(&self, other: &Features) -> bool {
        self.has_like_bytes(other) && self.has_like_clients(other, ALIKE)
    }
}

/// What is measured now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    pub(super) load: Features,
    /// The way that calls take.
    pub(super) home: usize,
    /// How long a call takes there.
    pub(super) home_ns: f64,
}

/// What was measured under one load.
#[derive(Debug)]
struct Measured {
    load: Features,
    /// How long a call took with all clients on that way, if that is known.
    per_call_ns: Box<[Option<f64>]>,
}

/// What was measured under earlier loads, the latest last.
#[derive(Debug)]
pub(super) struct Experience {
    /// Of each way: its load on the NIC does not grow with the number of clients.
    suits_many: Box<[bool]>,
    loads: Vec<Measured>,
}

impl Experience {
    /// Of ways some of which suit many clients.
    pub(super) fn new(suits_many: Box<[bool]>) -> Experience {
        Experience { suits_many, loads: Vec::with_capacity(LOADS) }
    }

    /// With all clients on this way, a call took so long.
    pub(super) fn note(&mut self, load: Features, way: usize, per_call_ns: f64) {
        let alike = self.loads.iter().rposition(|it| it.load.is_like(&load));
        let mut measured = match alike {
            Some(at) => self.loads.remove(at),
            None => Measured { load, per_call_ns: vec![None; self.suits_many.len()].into() },
        };
        if let Some(known) = measured.per_call_ns.get_mut(way) {
            *known = Some(per_call_ns);
        }
        if self.loads.len() == LOADS {
            self.loads.remove(0);
        }
        self.loads.push(measured);
    }

    /// How many times as long as on `home`, where it takes `home_ns`, a call takes on this `way` under that load, as far as is known.
    ///
    /// What was measured under a load tells if `home` was then as quick as it is now. With more clients than were seen, one that does not
    /// suit many is expected to be as far behind one that does, at least.
    pub(super) fn expect(&self, now: &Present, way: usize) -> Option<f64> {
        let Present { load, home, home_ns } = *now;
        let falls_behind = !self.suits_many[way] && self.suits_many[home];
        let ratio = |it: &Measured| {
            let (way_ns, then_ns) = (it.per_call_ns[way]?, it.per_call_ns[home]?);
            let ratio = way_ns / then_ns;
            let clients = if ratio < FAR_WORSE { ALIKE } else { ALIKE * ALIKE };
            let is_same =
                it.load.has_like_clients(&load, clients) && is_within(SAME, home_ns / then_ns);
            let has_fewer = falls_behind && it.load.clients <= load.clients;
            ((is_same || has_fewer) && it.load.has_like_bytes(&load)).then_some(ratio)
        };
        self.loads.iter().rev().find_map(ratio)
    }

    /// The way that was quickest under a load like this one, if it was quicker than `home` is now.
    pub(super) fn better_than(&self, now: &Present) -> Option<usize> {
        let Present { load, home, home_ns } = now;
        let like = self.loads.iter().rev().find(|it| it.load.is_like(load))?;
        let known = like.per_call_ns.iter().enumerate().filter(|(way, _)| way != home);
        let known = known.filter_map(|(way, ns)| Some((way, (*ns)?)));
        let best = known.min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(best.0).filter(|_| best.1 < GAIN * home_ns)
    }
}

/// Whether this ratio is of two that differ by less.
fn is_within(factor: f64, ratio: f64) -> bool {
    (1.0 / factor..factor).contains(&ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: usize = 0;
    const SCALE: usize = 1;
    const WRITE_IMM: usize = 2;

    fn load(clients: f64) -> Features {
        Features { clients, bytes: 64.0 }
    }

    fn on(home: usize, clients: f64, home_ns: f64) -> Present {
        Present { load: load(clients), home, home_ns }
    }

    fn with_forty_clients() -> Experience {
        let mut experience = Experience::new([true, true, false].into());
        for (way, ns) in [(DATAGRAM, 50.0), (SCALE, 65.0), (WRITE_IMM, 80.0)] {
            experience.note(load(40.0), way, ns);
        }
        experience
    }

    #[test]
    fn a_load_like_an_earlier_one_is_known() {
        let experience = with_forty_clients();
        assert_eq!(experience.expect(&on(DATAGRAM, 60.0, 52.0), SCALE), Some(1.3));
        assert_eq!(experience.expect(&on(DATAGRAM, 60.0, 500.0), SCALE), None, "slower handlers");
        let longer = Features { bytes: 2048.0, ..load(40.0) };
        let longer = Present { load: longer, ..on(DATAGRAM, 40.0, 50.0) };
        assert_eq!(experience.expect(&longer, SCALE), None);
    }

    #[test]
    fn a_way_that_was_quicker_than_the_present_one_is_is_tried() {
        let experience = with_forty_clients();
        assert_eq!(experience.better_than(&on(WRITE_IMM, 30.0, 80.0)), Some(DATAGRAM));
        assert_eq!(experience.better_than(&on(SCALE, 30.0, 54.0)), None);
        assert_eq!(experience.better_than(&on(DATAGRAM, 30.0, 50.0)), None);
        assert_eq!(experience.better_than(&on(DATAGRAM, 30.0, 90.0)), Some(SCALE), "it got worse");
        assert_eq!(experience.better_than(&on(WRITE_IMM, 300.0, 80.0)), None);
    }

    #[test]
    fn with_more_clients_only_what_does_not_suit_them_is_known() {
        let experience = with_forty_clients();
        assert_eq!(experience.expect(&on(DATAGRAM, 1000.0, 60.0), WRITE_IMM), Some(1.6));
        assert_eq!(experience.expect(&on(DATAGRAM, 1000.0, 60.0), SCALE), None);
        assert_eq!(experience.expect(&on(WRITE_IMM, 1000.0, 80.0), DATAGRAM), None);
        assert_eq!(experience.expect(&on(DATAGRAM, 4.0, 50.0), WRITE_IMM), None);
    }

    #[test]
    fn what_is_far_worse_is_expected_to_be_worse_for_rather_different_numbers_of_clients() {
        let mut experience = with_forty_clients();
        experience.note(load(400.0), DATAGRAM, 50.0);
        experience.note(load(400.0), SCALE, 150.0);
        assert_eq!(experience.expect(&on(DATAGRAM, 1000.0, 55.0), SCALE), Some(3.0));
        assert_eq!(experience.expect(&on(DATAGRAM, 2000.0, 55.0), SCALE), None);
        experience.note(load(400.0), SCALE, 90.0);
        assert_eq!(experience.expect(&on(DATAGRAM, 1000.0, 55.0), SCALE), None);
    }

    #[test]
    fn the_latest_measurement_counts_and_the_oldest_load_is_forgotten() {
        let mut experience = with_forty_clients();
        experience.note(load(40.0), WRITE_IMM, 25.0);
        assert_eq!(experience.expect(&on(DATAGRAM, 40.0, 50.0), WRITE_IMM), Some(0.5));
        for power in 1..=2 * LOADS as i32 {
            let bytes = 100.0 * 4f64.powi(power);
            experience.note(Features { clients: 40.0, bytes }, DATAGRAM, 1.0);
        }
        assert_eq!(experience.loads.len(), LOADS);
        assert_eq!(experience.expect(&on(DATAGRAM, 40.0, 50.0), WRITE_IMM), None);
    }
}
