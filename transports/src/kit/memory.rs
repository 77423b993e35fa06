//! Private memory for messages larger than a slot: in sizes, reused, and bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use farcall_verbs::{Buffer, BufferPool, PrivateRegion, ProtectionDomain, VerbsError};

use super::counts;

/// When to look again for memory that comes back without an event.
pub(crate) const RETRY_NANOS: u64 = 200_000;

/// How many bytes, or whatever is counted, may be taken by all that share it.
///
/// Messages that have arrived, and that the program keeps, do not count, as long as they are no more than half of that: who keeps messages
/// does not keep others from arriving. What is beyond that is copied.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    kept: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit, used: AtomicU64::new(0), kept: AtomicU64::new(0) })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// What is taken now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` out of the budget until the charge is dropped.
    pub(crate) fn charge(self: &Arc<Budget>, bytes: u64) -> Option<Charge> {
        let limit = self.limit.saturating_add(self.kept.load(Ordering::Relaxed));
        // A plain counter: it orders nothing but itself.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .ok()?;
        Some(Charge { budget: Arc::clone(self), bytes })
    }

    /// Takes `bytes` out of the budget even if it does not have them: others wait until it has.
    pub(crate) fn charge_beyond(self: &Arc<Budget>, bytes: u64) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Charge { budget: Arc::clone(self), bytes }
    }
}

impl Budget {
    /// A whole message in memory of this budget, for the program, which may keep it: it is copied if the program keeps too many already.
    pub(crate) fn hand_over(
        self: &Arc<Budget>,
        message: impl AsRef<[u8]> + Send + 'static,
    ) -> Bytes {
        let bytes = message.as_ref().len() as u64;
        // One of any length may be kept.
        let keep =
            |kept: u64| (kept == 0 || kept + bytes <= self.limit / 2).then_some(kept + bytes);
        match self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep) {
            Ok(_) => Bytes::from_owner(Kept { message, budget: Arc::clone(self), bytes }),
            Err(_) => {
                counts::count_copied(bytes);
                Bytes::copy_from_slice(message.as_ref())
            }
        }
    }
}

/// A message that the program keeps.
struct Kept<M> {
    message: M,
    budget: Arc<Budget>,
    bytes: u64,
}

impl<M: AsRef<[u8]>> AsRef<[u8]> for Kept<M> {
    fn as_ref(&self) -> &[u8] {
        self.message.as_ref()
    }
}

