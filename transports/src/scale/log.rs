//! The client's log of requests, out of which the server READs them while another group is served.
//!
//! The log is a ring of pages in the client's memory. Requests stand there one behind the other, each behind a word with its
//! slot and length; none crosses the end of a page. Both ends count the bytes from the beginning of the connection on. The
//! client says how far the log has grown, and the server READs up to there, page by page.
//!
//! The log is never overwritten too early. At most a window of calls are outstanding, and a call of which the server has read
//! nothing is one of them. Requests of a window fill at most as many pages, and begin in one more.

use std::collections::VecDeque;

use farcall_verbs::{Buffer, RemoteRegion, RemoteSlice, SharedRegion};

use crate::contract::Terms;
use crate::rendezvous::server::Misbehaved;
use crate::slots::carrier::Waiting;
use crate::slots::cells::Trailer;
use crate::slots::link::stride;

const WORD_BYTES: usize = 8;

/// Pages that the server reads ahead.
const MOST_AHEAD: usize = 4;

/// How a log is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogLayout {
    page: u64,
    pages: u64,
}

impl LogLayout {
    pub(super) fn new(terms: &Terms) -> LogLayout {
        LogLayout { page: stride(terms.slot).into(), pages: u64::from(terms.window) + 2 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.page * self.pages
    }

    /// Where a position is in memory.
    fn offset(&self, position: u64) -> u64 {
        position % self.bytes()
    }

    /// Where the page of a position ends.
    fn page_end(&self, position: u64) -> u64 {
        position - position % self.page + self.page
    }
}

/// The log, as the client fills it.
#[derive(Debug)]
pub(super) struct LogWriter {
    region: SharedRegion,
    layout: LogLayout,
    end: u64,
    announced: u64,
    /// The slot of the last request, and where the log ended before it.
    last: Option<(u32, u64)>,
}

impl LogWriter {
    pub(super) fn new(region: SharedRegion, layout: LogLayout) -> LogWriter {
        debug_assert!(region.len() as u64 >= layout.bytes());
        LogWriter { region, layout, end: 0, announced: 0, last: None }
    }

    /// Adds the request of a slot.
    pub(super) fn append(&mut self, slot: u32, message: &[u8]) {
        let bytes = WORD_BYTES + message.len().next_multiple_of(WORD_BYTES);
        let page_end = self.layout.page_end(self.end);
        self.last = Some((slot, self.end));
        if bytes as u64 > page_end - self.end {
            self.store(self.end, 0, 0);
            self.end = page_end;
        }
        self.store(self.end, slot, message.len() as u32);
        self.region.copy_in(self.layout.offset(self.end) as usize + WORD_BYTES, message);
        self.end += bytes as u64;
    }

    /// Takes the last request back, if it is of this slot and the server does not know of it.
    pub(super) fn withdraw(&mut self, slot: u32) -> bool {
        let Some((_, end)) = self.last.take_if(|(last, _)| *last == slot) else { return false };
        self.end = end;
        true
    }

    /// Nothing of this length begins here if it is 0: the rest of the page is empty.
    fn store(&self, at: u64, slot: u32, len: u32) {
        let word = Trailer { number: 0, operations: 0, slot, len }.to_word();
        self.region.store_release_u64(self.layout.offset(at) as usize, word.to_le());
    }

    /// The server does not know yet how far the log has grown.
    #[inline]
    pub(super) fn must_announce(&self) -> bool {
        self.announced != self.end
    }

    /// How far the log has grown, for the server.
    pub(super) fn announce(&mut self) -> [u8; WORD_BYTES] {
        (self.announced, self.last) = (self.end, None);
        self.end.to_le_bytes()
    }
}

/// What the server has read of a log.
#[derive(Debug)]
pub(super) struct LogReader {
    region: RemoteRegion,
    layout: LogLayout,
    /// How far it has grown, by the client's word.
    announced: u64,
    fetched: u64,
    taken: u64,
    is_fetching: bool,
    ahead: VecDeque<Page>,
    /// Pages of which all was taken.
    empty: Vec<Buffer>,
}

#[derive(Debug)]
struct Page {
    bytes: Buffer,
    at: usize,
}

impl LogReader {
    pub(super) fn new(region: RemoteRegion, layout: LogLayout) -> LogReader {
        LogReader {
            region,
            layout,
            announced: 0,
            fetched: 0,
            taken: 0,
            is_fetching: false,
            ahead: VecDeque::with_capacity(MOST_AHEAD),
            empty: Vec::with_capacity(MOST_AHEAD),
        }
    }

