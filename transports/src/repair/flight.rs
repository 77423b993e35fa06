//! Which datagrams with requests are under way: how many, and which were overtaken. Pure.
//!
//! A datagram is under way until the server has said a word of any request in it. One of which nothing was heard while
//! later ones were answered is likely lost (the idea of RACK, RFC 8985, section 5).

/// A datagram was overtaken when this many later ones have been answered; fewer may be reordering (RFC 5681,
/// section 3.2).
const OVERTAKEN_BY: u32 = 3;

/// More than the window's slots can keep under way, so that the oldest is known to be overtaken before numbers wrap.
const SPARE: usize = 16;

/// The datagram that a slot's request left in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram(u32);

#[derive(Debug)]
pub(crate) struct Flight {
    /// Of each datagram from `oldest` to `current`, by the low bits of its number: requests of which nothing was heard.
    unheard: Box<[u16]>,
    /// None before it has any.
    oldest: u32,
    /// The one that was begun last.
    current: u32,
    /// How many the port had sealed then.
    sealed: u32,
    /// The number after the latest that was answered.
    answered: u32,
    /// Datagrams that have some.
    under_way: u32,
}

impl Flight {
    pub(crate) fn new(window: u32) -> Flight {
        let unheard = vec![0; (window as usize + SPARE).next_power_of_two()].into();
        Flight { unheard, oldest: 0, current: 0, sealed: 0, answered: 0, under_way: 0 }
    }

    #[inline]
    fn at(&mut self, number: u32) -> &mut u16 {
        let mask = self.unheard.len() - 1;
        &mut self.unheard[number as usize & mask]
    }

    /// Datagrams of which nothing was heard.
    #[inline]
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// There is a number for one more.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (self.current.wrapping_sub(self.oldest) as usize) < self.unheard.len() - 1
    }

    /// A request was put into the datagram that the port, having sealed so many, puts together.
    #[inline]
    pub(crate) fn enter(&mut self, sealed: u32) -> Datagram {
        if sealed != self.sealed {
            self.sealed = sealed;
            self.current = self.current.wrapping_add(1);
            if self.under_way == 0 {
                self.oldest = self.current;
            }
        }
        let number = self.current;
        let unheard = self.at(number);
        *unheard += 1;
        let is_first = *unheard == 1;
        self.under_way += u32::from(is_first);
        Datagram(number)
    }

    /// Something was heard of a request in this datagram, or nothing is waited for any more.
    #[inline]
    pub(crate) fn leave(&mut self, datagram: Datagram) {
        let unheard = self.at(datagram.0);
        *unheard -= 1;
        if *unheard > 0 {
            return;
        }
        self.under_way -= 1;
        while self.oldest != self.current && *self.at(self.oldest) == 0 {
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// The server has answered a request in this datagram. Tells whether it is the latest so far.
    #[inline]
    pub(crate) fn answered(&mut self, datagram: Datagram) -> bool {
        let after = datagram.0.wrapping_add(1);
        let is_later = after.wrapping_sub(self.answered) as i32 > 0;
        if is_later {
            self.answered = after;
        }
        is_later
    }

    /// Whether the oldest was overtaken.
    #[inline]
    pub(crate) fn has_overtaken(&self) -> bool {
        self.is_overtaken(Datagram(self.oldest))
    }

    #[inline]
    pub(crate) fn is_overtaken(&self, datagram: Datagram) -> bool {
        self.answered.wrapping_sub(datagram.0) as i32 > OVERTAKEN_BY as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_under_way_until_all_its_requests_were_heard_of() {
        let mut flight = Flight::new(4);
        let one = flight.enter(7);
        assert_eq!(flight.enter(7), one);
        let other = flight.enter(8);
        assert_ne!(other, one);
        assert_eq!(flight.under_way(), 2);
        flight.leave(one);
        assert_eq!(flight.under_way(), 2);
        flight.leave(one);
        flight.leave(other);
        assert_eq!(flight.under_way(), 0);
    }

    #[test]
    fn what_three_later_ones_pass_is_overtaken() {
        let mut flight = Flight::new(8);
        let datagrams: Vec<_> = (1..=5).map(|sealed| flight.enter(sealed)).collect();
        for &later in &datagrams[1..4] {
            assert!(!flight.has_overtaken());
            assert!(flight.answered(later));
            flight.leave(later);
        }
        assert!(flight.has_overtaken() && flight.is_overtaken(datagrams[0]));
        assert!(!flight.is_overtaken(datagrams[4]));
        assert!(!flight.answered(datagrams[2]), "a later one was");
        flight.leave(datagrams[0]);
        assert!(!flight.has_overtaken());
    }

    #[test]
    fn numbers_go_round_and_are_not_used_twice() {
        let mut flight = Flight::new(4);
        for sealed in 1..1000 {
            let datagram = flight.enter(sealed);
            assert!(flight.has_room());
            assert!(flight.answered(datagram));
            flight.leave(datagram);
            assert!(!flight.has_overtaken());
        }
        let stuck = flight.enter(1000);
        let mut sealed = 1001;
        while flight.has_room() {
            let datagram = flight.enter(sealed);
            assert_ne!(datagram, stuck);
            flight.leave(datagram);
            sealed += 1;
        }
        flight.leave(stuck);
        assert!(flight.has_room());
    }
}
