use farcall_verbs::{Access, Device};
use proptest::prelude::*;

use super::super::lines::{LINE_BYTES, MOST_LINES_PER_READ, Ring, ring_lines};
use super::*;

const WINDOW: u32 = 4;
const MOST: u32 = 3;
const SLOT: u32 = 1024;

/// A ring, and a reader of it.
struct Bench {
    region: farcall_verbs::SharedRegion,
    ring: Ring,
    reader: Reader,
}

fn places(first_word_first: bool) -> Places {
    Places { window: WINDOW, slot_bytes: SLOT, most_lines: MOST, first_word_first }
}

fn bench() -> Bench {
    bench_of(true)
}

fn bench_of(first_word_first: bool) -> Bench {
    let pd = Device::open("shm-plain").unwrap().alloc_pd().unwrap();
    let bytes = ring_lines(WINDOW, MOST) as usize * LINE_BYTES;
    let region = pd.alloc_shared(bytes, Access::REMOTE_READ).unwrap();
    let ring = Ring::new(region.clone(), WINDOW, MOST);
    Bench { region, ring, reader: Reader::new(&places(first_word_first)) }
}

impl Bench {
    /// One READ, and the messages that it brings; `None`: it has brought nothing.
    fn read(&mut self, outstanding: u32, spoil: impl Fn(&mut [u8])) -> Option<Vec<(u32, Vec<u8>)>> {
        let lines = self.post_read(outstanding);
        let mut bytes = self.lines(&lines);
        spoil(&mut bytes);
        self.finish_read(&mut bytes)
    }

    /// A READ during which the server leaves these messages. It sees the words of its lines in any order: those that are `late` after that, and the
    /// others before.
    fn read_during(&mut self, puts: &[(u32, Vec<u8>)], late: &[bool]) -> Vec<(u32, Vec<u8>)> {
        let lines = self.post_read(WINDOW);
        let mut bytes = self.lines(&lines);
        puts.iter().for_each(|(slot, message)| self.ring.put(*slot, message));
        let after = self.lines(&lines);
        let words = bytes.chunks_mut(8).zip(after.chunks(8)).zip(late.iter().cycle());
        words.filter(|(_, late)| **late).for_each(|((word, after), _)| word.copy_from_slice(after));
        self.finish_read(&mut bytes).unwrap_or_default()
    }

    fn post_read(&mut self, outstanding: u32) -> Range<u32> {
        self.reader.start();
        let read = self.reader.next(outstanding, 16 * LINE_BYTES, Instant::ZERO);
        let Some(Read::Lines(lines)) = read else { panic!("{read:?}") };
        lines
    }

    /// As they are now.
    fn lines(&self, lines: &Range<u32>) -> Vec<u8> {
        let mut bytes = vec![0; lines.len() * LINE_BYTES];
        self.region.copy_out(lines.start as usize * LINE_BYTES, &mut bytes);
        bytes
    }

    fn finish_read(&mut self, bytes: &mut [u8]) -> Option<Vec<(u32, Vec<u8>)>> {
        let (mut at, mut found) = (0, Vec::new());
        while let Some(message) = self.reader.next_message(bytes, &mut at).unwrap() {
            let Message::Here { slot, bytes: range } = message else { panic!("{message:?}") };
            found.push((slot, bytes[range].to_vec()));
        }
        let brought = self.reader.read_lines(found.len(), 1, Instant::ZERO);
        brought.then_some(found)
    }
}