    /// How far the log has grown, as far as is known.
    pub(super) fn announced(&self) -> u64 {
        self.announced
    }

    /// Requests up to here were taken.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Requests of the log are not taken yet.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.taken != self.announced
    }

    /// The client says how far its log has grown.
    ///
    /// # Errors
    /// It cannot have grown so far.
    pub(super) fn grow(&mut self, end: u64) -> Result<(), Misbehaved> {
        let is_possible = end >= self.announced
            && end - self.taken <= self.layout.bytes()
            && end.is_multiple_of(WORD_BYTES as u64);
        if !is_possible {
            return Err("a log that grows beyond its memory");
        }
        self.announced = end;
        Ok(())
    }

    /// What to READ next. Once it is posted, [`begin`](LogReader::begin).
    #[inline]
    pub(super) fn next(&self) -> Option<RemoteSlice> {
        if self.fetched == self.announced || self.is_fetching || self.ahead.len() == MOST_AHEAD {
            return None;
        }
        let to = self.announced.min(self.layout.page_end(self.fetched));
        let RemoteRegion { addr, rkey, .. } = self.region;
        let at = addr.wrapping_add(self.layout.offset(self.fetched));
        Some(RemoteSlice::new(at, rkey, to - self.fetched))
    }

    /// A READ of this is under way.
    pub(super) fn begin(&mut self, read: &RemoteSlice) {
        self.is_fetching = true;
        self.fetched += read.len();
    }

    /// It has arrived.
    pub(super) fn arrived(&mut self, bytes: Buffer) {
        self.is_fetching = false;
        self.ahead.push_back(Page { bytes, at: 0 });
        self.finish_pages();
    }

    /// The next request, if it has arrived.
    #[inline]
    pub(super) fn waiting(&self) -> Option<Waiting> {
        let Page { bytes, at } = self.ahead.front()?;
        let word = bytes.get(*at..).and_then(|rest| rest.first_chunk()).copied();
        let Trailer { slot, len, .. } = Trailer::from_word(u64::from_le_bytes(word?));
        Some(Waiting { slot, len })
    }

