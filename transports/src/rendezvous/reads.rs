//! A large request that the server reads where it is, in memory of its client's.

use farcall_verbs::{Buffer, RemoteRegion, RemoteSlice};

use super::wire::Here;

/// Parts of one request that are read at a time: enough to keep a link busy.
const PARTS_AT_A_TIME: u32 = 4;

/// A request that is read, in parts.
#[derive(Debug)]
pub(crate) struct IncomingRead {
    region: RemoteRegion,
    /// Bytes that were asked for.
    asked: u64,
    under_way: u32,
    /// What is still to be asked for.
    rest: Buffer,
    /// What is here: the front, and what has been read.
    filled: Option<Buffer>,
    given_up: bool,
}

/// What the arrival of a part came to.
#[derive(Debug)]
pub(crate) enum Read {
    /// More are to come.
    Partly,
    /// The request is whole.
    Whole(Buffer),
    /// It was given up, and nothing of it is under way any more.
    GivenUp,
}

impl IncomingRead {
    /// Into this memory, which is as long as the message.
    pub(crate) fn new(here: &Here, mut memory: Buffer) -> IncomingRead {
        let mut front = memory.split_to(here.front.len());
        front.copy_from_slice(&here.front);
        let (region, filled) = (here.region.into(), Some(front));
        IncomingRead { region, asked: 0, under_way: 0, rest: memory, filled, given_up: false }
    }

    /// The next part, of at most `most` bytes. `None`: all are asked for, or enough are under way.
    pub(crate) fn next(&mut self, most: u64) -> Option<(Buffer, RemoteSlice)> {
        let len = most.min(self.region.len - self.asked);
        if len == 0 || self.given_up || self.under_way == PARTS_AT_A_TIME {
            return None;
        }
        let remote = self.region.slice(self.asked, len).ok()?;
        self.asked += len;
        self.under_way += 1;
        Some((self.rest.split_to(len as usize), remote))
    }

    /// A part has been read; parts arrive in order.
    pub(crate) fn add(&mut self, part: Buffer) -> Read {
        self.under_way -= 1;
        match &mut self.filled {
            // Cut from one buffer, in order: they join again.
            Some(filled) => {
                let joined = filled.unsplit(part);
                debug_assert!(joined.is_ok());
            }
            None => self.filled = Some(part),
        }
        if self.given_up {
            return if self.under_way == 0 { Read::GivenUp } else { Read::Partly };
        }
        if self.asked < self.region.len || self.under_way > 0 {
            return Read::Partly;
        }
        self.filled.take().map_or(Read::Partly, Read::Whole)
    }

    /// It is not wanted any more. `false`: parts are still under way.
    pub(crate) fn give_up(&mut self) -> bool {
        self.given_up = true;
        self.under_way == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall_verbs::Device;

    const FRONT: [u8; 8] = *b"in front";

    fn read(len: u64) -> IncomingRead {
        let here = Here::new(&FRONT, RemoteRegion::new(4096, 7, len)).unwrap();
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let memory = pd.alloc_private(len as usize + FRONT.len()).unwrap().into_buffer();
        IncomingRead::new(&here, memory)
    }

    #[test]
    fn a_request_is_read_in_order_with_a_few_parts_under_way() {
        let mut read = read(1000);
        let mut under_way = std::collections::VecDeque::new();
        let mut offset = 0_u64;
        loop {
            while let Some((mut part, remote)) = read.next(150) {
                assert_eq!(remote.len(), part.len() as u64);
                part.fill((offset % 256) as u8);
                offset += remote.len();
                under_way.push_back(part);
            }
            assert!(under_way.len() <= PARTS_AT_A_TIME as usize);
            if let Read::Whole(whole) = read.add(under_way.pop_front().unwrap()) {
                assert_eq!((&whole[..8], whole.len()), (&FRONT[..], 1008));
                assert!(whole[8..158].iter().all(|byte| *byte == 0));
                return assert!(whole[158..308].iter().all(|byte| *byte == 150));
            }
        }
    }

    #[test]
    fn what_is_under_way_arrives_before_a_request_is_given_up() {
        let mut read = read(1000);
        let parts = [read.next(100), read.next(100)].map(|part| part.unwrap().0);
        assert!(!read.give_up() && read.next(100).is_none());
        let [first, second] = parts;
        assert!(matches!(read.add(first), Read::Partly));
        assert!(matches!(read.add(second), Read::GivenUp));
        assert!(self::read(10).give_up(), "nothing is under way");
    }
}
