//! Clients that have connected, and wait until their handshake may begin.

use std::collections::VecDeque;

use rustix::process::{Resource, getrlimit};

use crate::contract::{CountsBySource, Source};

/// Most clients that wait: enough for all clients of a usual server that come at once, and few enough that counting them is
/// quick.
const MOST: usize = 1024;

/// Of the descriptors that this process may have, they take no more than one in so many.
const SHARE_OF_DESCRIPTORS: u64 = 4;

/// As many as may wait in this process.
pub(super) fn most() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(MOST).clamp(1, MOST)
}

/// A queue that is fair to the sources of its clients: no source keeps another one out of it, or waiting in it.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    clients: VecDeque<(Source, T)>,
    most: usize,
}

impl<T> Waiting<T> {
    /// For so many, at least one.
    pub(super) fn new(most: usize) -> Waiting<T> {
        Waiting { clients: VecDeque::new(), most }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Puts a client at the end. If that is one too many, gives the last one of the source that has most.
    pub(super) fn push(&mut self, source: Source, client: T) -> Option<T> {
        self.clients.push_back((source, client));
        if self.clients.len() <= self.most {
            return None;
        }
        let counts: CountsBySource = self.clients.iter().map(|(source, _)| *source).collect();
        let count_of = |(source, _): &(Source, T)| counts.of(*source);
        let most = self.clients.iter().map(count_of).max()?;
        let last = self.clients.iter().rposition(|client| count_of(client) == most)?;
        self.clients.remove(last).map(|(_, client)| client)
    }

    /// Takes the next client: one of the source with fewest handshakes under way, of these the one that came first. `under_way`
    /// tells how many a source has, or `None` if it may have no more.
    pub(super) fn pop(&mut self, under_way: impl Fn(Source) -> Option<usize>) -> Option<T> {
        let sources = self.clients.iter().enumerate();
        let next = sources.filter_map(|(index, (source, _))| Some((under_way(*source)?, index)));
        let (_, index) = next.min()?;
        self.clients.remove(index).map(|(_, client)| client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: Source = Source::Process(1);
    const OTHER: Source = Source::Process(2);

    #[test]
    fn a_source_that_fills_the_queue_keeps_no_other_out() {
        let mut waiting = Waiting::new(3);
        for client in 0..3 {
            assert_eq!(waiting.push(CROWD, client), None);
        }
        assert_eq!(waiting.push(CROWD, 3), Some(3), "its own last one");
        assert_eq!(waiting.push(OTHER, 4), Some(2), "the last one of the crowd");
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop(|_| Some(0))).collect();
        assert_eq!(order, [0, 1, 4]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn the_source_with_fewest_handshakes_is_next() {
        let mut waiting = Waiting::new(8);
        for (source, client) in [(CROWD, 0), (CROWD, 1), (OTHER, 2)] {
            waiting.push(source, client);
        }
        let of_crowd = |count| move |source| Some(if source == CROWD { count } else { 0 });
        assert_eq!(waiting.pop(of_crowd(1)), Some(2));
        assert_eq!(waiting.pop(|_| None), None, "it may have no more");
        assert_eq!(waiting.pop(of_crowd(1)), Some(0));
    }
}
