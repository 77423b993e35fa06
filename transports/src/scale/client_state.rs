//! Where the client leaves its requests: what the server says in, where requests go out.
//!
//! The paper's IDLE and WARM-UP are one state here, outside: they differ in whether the log has requests that the server has not
//! read.

/// The client's state.
#[derive(Debug)]
pub(super) struct ClientState {
    places: u32,
    place: Option<u32>,
    /// How often it was inside: it stamps its requests with that.
    epoch: u32,
    /// The server waits to hear that the place is left.
    must_confirm: bool,
}

impl ClientState {
    /// Outside a pool of so many places.
    pub(super) fn new(places: u32) -> ClientState {
        ClientState { places, place: None, epoch: 0, must_confirm: false }
    }

    /// The place into which requests are written: this group is served. Otherwise they go to the log.
    #[inline]
    pub(super) fn place(&self) -> Option<u32> {
        self.place
    }

    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The server gives this client a place. `false`: it must not.
    pub(super) fn enter(&mut self, place: u32) -> bool {
        if self.place.is_some() || self.must_confirm || place >= self.places {
            return false;
        }
        self.place = Some(place);
        self.epoch = self.epoch.wrapping_add(1);
        true
    }

    /// The server wants the place back. `false`: it must not.
    pub(super) fn stop(&mut self) -> bool {
        self.must_confirm = self.place.take().is_some();
        self.must_confirm
    }

    /// The server must be told that the place is left.
    #[inline]
    pub(super) fn must_confirm(&self) -> bool {
        self.must_confirm
    }

    /// The server is told.
    pub(super) fn confirm(&mut self) {
        self.must_confirm = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_enters_leaves_and_confirms_in_this_order() {
        let mut state = ClientState::new(4);
        assert!(!state.stop(), "it has no place");
        assert!(!state.enter(4), "there is no such place");
        assert!(state.enter(3) && !state.enter(2));
        assert_eq!((state.place(), state.epoch()), (Some(3), 1));
        assert!(state.stop() && state.must_confirm());
        assert_eq!(state.place(), None);
        assert!(!state.enter(1), "the server has not heard yet that it is outside");
        state.confirm();
        assert!(state.enter(1));
        assert_eq!(state.epoch(), 2);
    }
}