    /// Takes the message of the next request, as private bytes. `None` if it is longer than what was read.
    pub(super) fn take<'a>(&mut self, request: Waiting, scratch: &'a mut [u8]) -> Option<&'a [u8]> {
        let Page { bytes, at } = self.ahead.front_mut()?;
        let len = request.len as usize;
        let message = bytes.get(*at + WORD_BYTES..)?.get(..len)?;
        let into = scratch.get_mut(..len)?;
        into.copy_from_slice(message);
        let used = WORD_BYTES + len.next_multiple_of(WORD_BYTES);
        *at += used;
        self.taken += used as u64;
        self.finish_pages();
        Some(into)
    }

    /// Goes on to the next request, past pages whose rest is empty.
    fn finish_pages(&mut self) {
        while let Some(Page { bytes, at }) = self.ahead.front() {
            let rest = bytes.len().saturating_sub(*at);
            if rest > 0 && self.waiting().is_some_and(|request| request.len > 0) {
                return;
            }
            self.taken += rest as u64;
            self.empty.extend(self.ahead.pop_front().map(|page| page.bytes));
        }
    }

    /// The buffer of a page of which all was taken.
    #[inline]
    pub(super) fn take_empty(&mut self) -> Option<Buffer> {
        self.empty.pop()
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::{Access, Device};
    use proptest::prelude::*;

    use super::*;

    const TERMS: Terms = Terms { window: 3, slot: 64, max_message: 1 << 20 };

    /// A log, its reader, and what the device does between them.
    struct Ends {
        writer: LogWriter,
        reader: LogReader,
        buffers: farcall_verbs::BufferPool,
    }

    impl Ends {
        fn new() -> Ends {
            let layout = LogLayout::new(&TERMS);
            let pd = Device::open("shm-plain").unwrap().alloc_pd().unwrap();
            let region = pd.alloc_shared(layout.bytes() as usize, Access::REMOTE_READ).unwrap();
            let remote = region.remote();
            let size = stride(TERMS.slot) as usize;
            let buffers = pd.alloc_private(8 * size).unwrap().into_pool(size);
            let (writer, reader) = (LogWriter::new(region, layout), LogReader::new(remote, layout));
            Ends { writer, reader, buffers }
        }

        fn read(&mut self) -> bool {
            let Some(slice) = self.reader.next() else { return false };
            let at = self.reader.layout.offset(self.reader.fetched);
            self.reader.begin(&slice);
            let mut buffer = self.buffers.take().unwrap();
            buffer.set_len(slice.len() as usize);
            self.writer.region.copy_out(at as usize, &mut buffer);
            self.reader.arrived(buffer);
            true
        }

        fn take(&mut self) -> Option<(u32, Vec<u8>)> {
            let waiting = self.reader.waiting()?;
            let mut scratch = [0; 64];
            let message = self.reader.take(waiting, &mut scratch).unwrap().to_vec();
            self.reader.take_empty();
            Some((waiting.slot, message))
        }
    }

    proptest! {
        #[test]
        fn requests_come_out_in_order_and_whole(lens in prop::collection::vec(8..50usize, 1..60)) {
            let mut ends = Ends::new();
            for (number, window) in lens.chunks(TERMS.window as usize).enumerate() {
                for (slot, len) in window.iter().enumerate() {
                    ends.writer.append(slot as u32, &vec![number as u8; *len]);
                }
                let end = ends.writer.announce();
                ends.reader.grow(u64::from_le_bytes(end)).unwrap();
                for (slot, len) in window.iter().enumerate() {
                    while ends.reader.waiting().is_none() {
                        prop_assert!(ends.read());
                    }
                    prop_assert_eq!(ends.take(), Some((slot as u32, vec![number as u8; *len])));
                }
                prop_assert!(!ends.reader.has_more() && !ends.writer.must_announce());
            }
        }

        #[test]
        fn any_bytes_are_requests_or_refused(bytes: Vec<u8>) {
            let mut ends = Ends::new();
            let len = (bytes.len() / 8 * 8).min(stride(TERMS.slot) as usize);
            ends.writer.region.copy_in(0, &bytes[..len]);
            ends.reader.grow(len as u64).unwrap();
            ends.read();
            let mut scratch = [0; 64];
            while let Some(waiting) = ends.reader.waiting() {
                if ends.reader.take(waiting, &mut scratch).is_none() {
                    return Ok(());
                }
                ends.reader.take_empty();
            }
            prop_assert!(!ends.reader.has_more());
        }
    }

    #[test]
    fn only_the_last_request_is_taken_back_before_the_server_knows_of_it() {
        let mut ends = Ends::new();
        ends.writer.append(0, &[1; 8]);
        ends.writer.append(1, &[2; 8]);
        assert!(!ends.writer.withdraw(0) && ends.writer.withdraw(1) && !ends.writer.withdraw(1));
        ends.writer.append(2, &[3; 8]);
        let end = ends.writer.announce();
        ends.reader.grow(u64::from_le_bytes(end)).unwrap();
        assert!(!ends.writer.withdraw(2));
        assert!(ends.read());
        assert_eq!((ends.take(), ends.take()), (Some((0, vec![1; 8])), Some((2, vec![3; 8]))));
    }

    #[test]
    fn a_log_does_not_grow_beyond_its_memory_nor_back() {
        let mut reader = Ends::new().reader;
        let all = reader.layout.bytes();
        for wrong in [all + 8, u64::MAX - 7, 4] {
            assert!(reader.grow(wrong).is_err(), "{wrong}");
        }
        reader.grow(all).unwrap();
        assert!(reader.grow(all - 8).is_err());
    }
}