impl<M> Drop for Kept<M> {
    fn drop(&mut self) {
        self.budget.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What was taken out of a [`Budget`]: it goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// It was taken out of this budget.
    pub(crate) fn is_of(&self, budget: &Arc<Budget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The size of buffer that `len` bytes get: few sizes, so that buffers are used again, and at most
/// a quarter more than asked (a power of two, or a multiple of a quarter of one, above 64 KiB).
pub(crate) fn size_class(len: usize) -> usize {
    let len = len.max(4096);
    if len <= 64 << 10 {
        return len.next_power_of_two();
    }
    let step = (len.next_power_of_two() / 8).max(4096);
    len.next_multiple_of(step)
}

/// Small sizes are allocated by the batch of this many bytes.
const BATCH_BYTES: usize = 256 << 10;

/// What peers may do with the buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Nothing.
    Private,
    /// READ those whose key they are told.
    Published,
}

/// Buffers for large messages. Each is used again after it was dropped; new memory is allocated
/// only while all of its size are out.
#[derive(Debug)]
pub(crate) struct LargeBuffers {
    pd: ProtectionDomain,
    exposure: Exposure,
    budget: Arc<Budget>,
    classes: Vec<Class>,
}

#[derive(Debug)]
struct Class {
    size: usize,
    pools: Vec<Pool>,
    /// Where the last buffer was found: the likeliest place of the next.
    recent: usize,
}

#[derive(Debug)]
struct Pool {
    buffers: BufferPool,
    count: usize,
    _charge: Charge,
}

impl LargeBuffers {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        exposure: Exposure,
        budget: &Arc<Budget>,
    ) -> LargeBuffers {
        LargeBuffers { pd: pd.clone(), exposure, budget: Arc::clone(budget), classes: Vec::new() }
    }

    /// What its memory is taken out of.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// A buffer of length `len`; `None` if the budget does not allow it now.
    pub(crate) fn take(&mut self, len: usize) -> Result<Option<Buffer>, VerbsError> {
        self.take_charged(len, |budget, bytes| budget.charge(bytes))
    }

    /// A buffer of length `len` whatever the budget says, for what must not wait.
    pub(crate) fn take_beyond(&mut self, len: usize) -> Result<Option<Buffer>, VerbsError> {
        self.take_charged(len, |budget, bytes| Some(budget.charge_beyond(bytes)))
    }

    /// A buffer of length `len` for a response; `None` if the budget or the device has none now.
    pub(crate) fn take_for_response(&mut self, len: usize) -> Option<Buffer> {
        self.take(len).unwrap_or_else(|error| {
            tracing::warn!(%error, len, "no memory for a large response");
            None
        })
    }

    fn take_charged(
        &mut self,
        len: usize,
        charge: impl Fn(&Arc<Budget>, u64) -> Option<Charge>,
    ) -> Result<Option<Buffer>, VerbsError> {
        let size = size_class(len);
        let at = match self.classes.iter().position(|class| class.size == size) {
            Some(at) => at,
            None => {
                self.classes.push(Class { size, pools: Vec::new(), recent: 0 });
                self.classes.len() - 1
            }
        };
        let class = &mut self.classes[at];
        let buffer = match class.take() {
            Some(buffer) => Some(buffer),
            None => {
                let count = (BATCH_BYTES / size).max(1);
                let Some(charge) = charge(&self.budget, (count * size) as u64) else {
                    return Ok(None);
                };
                let region = allocate(&self.pd, self.exposure, count * size)?;
                let buffers = region.into_pool(size);
                class.pools.push(Pool { buffers, count, _charge: charge });
                class.take()
            }
        };
        Ok(buffer.map(|mut buffer| {
            buffer.set_len(len);
            buffer
        }))
    }

    /// Frees what is not in use; `false` if all of it is.
    pub(crate) fn trim(&mut self) -> bool {
        let mut freed = false;
        for class in &mut self.classes {
            let before = class.pools.len();
            class.pools.retain(|pool| pool.buffers.available() < pool.count);
            freed |= class.pools.len() < before;
            class.recent = 0;
        }
        freed
    }
}

impl Class {
    fn take(&mut self) -> Option<Buffer> {
        for step in 0..self.pools.len() {
            let at = (self.recent + step) % self.pools.len();
            if let Some(buffer) = self.pools[at].buffers.take() {
                self.recent = at;
                return Some(buffer);
            }
        }
        None
    }
}

fn allocate(
    pd: &ProtectionDomain,
    exposure: Exposure,
    bytes: usize,
) -> Result<PrivateRegion, VerbsError> {
    match exposure {
        Exposure::Private => pd.alloc_private(bytes),
        Exposure::Published => pd.alloc_published(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_few_and_close() {
        for len in (1..4 << 20).step_by(997) {
            let size = size_class(len);
            assert!(size >= len && size.is_multiple_of(4096));
            assert!(len < 64 << 10 || size - len <= len / 4, "{len} in {size}");
            assert_eq!(size_class(size), size);
        }
    }

    #[test]
    fn who_keeps_messages_does_not_keep_others_from_arriving() {
        let budget = Budget::new(100);
        let messages: Vec<_> = (0..2).map(|_| budget.charge(50).unwrap()).collect();
        assert!(budget.charge(1).is_none());
        let [first, second] = [(); 2].map(|()| vec![7_u8; 40]);
        let place = first.as_ptr();
        let first = budget.hand_over(first);
        assert_eq!(first.as_ptr(), place, "it is where it arrived");
        let more = budget.charge(40).unwrap();
        assert!(budget.charge(1).is_none());
        let place = second.as_ptr();
        let second = budget.hand_over(second);
        assert_ne!(second.as_ptr(), place, "the program keeps too many");
        assert_eq!(first, second);
        drop((first, more, messages));
        assert_eq!((budget.kept.load(Ordering::Relaxed), budget.used()), (0, 0));
        let long = budget.hand_over(vec![7; 1000]);
        assert!(budget.charge(1000).is_some(), "one of any length is kept");
        drop(long);
    }

    #[test]
    fn a_budget_is_never_exceeded_and_comes_back() {
        let budget = Budget::new(100);
        let most = budget.charge(60).unwrap();
        assert!(budget.charge(41).is_none());
        assert!(budget.charge(u64::MAX).is_none());
        let rest = budget.charge(40).unwrap();
        drop(most);
        assert!(budget.charge(60).is_some());
        drop(rest);
    }
}
