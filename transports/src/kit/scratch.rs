//! Where messages are copied to out of memory that a peer can still write.

use bytes::BytesMut;
use farcall_core::transport::Message;
use farcall_verbs::{ReadAhead, SharedRegion};

/// Messages of at least this length are copied into memory that their receiver can keep; shorter ones are cheaper to copy again.
const KEPT_FROM_BYTES: usize = 1024;

/// Buffers of one size, which receivers may keep at the same time. Beyond that, each further message allocates one.
const MOST_BUFFERS: usize = 64;

/// Buffers that are looked at for one that its receiver has dropped.
const LOOKS: usize = 2;

/// Private memory for messages of one thread, up to the size of a slot.
#[derive(Debug)]
pub(crate) struct Scratch {
    short: Box<[u8]>,
    longest: usize,
    /// By the logarithm of their size.
    classes: Vec<Class>,
    /// Where the last message was: the next one comes there too, if one call is made after the other.
    expected: ReadAhead,
}

/// Buffers of one size. A buffer is used again when its receiver has dropped the last message that was in it.
#[derive(Debug, Default)]
struct Class {
    buffers: Vec<BytesMut>,
    /// The last that was used: the next message goes there too if it can, as its lines are warm.
    last: usize,
}

impl Scratch {
    /// For messages of at most `longest` bytes.
    pub(crate) fn new(longest: usize) -> Scratch {
        let expected = ReadAhead::default();
        Scratch { short: Box::default(), longest, classes: Vec::new(), expected }
    }

    /// An idle client has no memory for messages.
    #[cold]
    fn make_room(&mut self, len: usize) {
        self.short = vec![0; len].into();
    }

    /// Memory for a message that its receiver does not keep. `None` if it is longer than the longest.
    #[inline]
    pub(crate) fn borrowed(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.short.len() && len <= self.longest {
            self.make_room(self.longest);
        }
        self.short.get_mut(..len)
    }

    /// Copies a message out of a region. A long one can be kept by its receiver without another copy.
    ///
    /// # Panics
    /// If it is longer than the longest: what a peer says of its length is checked before.
    #[inline]
    pub(crate) fn copy_out(&mut self, region: &SharedRegion, at: usize, len: usize) -> Message<'_> {
        if len >= KEPT_FROM_BYTES {
            return self.copy_out_long(region, at, len);
        }
        if len > self.short.len() {
            self.make_room(self.longest.min(KEPT_FROM_BYTES));
        }
        self.expected = region.read_ahead(at, len);
        let message = &mut self.short[..len];
        region.copy_out(at, message);
        Message::Borrowed(message)
    }

    /// Nothing has arrived: starts to fetch what is expected next.
    #[inline]
    pub(crate) fn read_ahead(&self) {
        self.expected.fetch();
    }

    #[inline(never)]
    fn copy_out_long(&mut self, region: &SharedRegion, at: usize, len: usize) -> Message<'static> {
        self.expected = ReadAhead::default();
        assert!(
            len <= self.longest,
            "a length of {len} is out of range: slots have {}",
            self.longest
        );
        let class = len.next_power_of_two().trailing_zeros() as usize;
        if class >= self.classes.len() {
            self.classes.resize_with(class + 1, Class::default);
        }
        let buffer = self.classes[class].take(len);
        region.append_to(at, len, buffer);
        Message::Owned(buffer.split().freeze())
    }
}

impl Class {
    /// An empty buffer with room for `len` bytes, which are more than half of what the class has room for.
    #[inline]
    fn take(&mut self, len: usize) -> &mut BytesMut {
        for step in 0..LOOKS.min(self.buffers.len()) {
            let at = (self.last + step) % self.buffers.len();
            if self.buffers[at].try_reclaim(len) {
                self.last = at;
                return &mut self.buffers[at];
            }
        }
        self.add(len)
    }

    /// All that are looked at are kept by receivers: adds as many as there are, so that this is soon over.
    #[cold]
    fn add(&mut self, len: usize) -> &mut BytesMut {
        let new = || BytesMut::with_capacity(len.next_power_of_two());
        let count = self.buffers.len();
        if count < MOST_BUFFERS {
            // Behind the last, so that the others are looked at in the order in which they were used.
            let behind = (self.last + 1).min(count);
            self.buffers.splice(behind..behind, std::iter::repeat_with(new).take(count.max(1)));
            self.last = behind;
        } else {
            self.last = (self.last + 1) % count;
            self.buffers[self.last] = new();
        }
        &mut self.buffers[self.last]
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use farcall_verbs::{Access, Device};

    use super::*;

    /// A region with these bytes.
    fn region(bytes: &[u8]) -> SharedRegion {
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let region = pd.alloc_shared(bytes.len(), Access::REMOTE_WRITE).unwrap();
        region.copy_in(0, bytes);
        region
    }

    fn kept(message: Message<'_>) -> Bytes {
        match message {
            Message::Owned(bytes) => bytes,
            Message::Borrowed(_) => panic!("it cannot be kept"),
        }
    }

    #[test]
    fn a_message_that_is_dropped_gives_its_memory_to_the_next() {
        let (region, mut scratch) = (region(&[7; 4096]), Scratch::new(4096));
        let first = kept(scratch.copy_out(&region, 0, 4096)).as_ptr();
        for _ in 0..1000 {
            assert_eq!(kept(scratch.copy_out(&region, 0, 4096)).as_ptr(), first);
        }
    }

    #[test]
    fn a_message_that_is_kept_is_not_overwritten() {
        let bytes: Vec<u8> = (0..8192u32).map(|at| (at / 7) as u8).collect();
        let (region, mut scratch) = (region(&bytes), Scratch::new(4096));
        let ranges = (0..3 * MOST_BUFFERS).map(|at| (at * 13, 1024 + at * 11));
        let messages: Vec<_> =
            ranges.map(|(at, len)| (at, len, kept(scratch.copy_out(&region, at, len)))).collect();
        for (at, len, message) in messages {
            assert_eq!(message, bytes[at..at + len], "{at}, {len}");
        }
    }

    #[test]
    fn a_window_of_kept_messages_goes_round_without_new_memory() {
        let (region, mut scratch) = (region(&[7; 2048]), Scratch::new(2048));
        let mut window = std::collections::VecDeque::new();
        let mut places = std::collections::HashSet::new();
        for turn in 0..10 * MOST_BUFFERS {
            if window.len() == MOST_BUFFERS / 2 {
                window.pop_front();
            }
            let message = kept(scratch.copy_out(&region, 0, 2048));
            let is_new = places.insert(message.as_ptr());
            assert!(!is_new || turn < MOST_BUFFERS, "turn {turn}");
            window.push_back(message);
        }
    }

    #[test]
    fn short_messages_are_borrowed() {
        let (region, mut scratch) = (region(&[7; 2048]), Scratch::new(2048));
        let message = scratch.copy_out(&region, 0, KEPT_FROM_BYTES - 1);
        assert!(matches!(message, Message::Borrowed(bytes) if bytes == [7; KEPT_FROM_BYTES - 1]));
        assert_eq!(scratch.borrowed(2048).map(|bytes| bytes.len()), Some(2048));
    }

    #[test]
    fn the_buffer_behind_the_last_is_taken_if_the_last_is_kept() {
        let buffers = vec![BytesMut::with_capacity(1024), BytesMut::with_capacity(1024)];
        let mut class = Class { buffers, last: 0 };
        let first = class.take(1024);
        first.extend_from_slice(&[7; 1024]);
        let _kept = first.split();
        class.take(1024);
        assert_eq!((class.last, class.buffers.len()), (1, 2));
    }
}
