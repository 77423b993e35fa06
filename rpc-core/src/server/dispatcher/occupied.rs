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
