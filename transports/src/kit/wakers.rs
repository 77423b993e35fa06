//! What calls for those that sleep, by their numbers.

use std::task::Waker;

/// The wakers of some sleepers.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Vec<Option<Waker>>);

impl Wakers {
    /// This one calls for who has that number.
    pub(crate) fn set(&mut self, number: u32, waker: &Waker) {
        let number = number as usize;
        if self.0.len() <= number {
            self.0.resize(number + 1, None);
        }
        let known = &mut self.0[number];
        if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Nobody has that number any more.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(waker) = self.0.get_mut(number as usize) {
            *waker = None;
        }
    }

    /// Any number that has one.
    pub(crate) fn any(&self) -> Option<u32> {
        self.0.iter().position(Option::is_some).map(|number| number as u32)
    }

    /// `false`: there is none of that number.
    pub(crate) fn call(&self, number: u32) -> bool {
        let waker = self.0.get(number as usize).and_then(Option::as_ref);
        waker.into_iter().for_each(Waker::wake_by_ref);
        waker.is_some()
    }

    pub(crate) fn call_all(&self) {
        self.0.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Whether there is one of that number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.0.get(number as usize).is_some_and(Option::is_some)
    }
}
