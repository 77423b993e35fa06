//! Private memory for large messages: bounded, and reused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::kit::memory::{Budget, Charge, size_class};

/// Buffers that are kept for the next messages of their size.
const MAX_IDLE: usize = 8;

/// A larger buffer is not kept.
const MAX_IDLE_BYTES: usize = 16 << 20;

/// By how much a buffer for a message that arrives grows at least: the peer's claim of a length alone gets no memory.
const LEAST_GROWTH_BYTES: usize = 1 << 20;

/// Buffers within a budget. Clones share the budget and the buffers.
#[derive(Debug, Clone)]
pub(super) struct Buffers {
    budget: Arc<Budget>,
    idle: Arc<Mutex<Vec<Memory>>>,
}

/// A buffer for one message; its memory goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    /// `None` only while it is dropped.
    memory: Option<Memory>,
    /// Bytes of the message.
    len: usize,
    home: Arc<Mutex<Vec<Memory>>>,
}

#[derive(Debug)]
struct Memory {
    /// All of it is initialized; it may be shorter than the class.
    bytes: Vec<u8>,
    /// What it may grow to, and is charged for.
    class: usize,
    _charge: Charge,
}

fn lock(idle: &Mutex<Vec<Memory>>) -> MutexGuard<'_, Vec<Memory>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffers {
    pub(super) fn new(budget: &Arc<Budget>) -> Buffers {
        let idle = Arc::new(Mutex::new(Vec::with_capacity(MAX_IDLE)));
        Buffers { budget: Arc::clone(budget), idle }
    }

    /// A buffer for a message of `len` bytes; `None` if the budget does not allow it now.
    pub(super) fn take(&self, len: usize) -> Option<Buffer> {
        self.take_charged(len, |budget, bytes| budget.charge(bytes))
    }

    /// A buffer for a message of `len` bytes whatever the budget says, for what must not wait.
    pub(super) fn take_beyond(&self, len: usize) -> Option<Buffer> {
        self.take_charged(len, |budget, bytes| Some(budget.charge_beyond(bytes)))
    }

    fn take_charged(
        &self,
        len: usize,
        charge: impl Fn(&Arc<Budget>, u64) -> Option<Charge>,
    ) -> Option<Buffer> {
        let class = size_class(len);
        let mut idle = lock(&self.idle);
        let memory = match idle.iter().rposition(|memory| memory.class == class) {
            Some(at) => idle.swap_remove(at),
            None => {
                let of_class = |budget| charge(budget, class as u64);
                let charge = of_class(&self.budget).or_else(|| {
                    idle.clear();
                    of_class(&self.budget)
                })?;
                Memory { bytes: Vec::new(), class, _charge: charge }
            }
        };
        drop(idle);
        Some(Buffer { memory: Some(memory), len, home: Arc::clone(&self.idle) })
    }

    /// A whole message of these, for the program.
    pub(super) fn hand_over(&self, message: Buffer) -> Bytes {
        self.budget.hand_over(message)
    }

    /// Frees what is not in use; `false` if all of it is.
    pub(super) fn trim(&self) -> bool {
        let mut idle = lock(&self.idle);
        let freed = !idle.is_empty();
        idle.clear();
        freed
    }
}

impl Buffer {
    /// Bytes of the message.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes the message shorter.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The whole message, to be filled.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.grow(self.len);
        let len = self.len;
        match &mut self.memory {
            Some(memory) => &mut memory.bytes[..len],
            None => &mut [],
        }
    }

    /// The bytes from `filled` on, as far as there is memory for them: at least one, unless that is the end.
    pub(super) fn room(&mut self, filled: usize) -> &mut [u8] {
        self.grow(self.len.min(filled + filled.max(LEAST_GROWTH_BYTES)));
        let len = self.len;
        match &mut self.memory {
            Some(memory) => {
                let end = memory.bytes.len().min(len);
                &mut memory.bytes[filled..end]
            }
            None => &mut [],
        }
    }

    fn grow(&mut self, len: usize) {
        let Some(memory) = &mut self.memory else { return };
        if memory.bytes.is_empty() {
            // Zeroed pages come from the system without being touched.
            memory.bytes = vec![0; len];
        } else if memory.bytes.len() < len {
            memory.bytes.reserve_exact(len - memory.bytes.len());
            memory.bytes.resize(len, 0);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory.bytes[..self.len])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = lock(&self.home);
        if memory.bytes.len() <= MAX_IDLE_BYTES && idle.len() < MAX_IDLE {
            idle.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_length_gets_memory_as_its_bytes_arrive() {
        let buffers = Buffers::new(&Budget::new(2 << 30));
        let mut buffer = buffers.take(1 << 30).unwrap();
        assert_eq!(buffer.room(0).len(), LEAST_GROWTH_BYTES);
        let mut filled = 0;
        while filled < 10 << 20 {
            filled += buffer.room(filled).len();
        }
        assert!(buffer.as_ref_len() < 64 << 20, "at most twice of what has arrived");
        assert_eq!(buffer.len(), 1 << 30);
    }

    #[test]
    fn memory_is_charged_until_it_is_trimmed_and_reused_before() {
        let budget = Budget::new(100_000);
        let buffers = Buffers::new(&budget);
        let mut first = buffers.take(60_000).unwrap();
        first.bytes_mut().fill(7);
        assert!(buffers.take(60_000).is_none(), "the budget is taken");
        drop(first);
        let mut again = buffers.take(60_001).unwrap();
        assert_eq!(again.bytes_mut()[..60_000], [7; 60_000], "the same memory");
        drop(again);
        assert!(buffers.take(90_000).is_some(), "idle memory makes room for another size");
        assert!(buffers.trim());
    }

    #[test]
    fn what_must_not_wait_may_exceed_the_budget() {
        let buffers = Buffers::new(&Budget::new(10));
        assert!(buffers.take(5_000).is_none());
        assert_eq!(buffers.take_beyond(5_000).unwrap().bytes_mut().len(), 5_000);
    }

    impl Buffer {
        fn as_ref_len(&self) -> usize {
            self.memory.as_ref().map_or(0, |memory| memory.bytes.len())
        }
    }
}
