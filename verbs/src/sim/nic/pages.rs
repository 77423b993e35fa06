//! The share of the last-level cache that NICs write into (DDIO), in pages.

/// The written pages that are in the cache.
#[derive(Debug, Default)]
pub(super) struct Pages {
    cached: Vec<u64>,
    /// For each page, its possible location in the cache.
    places: Vec<u32>,
    random: u32,
}

const PAGE_BYTES: u64 = 4096;

impl Pages {
    /// Writes `len` bytes at `offset` of the node's memory. Returns how many pages were not in the cache.
    #[inline]
    pub(super) fn write(&mut self, offset: u64, len: u64, capacity: u32) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE_BYTES, (offset + len - 1) / PAGE_BYTES);
        if self.places.len() <= last as usize {
            self.places.resize(last as usize + 1, u32::MAX);
        }
        (first..=last).filter(|page| !self.touch(*page, capacity)).count() as u64
    }

    #[inline]
    fn touch(&mut self, page: u64, capacity: u32) -> bool {
        let place = &mut self.places[page as usize];
        if self.cached.get(*place as usize) == Some(&page) {
            return true;
        }
        // While there is room, a page that was never written costs nothing: nothing has to be written back.
        if self.cached.len() < capacity as usize {
            *place = self.cached.len() as u32;
            self.cached.push(page);
            return true;
        }
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *place = ((u64::from(self.random) * u64::from(capacity)) >> 32) as u32;
        if let Some(cached) = self.cached.get_mut(*place as usize) {
            *cached = page;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_fits_is_missed() {
        let mut pages = Pages::default();
        let mut turn =
            |count: u64| (0..count).map(|page| pages.write(page << 12, 64, 100)).sum::<u64>();
        assert_eq!(turn(100) + turn(100), 0);
        let missed = (0..20).map(|_| turn(200)).sum::<u64>();
        assert!((2800..3600).contains(&missed), "{missed} of 4000");
    }

    #[test]
    fn a_write_across_pages_writes_to_each() {
        let mut pages = Pages::default();
        assert_eq!(pages.write(4000, 200, 1), 1, "the first has room, the second takes its place");
        assert_eq!(pages.write(0, 0, 1), 0);
    }
}
