//! Fuzz targets of lines, which the server writes as it likes and the client fetches.

use bolero::check;

use super::*;
use crate::corpus::is_kept;
use crate::rfp::switch::Ask;

/// Any bytes are lines of another lap, or lines that are written as the same word, and the message at their front lies in them.
#[test]
fn any_bytes_are_lines_or_nothing() {
    check!().with_max_len(16 * LINE_BYTES).for_each(|bytes: &[u8]| {
        let Some(word) = bytes.first_chunk().copied().map(u64::from_le_bytes) else {
            return assert_eq!(Line::of_lap(bytes, 1), None);
        };
        let lap = word as u32;
        assert_eq!(Line::of_lap(bytes, lap.wrapping_add(1)), None);
        let line = Line::of_lap(bytes, lap).expect("of its own lap");
        let again = line.to_word(lap);
        let Line::First { len, .. } = line else {
            return assert_eq!(Line::of_lap(&again.to_le_bytes(), lap), Some(line));
        };
        assert_eq!(again, word);
        // The client has checked that as many lines were fetched.
        if lines_of(len as usize) as usize * LINE_BYTES <= bytes.len() {
            let mut lines = bytes.to_vec();
            let message = join(&mut lines, len as usize);
            assert_eq!(message.len(), len as usize);
            let payloads = bytes.chunks(LINE_BYTES).flat_map(|line| &line[WORD_BYTES..]);
            assert!(lines[message].iter().eq(payloads.take(len as usize)));
        }
    });
}

/// Any argument is what a client may ask, or nothing.
#[test]
fn any_argument_asks_for_something_or_nothing() {
    check!().with_type::<u32>().for_each(|argument| {
        let ask = Ask::from_wire(*argument);
        assert_eq!(
            ask.map(|ask| ask as u32),
            (*argument <= Ask::Drained as u32).then_some(*argument)
        );
    });
}

#[test]
fn the_corpus_has_lines_of_each_kind() {
    let lines = [
        ("first", Line::First { slot: 3, len: 130 }, 3),
        ("short", Line::First { slot: 0, len: 20 }, 1),
        ("rest", Line::Rest, 1),
        ("elsewhere", Line::Elsewhere { slot: 5, len: 5000 }, 1),
        ("skip", Line::Skip, 1),
    ];
    let inputs = lines.map(|(name, line, count)| {
        let mut bytes: Vec<u8> = (0..count * LINE_BYTES).map(|at| at as u8).collect();
        for (number, line) in [line, Line::Rest, Line::Rest].into_iter().take(count).enumerate() {
            let at = number * LINE_BYTES;
            bytes[at..at + WORD_BYTES].copy_from_slice(&line.to_word(4).to_le_bytes());
        }
        assert_eq!(Line::of_lap(&bytes, 4), Some(line));
        (name.to_owned(), bytes)
    });
    is_kept("src/rfp/lines", "rfp::lines::fuzz::any_bytes_are_lines_or_nothing", inputs);
}
