//! The text form of a store: one entry a line, `KEY<TAB>VALUE`.
//!
//! Every byte string has exactly one written form, and reading it gives the bytes back. Tab, line feed,
//! carriage return and backslash are written `\t
//!  \r
//! \\`; other control characters, and bytes that are not UTF-8, are written `\xHH`; the rest is written as it is. A reader also accepts any unescaped byte except a tab, `\xHH`
//! for any byte, and lines that end in CR LF.

use std::io::{self, BufRead, Read, Write};

use thiserror::Error;

use crate::limits::{KvError, MAX_KEY_BYTES, MAX_VALUE_BYTES, check_key, check_value};

/// The longest line that can hold an entry: every byte written `\xHH`, the tab, CR and LF.
const MAX_LINE_BYTES: usize = 4 * (MAX_KEY_BYTES + MAX_VALUE_BYTES) + 3;

/// One line's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, 1 byte to 16 MiB.
    pub key: Vec<u8>,
    /// The value, 1 byte to 16 MiB.
    pub value: Vec<u8>,
}

/// Why a line is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// There is no tab.
    #[error("no tab; a line is KEY<TAB>VALUE")]
    NoTab,
    /// There is more than one tab.
    #[error("more than one tab; a line is KEY<TAB>VALUE, and a tab inside either is written \\t")]
    ManyTabs,
    /// A backslash does not start a valid escape.
    #[error("column {column}: {found} is no escape; there are \\t \\n \\r \\\\ and \\xHH")]
    BadEscape {
        /// The column of the backslash, counted in bytes from 1.
        column: usize,
        /// What was found there.
        found: String,
    },
    /// The store would refuse the key or value.
    #[error("{0}")]
    Refused(#[from] KvError),
    /// The line is longer than any entry.
    #[error("longer than {MAX_LINE_BYTES} bytes, the longest an entry can be")]
    TooLong,
}

/// Reads entries line by line, each bounded in memory.
pub struct Reader<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    max_line: usize,
}

impl<R: BufRead> Reader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0, bytes: 0, max_line: MAX_LINE_BYTES }
    }

    /// The number of the line read last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many bytes of the input were read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line's entry, or why the line is not valid, after which reading can continue; `None` at the
    /// end.
    ///
    /// # Errors
    /// If the input cannot be read.
    pub fn read(&mut self) -> io::Result<Option<Result<Entry, LineError>>> {
        self.line.clear();
        let mut bounded = (&mut self.input).take(self.max_line as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        if self.line.last() != Some(&b'\n') && read > self.max_line {
            self.line = Vec::new();
            self.bytes += skip_line(&mut self.input)?;
            return Ok(Some(Err(LineError::TooLong)));
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok(Some(parse(line)))
    }
}

fn skip_line(input: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            return Ok(skipped);
        }
        let (used, found) = match chunk.iter().position(|&byte| byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (chunk.len(), false),
        };
        input.consume(used);
        skipped += used as u64;
        if found {
            return Ok(skipped);
        }
    }
}

/// Parses a line without its end.
///
/// # Errors
/// Why it is not valid.
pub fn parse(line: &[u8]) -> Result<Entry, LineError> {
    let tab = line.iter().position(|&byte| byte == b'\t').ok_or(LineError::NoTab)?;
    let (key, value) = (&line[..tab], &line[tab + 1..]);
    if value.contains(&b'\t') {
        return Err(LineError::ManyTabs);
    }
    let key = unescape(key, 0)?;
    let value = unescape(value, tab + 1)?;
    check_key(&key)?;
    check_value(&value)?;
    Ok(Entry { key, value })
}

fn unescape(field: &[u8], offset: usize) -> Result<Vec<u8>, LineError> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(plain) = field[at..].iter().position(|&byte| byte == b'\\') {
        bytes.extend_from_slice(&field[at..at + plain]);
        at += plain;
        let (byte, used) = unescape_one(&field[at..]).ok_or_else(|| LineError::BadEscape {
            column: offset + at + 1,
            found: String::from_utf8_lossy(&field[at..field.len().min(at + 4)]).into_owned(),
        })?;
        bytes.push(byte);
        at += used;
    }
    bytes.extend_from_slice(&field[at..]);
    Ok(bytes)
}

/// The byte of the escape at the start, and the escape's length.
fn unescape_one(escape: &[u8]) -> Option<(u8, usize)> {
    match *escape.get(1)? {
        b't' => Some((b'\t', 2)),
        b'n' => Some((b'\n', 2)),
        b'r' => Some((b'\r', 2)),
        b'\\' => Some((b'\\', 2)),
        b'x' => {
            let high = char::from(*escape.get(2)?).to_digit(16)?;
            let low = char::from(*escape.get(3)?).to_digit(16)?;
            Some(((high * 16 + low) as u8, 4))
        }
        _ => None,
    }
}

