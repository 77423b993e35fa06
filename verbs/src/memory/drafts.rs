//! Filling published buffers with streaming stores.

use std::fmt;

use crate::memory::bytes::copy_streaming;
use crate::memory::stores::{CHOICE_BYTES, StoreChoice, Stores};
use crate::{Buffer, Device};

/// Longer messages do not fit the caches of either side, so the kind of store makes no difference.
const LONGEST_BYTES: usize = 8 << 20;

/// Fills published buffers that a peer has read before. The peer still has their lines in its caches, and
/// an ordinary store would fetch every line back. Where it is cheaper, the content is written to private
/// memory first and copied from there with streaming stores.
pub struct Drafts {
    device: Device,
    choice: StoreChoice,
    scratch: Vec<u8>,
    open: Option<Open>,
}

/// A message that is being written.
struct Open {
    stores: Stores,
    begin_ns: u64,
    /// The published buffer it is written for.
    start: *const u8,
}

// SAFETY: `start` is only compared, never dereferenced.
unsafe impl Send for Drafts {}

impl Drafts {
    /// Creates drafts for buffers of this device.
    pub fn new(device: &Device) -> Drafts {
        Drafts {
            device: device.clone(),
            choice: StoreChoice::default(),
            scratch: Vec::new(),
            open: None,
        }
    }

    /// Returns memory as long as `buffer` to fill; its initial content is arbitrary. Only one message can be
    /// open at a time: the last one opened.
    pub fn open<'a>(&'a mut self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        let len = buffer.len();
        self.open = None;
        if !(CHOICE_BYTES..=LONGEST_BYTES).contains(&len) || buffer.remote().is_none() {
            return buffer;
        }
        let (stores, start) = (self.choice.next(), buffer.as_ptr());
        self.open = Some(Open { stores, begin_ns: self.device.now_ns(), start });
        match stores {
            Stores::Ordinary => buffer,
            Stores::Streaming => {
                if self.scratch.len() < len {
                    self.scratch.resize(len, 0);
                }
                &mut self.scratch[..len]
            }
        }
    }

    /// Publishes what was written to the memory that [`open`](Drafts::open) returned for this buffer. If the
    /// buffer has been shortened since, only that much is copied.
    ///
    /// # Panics
    /// If the buffer has grown meanwhile.
    pub fn publish(&mut self, buffer: &mut Buffer) {
        let Some(open) = self.open.take().filter(|open| open.start == buffer.as_ptr()) else {
            return;
        };
        let len = buffer.len();
        if open.stores == Stores::Streaming {
            let filled = &self.scratch[..len];
            // SAFETY: both have `len` bytes and are exclusively ours. A peer that reads the buffer meanwhile gets a
            // mixture of old and new bytes.
            unsafe { copy_streaming(buffer.as_mut_ptr(), filled.as_ptr(), len) };
        }
        self.choice.record(open.stores, len, self.device.now_ns() - open.begin_ns);
    }
}

impl fmt::Debug for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drafts").field("choice", &self.choice).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_published_whichever_way_it_takes() {
        let device = Device::open("shm").unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut drafts = Drafts::new(&device);
        let mut ways = [0, 0];
        for (round, len) in
            [100, CHOICE_BYTES, 100_001, CHOICE_BYTES + 64].iter().cycle().take(1600).enumerate()
        {
            let mut buffer = pd.alloc_published(200_000).unwrap().into_buffer();
            buffer.set_len(*len);
            let first = buffer.as_ptr();
            let bytes = drafts.open(&mut buffer);
            ways[usize::from(bytes.as_ptr() == first)] += 1;
            bytes.fill(round as u8);
            drafts.publish(&mut buffer);
            assert!(buffer.iter().all(|byte| *byte == round as u8), "round {round}, {len} bytes");
        }
        assert!(ways[0] > 0 && ways[1] > 0, "both ways were tried: {ways:?}");
    }
}