proptest! {
    #[test]
    fn messages_of_all_lengths_come_in_order_lap_after_lap(
        lengths in prop::collection::vec(8..=168usize, 1..300),
        waiting in 1..=2 * WINDOW as usize,
    ) {
        let mut bench = bench();
        let message = |(index, len): (usize, &usize)| {
            (index as u32 % WINDOW, vec![index as u8; *len])
        };
        let messages: Vec<_> = lengths.iter().enumerate().map(message).collect();
        let mut read = Vec::new();
        for some in messages.chunks(waiting) {
            some.iter().for_each(|(slot, bytes)| bench.ring.put(*slot, bytes));
            let due = read.len() + some.len();
            for _ in 0..4 * waiting {
                read.extend(bench.read(WINDOW, |_| {}).unwrap_or_default());
            }
            prop_assert_eq!(read.len(), due);
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn messages_come_whole_and_in_order_whatever_words_a_read_sees_first(
        steps in prop::collection::vec(
            (prop::collection::vec(8..=168usize, 0..3), prop::collection::vec(any::<bool>(), 7..130)),
            1..150,
        ),
    ) {
        let mut bench = bench_of(false);
        let (mut left, mut read) = (Vec::new(), Vec::new());
        for (lengths, late) in &steps {
            // The ring has room for two messages of each slot.
            let room = read.len() + 2 * WINDOW as usize - left.len();
            let first = left.len();
            for len in lengths.iter().take(room) {
                left.push((left.len() as u32 % WINDOW, vec![1 + left.len() as u8; *len]));
            }
            read.extend(bench.read_during(&left[first..], late));
            prop_assert_eq!(&read[..], &left[..read.len()]);
        }
        for _ in 0..8 * WINDOW {
            read.extend(bench.read(WINDOW, |_| {}).unwrap_or_default());
        }
        prop_assert_eq!(read, left);
    }

    #[test]
    fn any_lines_are_messages_or_nothing(bytes: Vec<u8>) {
        let (mut bytes, mut at) = (bytes, 0);
        let mut reader = bench().reader;
        while let Ok(Some(Message::Here { bytes: range, .. })) = reader.next_message(&mut bytes, &mut at) {
            prop_assert!(range.end <= bytes.len() && at <= bytes.len());
        }
    }
}

#[test]
fn a_read_that_comes_too_early_brings_nothing() {
    let mut bench = bench();
    assert_eq!(bench.read(1, |_| {}), None);
    bench.ring.put(2, b"response");
    assert_eq!(bench.read(1, |_| {}), Some(vec![(2, b"response".to_vec())]));
    assert_eq!(bench.read(1, |_| {}), None);
}

#[test]
fn a_line_that_was_read_before_it_was_written_is_read_again() {
    let mut bench = bench();
    let long = [7; 150];
    bench.ring.put(1, &long);
    // The first READ asks for one line, the next for what the message has.
    assert_eq!(bench.read(1, |_| {}), Some(vec![]));
    for torn in 0..3 {
        let of_the_lap_before = |bytes: &mut [u8]| bytes[torn * LINE_BYTES..][..LINE_BYTES].fill(0);
        assert_eq!(bench.read(1, of_the_lap_before), None, "line {torn}");
    }
    assert_eq!(bench.read(1, |_| {}), Some(vec![(1, long.to_vec())]));
}

/// The READ has seen the first word of the line after the server stored it, and the rest before.
#[test]
fn a_line_of_which_the_first_word_is_new_is_whole_only_where_that_is_read_first() {
    let response = (2, b"response".to_vec());
    let mut first_word = vec![false; 8];
    first_word[0] = true;
    for first_word_first in [true, false] {
        let mut bench = bench_of(first_word_first);
        let torn = bench.read_during(std::slice::from_ref(&response), &first_word);
        match first_word_first {
            true => assert_eq!(torn, [(2, vec![0; 8])], "as such a device never reads it"),
            false => assert_eq!(torn, []),
        }
        let again = if first_word_first { None } else { Some(vec![response.clone()]) };
        assert_eq!(bench.read(1, |_| {}), again);
    }
}

/// The READ that takes some responses shows the next ones, so that these take one READ more, not two.
#[test]
fn a_read_takes_what_was_shown_and_shows_what_is_new() {
    let mut bench = bench_of(false);
    let responses = [0, 1, 2].map(|slot| (slot, vec![slot as u8; 8]));
    let all_late = [true];
    assert_eq!(bench.read_during(&responses[..1], &all_late), []);
    assert_eq!(bench.read_during(&responses[1..], &all_late), responses[..1]);
    assert_eq!(bench.read_during(&[], &all_late), responses[1..2]);
    assert_eq!(bench.read_during(&[], &all_late), responses[2..]);
}

#[test]
fn reads_grow_with_what_is_ready() {
    let mut bench = bench();
    for slot in 0..WINDOW {
        bench.ring.put(slot, b"response");
    }
    let brought: Vec<_> = (0..3).map(|_| bench.read(WINDOW, |_| {}).unwrap().len()).collect();
    assert_eq!(brought, [1, 2, 1]);
}

#[test]
fn a_long_response_is_read_from_its_own_place() {
    let mut bench = bench();
    bench.ring.put_elsewhere(3, 1000);
    bench.reader.start();
    assert_eq!(bench.reader.next(1, 64, Instant::ZERO), Some(Read::Lines(0..1)));
    let mut line = [0; LINE_BYTES];
    bench.region.copy_out(0, &mut line);
    assert_eq!(bench.reader.next_message(&mut line, &mut 0), Ok(Some(Message::Elsewhere)));
    assert!(bench.reader.read_lines(1, 0, Instant::ZERO));
    assert_eq!(bench.reader.next(1, 64, Instant::ZERO), Some(Read::Long { slot: 3, len: 1000 }));
    assert!(!bench.reader.has_no_long());
    bench.reader.read_long();
    assert!(bench.reader.has_no_long());
}

/// A device promises nothing of how it reads more.
#[test]
fn no_read_of_lines_is_longer_than_what_is_read_in_order() {
    let most = MOST_LINES_PER_READ;
    for device in ["shm", "shm-plain"] {
        let mtu = Device::open(device).unwrap().caps().mtu;
        assert!(most as usize * LINE_BYTES <= mtu, "{device}: {mtu}");
    }
    // As many were ready the last time as half of what is asked for now.
    for (asked, read) in [(most - 2, most - 2), (most, most), (most + 2, most), (1000, most)] {
        let mut reader = Reader::new(&Places { window: 1000, slot_bytes: 1 << 16, ..places(true) });
        reader.read_lines(asked as usize / 2, 1, Instant::ZERO);
        let next = reader.next(1000, 1 << 16, Instant::ZERO);
        assert_eq!(next, Some(Read::Lines(0..read)), "{asked}");
    }
}

/// A reader whose READs have taken so long, with one under way.
fn reading(round_trip_ns: u64) -> (Reader, Instant) {
    let mut reader = Reader::new(&places(true));
    let mut now = Instant::from_nanos(1);
    for _ in 0..100 {
        reader.start();
        assert!(reader.next(1, 16 * LINE_BYTES, now).is_some());
        now = now.saturating_add_nanos(round_trip_ns);
        reader.read_lines(1, 1, now);
    }
    assert!(matches!(reader.next(1, 16 * LINE_BYTES, now), Some(Read::Lines(_))));
    (reader, now)
}

#[test]
fn a_read_that_is_late_is_followed_by_probes_ever_later_and_not_for_ever() {
    let (mut reader, posted) = reading(100_000);
    let mut probed = Vec::new();
    for us in 0..20_000 {
        let now = posted.saturating_add_nanos(1000 * us);
        let next = reader.look_for_lost(now);
        if let Some(read) = reader.next(1, 16 * LINE_BYTES, now) {
            assert!(matches!(read, Read::Probe(_)), "{read:?}");
            probed.push(us);
        }
        assert_eq!(
            next == PollAt::OnEvent,
            probed.len() == MOST_PROBES && probed.last() != Some(&us)
        );
    }
    assert_eq!(probed, [400, 1200, 2800]);
}

#[test]
fn a_read_that_takes_as_long_as_others_is_not_probed() {
    for round_trip_ns in [1_000, 10_000, 1_000_000] {
        let (mut reader, posted) = reading(round_trip_ns);
        let now = posted.saturating_add_nanos((3 * round_trip_ns).max(40_000));
        assert!(matches!(reader.look_for_lost(now), PollAt::At(at) if at > now));
        assert_eq!(reader.next(1, 16 * LINE_BYTES, now), None);
    }
}

#[test]
fn a_request_whose_arrival_is_not_told_is_read_for_in_the_end() {
    let mut reader = Reader::new(&places(true));
    assert!(reader.begin());
    let begun = Instant::from_nanos(7_000_000);
    let late = reader.look_for_lost(begun);
    let PollAt::At(late) = late else { panic!("{late:?}") };
    assert!(!reader.must_read() && late > begun);
    reader.look_for_lost(late);
    assert!(matches!(reader.next(1, 16 * LINE_BYTES, late), Some(Read::Lines(_))));
}
