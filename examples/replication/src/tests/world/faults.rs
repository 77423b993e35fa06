//! Faults: replicas are killed, stopped, and cut off from each other.

use rand::Rng;

use super::clients::CLIENTS;
use super::{Event, MS, World};

impl World {
    pub(super) fn fault(&mut self) {
        if !self.is_faulty() {
            self.cuts.clear();
            for replica in self.replicas.values_mut() {
                replica.stopped_until = replica.stopped_until.min(self.now);
            }
            for client in 0..CLIENTS {
                self.after(300 * MS, Event::ClientAct(client));
            }
            return;
        }
        let delay = self.random.random_range(10 * MS..120 * MS);
        self.after(delay, Event::Fault);
        let alive: Vec<_> = self.alive().collect();
        let Some(victim) =
            (!alive.is_empty()).then(|| alive[self.random.random_range(0..alive.len())])
        else {
            return;
        };
        let newest = self.membership.newest();
        let victim = if self.one_in(2) { newest.primary } else { victim };
        match self.random.random_range(0..5) {
            0 | 1 => {
                // One member is left: more faults than that lose data.
                let left = newest.members.iter().filter(|it| {
                    it.id != victim && self.replicas.get(&it.id).is_some_and(|it| !it.is_dead)
                });
                if left.count() > 0 {
                    self.kill(victim);
                    self.kills += 1;
                }
            }
            2 | 3 => {
                let time = self.random.random_range(5 * MS..200 * MS);
                let until = self.now + time;
                if let Some(replica) = self.replicas.get_mut(&victim) {
                    replica.stopped_until = replica.stopped_until.max(until);
                }
            }
            _ => {
                let other = alive[self.random.random_range(0..alive.len())];
                let pair = (victim.min(other), victim.max(other));
                if !self.cuts.remove(&pair) && victim != other {
                    self.cuts.insert(pair);
                }
            }
        }
    }
}
