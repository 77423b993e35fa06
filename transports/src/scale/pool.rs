//! The message pool: places that clients use in turn.
//!
//! A place has a cell for each call of the largest window. Which client it belongs to changes with the slices; the latest that
//! became free is given away first, as its lines are in the last-level cache.

use farcall_verbs::{SharedRegion, SharedSlice};
use serde::{Deserialize, Serialize};

use super::wire::MAX_PLACES;
use crate::contract::Terms;
use crate::slots::cells::trailer_at;
use crate::slots::link::stride;

/// Most bytes of a pool, unless one place is larger.
const MOST_BYTES: u64 = 64 << 20;

/// Behind the places: into these bytes each client writes once, before its first request. A device that maps memory when it is
/// first used has then done so while the server answers.
pub(super) const SPARE_BYTES: u64 = 64;

/// How a pool is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PoolLayout {
    pub(super) places: u32,
    /// Bytes from one place to the next.
    pub(super) place_bytes: u64,
    /// Bytes from one cell to the next.
    pub(super) cell_bytes: u32,
}

impl PoolLayout {
    /// With `wanted` places, or fewer if they would be too large together, for clients with at most these terms.
    pub(super) fn new(wanted: u32, most: &Terms) -> PoolLayout {
        let cell_bytes = stride(most.slot);
        let place_bytes = u64::from(most.window) * u64::from(cell_bytes);
        let fit = MOST_BYTES / place_bytes;
        let places = u64::from(wanted.min(MAX_PLACES)).min(fit).max(1);
        PoolLayout { places: places as u32, place_bytes, cell_bytes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.spare_at() + SPARE_BYTES
    }

    /// Cells of a place.
    fn cells(&self) -> u32 {
        (self.place_bytes / u64::from(self.cell_bytes)) as u32
    }

    /// The memory of a place.
    pub(super) fn place(&self, pool: &SharedRegion, place: u32) -> SharedSlice {
        let at = u64::from(place) * self.place_bytes;
        pool.slice(at as usize, self.place_bytes as usize)
    }

    /// Where the spare bytes are.
    pub(super) fn spare_at(&self) -> u64 {
        u64::from(self.places) * self.place_bytes
    }

    /// Whether a client with these terms can use such a pool of so many bytes.
    pub(super) fn is_possible(&self, terms: &Terms, bytes: u64) -> bool {
        let least = u64::from(terms.window) * u64::from(self.cell_bytes);
        (1..=MAX_PLACES).contains(&self.places)
            && self.cell_bytes >= stride(terms.slot)
            && self.place_bytes >= least
            && self
                .place_bytes
                .checked_mul(self.places.into())
                .and_then(|all| all.checked_add(SPARE_BYTES))
                .is_some_and(|all| all <= bytes)
    }

    /// Where a cell of a place ends in the pool.
    #[inline]
    pub(super) fn cell_end(&self, place: u32, cell: u32) -> u64 {
        u64::from(place) * self.place_bytes + u64::from(cell + 1) * u64::from(self.cell_bytes)
    }
}

/// The places that nobody has.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) region: SharedRegion,
    layout: PoolLayout,
    free: Vec<u32>,
}

impl Pool {
    pub(super) fn new(region: SharedRegion, layout: &PoolLayout) -> Pool {
        Pool { region, layout: *layout, free: (0..layout.places).rev().collect() }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Nothing more lands in this place, and only so many of its cells were used. Their trailers are cleared: the stamp of a request
    /// that is landing comes before its trailer, and must not meet that of an earlier one.
    pub(super) fn give_back(&mut self, place: u32, used: u32) {
        debug_assert!(!self.free.contains(&place));
        for cell in 0..used.min(self.layout.cells()) {
            let end = self.layout.cell_end(place, cell) as usize;
            self.region.store_release_u64(trailer_at(end), 0);
        }
        self.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::{Access, Device};

    use super::super::stamp::{self, Expected};
    use super::*;
    use crate::slots::carrier::Waiting;
    use crate::slots::cells::Trailer;

    const TERMS: Terms = Terms { window: 64, slot: 4096, max_message: 1 << 20 };

    #[test]
    fn a_pool_is_bounded_and_has_a_place_at_least() {
        let usual = PoolLayout::new(120, &TERMS);
        assert_eq!((usual.places, usual.cell_bytes), (120, 4160));
        assert!(usual.is_possible(&TERMS, usual.bytes()));
        assert!(!usual.is_possible(&TERMS, usual.bytes() - 1));
        let larger = Terms { window: 1024, slot: 1 << 20, ..TERMS };
        assert_eq!(PoolLayout::new(120, &larger).places, 1);
        assert!(!usual.is_possible(&larger, u64::MAX), "cells for smaller slots");
        assert!(!PoolLayout { places: 0, ..usual }.is_possible(&TERMS, u64::MAX));
        assert!(!PoolLayout { place_bytes: u64::MAX, ..usual }.is_possible(&TERMS, u64::MAX));
    }

    #[test]
    fn a_stamp_that_lands_before_its_trailer_does_not_meet_an_earlier_trailer() {
        let layout = PoolLayout::new(1, &TERMS);
        let pd = Device::open("shm-plain").unwrap().alloc_pd().unwrap();
        let region = pd.alloc_shared(layout.bytes() as usize, Access::REMOTE_WRITE).unwrap();
        let mut pool = Pool::new(region.clone(), &layout);
        let expected =
            |client, number| Expected { stamp: stamp::of(client, 1), number, operations: 0 };
        // Each client sends as many requests as there are cells. Of each, all but the last word lands, and then that word.
        for client in 1..4 {
            let place = pool.take().unwrap();
            for cell in 0..TERMS.window {
                let expected = expected(client, cell as u16 + 1);
                let mut request = [client as u8; 64];
                let trailer =
                    Trailer { number: expected.number, operations: 0, slot: cell, len: 20 };
                let sealed = stamp::seal(&mut request, 20, expected.stamp, trailer);
                let end = layout.cell_end(place, cell) as usize;
                let (front, last) = request[..sealed].split_at(trailer_at(sealed));
                region.copy_in(end - sealed, front);
                assert_eq!(stamp::look(&region, end, &expected), None, "an earlier trailer");
                region.copy_in(trailer_at(end), last);
                let landed = Some(Waiting { slot: cell, len: 20 });
                assert_eq!(stamp::look(&region, end, &expected), landed);
            }
            pool.give_back(place, TERMS.window + 1);
        }
    }

    #[test]
    fn cells_do_not_overlap() {
        let layout = PoolLayout::new(4, &TERMS);
        assert_eq!(layout.cell_end(0, 0), u64::from(layout.cell_bytes));
        let last = layout.cell_end(2, 63);
        assert_eq!(layout.cell_end(3, 0) - last, u64::from(layout.cell_bytes));
        assert_eq!(layout.cell_end(3, 63), layout.spare_at());
    }
}
