//! Which datagrams with requests are under way: how many, and which were overtaken. Pure.
//!
//! A datagram is under way until the server has mentioned any request in it. One whose requests were not mentioned while
//! later datagrams were acknowledged is likely lost (the idea of RACK, RFC 8985, section 5).

/// A datagram was overtaken when this many later ones were acknowledged; fewer may be reordering (RFC 5681, section 3.2).
const OVERTAKEN_BY: u32 = 3;

/// More than the window's slots can keep under way, so that the oldest is known to be overtaken before numbers wrap.
const SPARE: usize = 16;

/// The datagram that a slot's request left in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram(u32);

/// The datagrams of one session that are under way.
#[derive(Debug)]
pub(crate) struct Flight {
    /// Of each datagram from `oldest` to `current`, by the low bits of its number: requests that are not acknowledged.
    requests: Box<[u16]>,
    /// None before it has any.
    oldest: u32,
    /// The one that was begun last.
    current: u32,
    /// How many the port had posted then.
    posted: u32,
    /// The number after the latest that was acknowledged.
    acknowledged: u32,
    /// Datagrams that have requests.
    under_way: u32,
}

impl Flight {
    pub(crate) fn new(window: u32) -> Flight {
        let requests = vec![0; (window as usize + SPARE).next_power_of_two()].into();
        Flight { requests, oldest: 0, current: 0, posted: 0, acknowledged: 0, under_way: 0 }
    }

    #[inline]
    fn requests(&mut self, number: u32) -> &mut u16 {
        let mask = self.requests.len() - 1;
        &mut self.requests[number as usize & mask]
    }

    /// Datagrams that are under way.
    #[inline]
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way
    }

    /// There is a number for one more.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (self.current.wrapping_sub(self.oldest) as usize) < self.requests.len() - 1
    }

    /// A request was put into the datagram that the port builds after having posted this many.
    #[inline]
    pub(crate) fn add_request(&mut self, posted: u32) -> Datagram {
        if posted != self.posted {
            self.posted = posted;
            self.current = self.current.wrapping_add(1);
            if self.under_way == 0 {
                self.oldest = self.current;
            }
        }
        let number = self.current;
        let requests = self.requests(number);
        *requests += 1;
        let is_first = *requests == 1;
        self.under_way += u32::from(is_first);
        Datagram(number)
    }

    /// A request in this datagram was acknowledged, or its call is over.
    #[inline]
    pub(crate) fn remove_request(&mut self, datagram: Datagram) {
        let requests = self.requests(datagram.0);
        *requests -= 1;
        if *requests > 0 {
            return;
        }
        self.under_way -= 1;
        while self.oldest != self.current && *self.requests(self.oldest) == 0 {
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// The server has mentioned a request in this datagram. Tells whether it is the latest so far.
    #[inline]
    pub(crate) fn acknowledge(&mut self, datagram: Datagram) -> bool {
        let after = datagram.0.wrapping_add(1);
        let is_later = after.wrapping_sub(self.acknowledged) as i32 > 0;
        if is_later {
            self.acknowledged = after;
        }
        is_later
    }

    /// Whether the oldest was overtaken.
    #[inline]
    pub(crate) fn has_overtaken(&self) -> bool {
        self.is_overtaken(Datagram(self.oldest))
    }

    /// Whether this one was overtaken.
    #[inline]
    pub(crate) fn is_overtaken(&self, datagram: Datagram) -> bool {
        self.acknowledged.wrapping_sub(datagram.0) as i32 > OVERTAKEN_BY as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_under_way_until_all_its_requests_were_acknowledged() {
        let mut flight = Flight::new(4);
        let one = flight.add_request(7);
        assert_eq!(flight.add_request(7), one);
        let other = flight.add_request(8);
        assert_ne!(other, one);
        assert_eq!(flight.under_way(), 2);
        flight.remove_request(one);
        assert_eq!(flight.under_way(), 2);
        flight.remove_request(one);
        flight.remove_request(other);
        assert_eq!(flight.under_way(), 0);
    }

    #[test]
    fn a_datagram_that_three_later_ones_pass_is_overtaken() {
        let mut flight = Flight::new(8);
        let datagrams: Vec<_> = (1..=5).map(|posted| flight.add_request(posted)).collect();
        for &later in &datagrams[1..4] {
            assert!(!flight.has_overtaken());
            assert!(flight.acknowledge(later));
            flight.remove_request(later);
        }
        assert!(flight.has_overtaken() && flight.is_overtaken(datagrams[0]));
        assert!(!flight.is_overtaken(datagrams[4]));
        assert!(!flight.acknowledge(datagrams[2]), "a later one was");
        flight.remove_request(datagrams[0]);
        assert!(!flight.has_overtaken());
    }

    #[test]
    fn numbers_wrap_and_are_not_used_twice() {
        let mut flight = Flight::new(4);
        for posted in 1..1000 {
            let datagram = flight.add_request(posted);
            assert!(flight.has_room());
            assert!(flight.acknowledge(datagram));
            flight.remove_request(datagram);
            assert!(!flight.has_overtaken());
        }
        let stuck = flight.add_request(1000);
        let mut posted = 1001;
        while flight.has_room() {
            let datagram = flight.add_request(posted);
            assert_ne!(datagram, stuck);
            flight.remove_request(datagram);
            posted += 1;
        }
        flight.remove_request(stuck);
        assert!(flight.has_room());
    }
}