/// Writes an entry as a line.
///
/// # Errors
/// If the output cannot be written.
pub fn write_entry(out: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
    write_escaped(out, key)?;
    out.write_all(b"\t")?;
    write_escaped(out, value)?;
    out.write_all(b"\n")
}

/// Writes a byte string in its text form.
///
/// # Errors
/// If the output cannot be written.
pub fn write_escaped(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        let text = chunk.valid();
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            if !c.is_control() && c != '\\' {
                continue;
            }
            let end = at + c.len_utf8();
            out.write_all(&text.as_bytes()[plain..at])?;
            plain = end;
            match c {
                '\t' => out.write_all(b"\\t")?,
                '\n' => out.write_all(b"\\n")?,
                '\r' => out.write_all(b"\\r")?,
                '\\' => out.write_all(b"\\\\")?,
                _ => write_hex(out, &text.as_bytes()[at..end])?,
            }
        }
        out.write_all(&text.as_bytes()[plain..])?;
        write_hex(out, chunk.invalid())?;
    }
    Ok(())
}

fn write_hex(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_entry(&mut out, key, value).unwrap();
        out
    }

    fn read_all(text: &[u8]) -> Vec<(u64, Result<Entry, LineError>)> {
        let mut reader = Reader::new(text);
        let mut all = Vec::new();
        while let Some(line) = reader.read().unwrap() {
            all.push((reader.number(), line));
        }
        assert_eq!(reader.bytes(), text.len() as u64);
        all
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 1..64),
            prop::collection::vec(prop::sample::select(b"\t\n\r\\xn0a".to_vec()), 1..16),
            ".{1,32}".prop_map(String::into_bytes).prop_filter("not empty", |b| !b.is_empty()),
        ]
    }

    proptest! {
        #[test]
        fn every_byte_string_survives_writing_and_reading(entries in prop::collection::vec((bytes(), bytes()), 0..8)) {
            let text: Vec<u8> = entries.iter().flat_map(|(k, v)| written(k, v)).collect();
            let read = read_all(&text);
            prop_assert_eq!(read.len(), entries.len());
            for ((_, line), (key, value)) in read.into_iter().zip(entries) {
                prop_assert_eq!(line, Ok(Entry { key, value }));
            }
        }

        #[test]
        fn reading_any_text_does_not_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let lines = read_all(&text).len();
            prop_assert!(lines <= text.iter().filter(|&&b| b == b'\n').count() + 1);
        }

        #[test]
        fn the_written_form_is_one_line_of_printable_text(key in bytes(), value in bytes()) {
            let text = String::from_utf8(written(&key, &value)).unwrap();
            let line = text.strip_suffix('\n').unwrap();
            prop_assert_eq!(line.chars().filter(|c| c.is_control()).count(), 1);
        }
    }

    #[test]
    fn the_form_is_as_documented() {
        assert_eq!(
            written(b"a\tb\\c", b"\r\n\0\x7f\xffz\xc3\xa9\xc2\x85"),
            "a\\tb\\\\c\t\\r\\n\\x00\\x7f\\xffz\u{e9}\\xc2\\x85\n".as_bytes()
        );
    }

    #[test]
    fn a_bad_line_is_reported_and_the_next_is_read() {
        let text = b"good\t1\nnotab\n\nk\t\n\tv\na\tb\tc\nk\\q\tv\nk\tv\\x4\nlast\t2\r\nmore\t3";
        let lines = read_all(text);
        let why = |n: usize| lines[n - 1].1.clone().unwrap_err();
        assert_eq!(why(2), LineError::NoTab);
        assert_eq!(why(3), LineError::NoTab);
        assert_eq!(why(4), LineError::Refused(KvError::EmptyValue));
        assert_eq!(why(5), LineError::Refused(KvError::EmptyKey));
        assert_eq!(why(6), LineError::ManyTabs);
        assert_eq!(why(7), LineError::BadEscape { column: 2, found: "\\q".into() });
        assert_eq!(why(8), LineError::BadEscape { column: 4, found: "\\x4".into() });
        assert_eq!(lines[8].1, Ok(Entry { key: b"last".to_vec(), value: b"2".to_vec() }));
        assert_eq!(lines[9], (10, Ok(Entry { key: b"more".to_vec(), value: b"3".to_vec() })));
    }

    #[test]
    fn a_line_without_end_is_skipped_in_bounded_memory() {
        let text = b"aaaaaaaaaaaaaaaa\tbbbbbbbb\nk\tv\n";
        let mut reader = Reader { max_line: 8, ..Reader::new(&text[..]) };
        assert_eq!(reader.read().unwrap(), Some(Err(LineError::TooLong)));
        let entry = Entry { key: b"k".to_vec(), value: b"v".to_vec() };
        assert_eq!(reader.read().unwrap(), Some(Ok(entry)));
        assert_eq!(reader.read().unwrap(), None);
        assert_eq!((reader.number(), reader.bytes()), (2, text.len() as u64));
    }
}
