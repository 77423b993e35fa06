//! What few slots of a window have.

/// Values by slot. It takes memory up to the highest slot that ever had one: most clients have none.
#[derive(Debug)]
pub(crate) struct BySlot<T> {
    used: Vec<Option<T>>,
    window: u32,
}

impl<T> BySlot<T> {
    /// For the slots of such a window.
    pub(crate) fn new(window: u32) -> BySlot<T> {
        BySlot { used: Vec::new(), window }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.used.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.used.get_mut(slot as usize)?.as_mut()
    }

    /// The slot has this from now on.
    ///
    /// # Panics
    /// The window has no such slot.
    pub(crate) fn put(&mut self, slot: u32, value: T) -> &mut T {
        let index = slot as usize;
        if index >= self.used.len() {
            assert!(slot < self.window, "slot {slot} of a window of {}", self.window);
            self.used.resize_with(index + 1, || None);
        }
        self.used[index].insert(value)
    }

    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> Option<T> {
        self.used.get_mut(slot as usize)?.take()
    }

    /// No slot has ever had one.
    #[cfg(test)]
    pub(crate) fn takes_no_memory(&self) -> bool {
        self.used.capacity() == 0
    }
}
