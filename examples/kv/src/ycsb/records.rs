//! The records of a run: their keys and possible values.

use std::io::Write;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::keys::{ZIPFIAN_CONSTANT, fnv_hash64};
use super::stamp::{self, STAMP_BYTES, Stamp, Unsealed};

/// The writer of records that were loaded before the clients started.
pub const LOADER: u32 = 0;

/// The prefix of keys of generated records.
pub const KEY_PREFIX: &str = "user";

/// The distribution of the length of a field.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum FieldLengthDistribution {
    /// Always the given length.
    #[default]
    Constant,
    /// Uniform from 1 byte to the given length.
    Uniform,
    /// Zipfian from 1 byte to the given length: short fields are more likely.
    Zipfian,
}

/// The shape of generated records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fields {
    /// The number of fields.
    pub count: u32,
    /// The largest length of a field.
    pub length: u32,
    /// The distribution of the length.
    pub distribution: FieldLengthDistribution,
}

impl Default for Fields {
    /// The default of the original: 10 fields of 100 bytes.
    fn default() -> Self {
        Self { count: 10, length: 100, distribution: FieldLengthDistribution::Constant }
    }
}

/// The content of the records.
#[derive(Clone, Debug)]
enum Content {
    /// Random fields, as in the original.
    Generated(Fields),
    /// The lines of a text: record `i` is line `i + 1`, including its line end.
    Lines(Text),
}

/// A text and the offsets of its lines; the last offset is its end.
#[derive(Clone, Debug)]
struct Text {
    bytes: Arc<[u8]>,
    starts: Arc<[usize]>,
}

impl Text {
    fn new(bytes: Arc<[u8]>) -> Self {
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let mut starts: Vec<usize> = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        if starts.last() != Some(&bytes.len()) {
            starts.push(bytes.len());
        }
        Self { bytes, starts: starts.into() }
    }

    fn lines(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    /// A line with its end, numbered from 0.
    fn line(&self, number: u64) -> Option<&[u8]> {
        let number = usize::try_from(number).ok()?;
        Some(&self.bytes[*self.starts.get(number)?..*self.starts.get(number + 1)?])
    }
}

/// The records of one run.
#[derive(Clone, Debug)]
pub struct Records {
    run: u64,
    loaded: u64,
    content: Content,
}

impl Records {
    /// `loaded` generated records, and those inserted after them.
    #[must_use]
    pub fn generated(run: u64, loaded: u64, fields: Fields) -> Self {
        Self { run, loaded, content: Content::Generated(fields) }
    }

    /// One record per line of `text`: its number is the key, the line the value.
    #[must_use]
    pub fn lines(run: u64, text: impl Into<Arc<[u8]>>) -> Self {
        let text = Text::new(text.into());
        Self { run, loaded: text.lines(), content: Content::Lines(text) }
    }

    /// The number of records before the clients start.
    #[must_use]
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Writes the key of `record` into `key`.
    pub fn key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        let written = match self.content {
            // As in the original with `insertorder=hashed`.
            Content::Generated(_) => write!(key, "{KEY_PREFIX}{}", fnv_hash64(record)),
            Content::Lines(_) => write!(key, "{}", record + 1),
        };
        written.expect("a vector takes any bytes");
    }

    /// Writes the value of `writer`'s write number `version` to `record` into `value`.
    ///
    /// A loaded line is unchanged; every other value carries a stamp.
    pub fn value(&self, record: u64, writer: u32, version: u32, value: &mut Vec<u8>) {
        value.clear();
        let stamp = Stamp { run: self.run, record, writer, version };
        match &self.content {
            Content::Generated(fields) => generate(fields, stamp, value),
            Content::Lines(text) => {
                let line = text.line(record).unwrap_or(b"a record beyond the text\n");
                value.extend_from_slice(line);
                if writer == LOADER {
                    return;
                }
            }
        }
        stamp::seal(value, stamp);
    }

    /// Identifies the write of `record`'s value, if all its bytes are right.
    ///
    /// # Errors
    /// If this run did not write the value for this record.
    pub fn recognize(&self, record: u64, value: &[u8]) -> Result<(u32, u32), Unrecognized> {
        if let Content::Lines(text) = &self.content
            && text.line(record) == Some(value)
        {
            return Ok((LOADER, 1));
        }
        let (payload, stamp) = stamp::open(value)?;
        if stamp.run != self.run {
            return Err(Unrecognized::OtherRun);
        }
        if stamp.record != record {
            return Err(Unrecognized::OtherRecord { record: stamp.record });
        }
        if let Content::Lines(text) = &self.content
            && text.line(record) != Some(payload)
        {
            return Err(Unrecognized::OtherPayload);
        }
        Ok((stamp.writer, stamp.version))
    }
}

/// Why this run did not write a value for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrecognized {
    /// Its bytes were never written.
    #[error(transparent)]
    Unsealed(#[from] Unsealed),
    /// It is intact, but of another run.
    #[error("another run wrote it")]
    OtherRun,
    /// It is intact, but of another record.
    #[error("it belongs to record {record}")]
    OtherRecord {
        /// The other record.
        record: u64,
    },
    /// Its stamp is valid, but its payload is not the record's.
    #[error("its payload is another")]
    OtherPayload,
}

/// Generates the fields of a record. With its stamp, the value is as long as its fields, if they are
/// long enough to contain the stamp.
fn generate(fields: &Fields, stamp: Stamp, value: &mut Vec<u8>) {
    let seed = fnv_hash64(stamp.run ^ stamp.record.rotate_left(32))
        ^ (u64::from(stamp.writer) << 32 | u64::from(stamp.version));
    let mut rng = SmallRng::seed_from_u64(seed);
    let length = f64::from(fields.length.max(1));
    let zipf = Zipf::new(length, ZIPFIAN_CONSTANT).expect("at least one, a positive constant");
    let mut one_field = || match fields.distribution {
        FieldLengthDistribution::Constant => fields.length as usize,
        FieldLengthDistribution::Uniform => rng.random_range(1..=fields.length.max(1)) as usize,
        FieldLengthDistribution::Zipfian => zipf.sample(&mut rng) as usize,
    };
    let total: usize = (0..fields.count).map(|_| one_field()).sum();
    value.resize(total.saturating_sub(STAMP_BYTES), 0);
    rng.fill_bytes(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_into_lines_without_loss() {
        for text in [&b""[..], b"one", b"one\n", b"one\n\ntwo\r\n\xff", b"\n\n"] {
            let records = Records::lines(1, text);
            let mut whole = Vec::new();
            let mut value = Vec::new();
            for record in 0..records.loaded() {
                records.value(record, LOADER, 1, &mut value);
                assert!(!value.is_empty());
                whole.extend_from_slice(&value);
                assert_eq!(records.recognize(record, &value), Ok((LOADER, 1)));
                records.value(record, 3, 9, &mut value);
                assert_eq!(records.recognize(record, &value), Ok((3, 9)));
            }
            assert_eq!(whole, text);
        }
    }

    #[test]
    fn keys_are_those_of_the_original_or_line_numbers() {
        let mut key = Vec::new();
        Records::generated(1, 10, Fields::default()).key(0, &mut key);
        assert_eq!(key, b"user6284781860667377211");
        Records::lines(1, &b"a\nb\n"[..]).key(1, &mut key);
        assert_eq!(key, b"2");
    }

    #[test]
    fn generated_records_are_as_long_as_their_fields() {
        let mut value = Vec::new();
        Records::generated(1, 10, Fields::default()).value(3, 1, 1, &mut value);
        assert_eq!(value.len(), 1000);
        for distribution in [FieldLengthDistribution::Uniform, FieldLengthDistribution::Zipfian] {
            let records = Records::generated(1, 10, Fields { count: 5, length: 40, distribution });
            for version in 1..100 {
                records.value(3, 1, version, &mut value);
                assert!((STAMP_BYTES..=200).contains(&value.len()));
            }
        }
        let tiny = Fields { count: 1, length: 1, ..Fields::default() };
        Records::generated(1, 10, tiny).value(3, 1, 1, &mut value);
        assert_eq!(value.len(), STAMP_BYTES);
    }

    #[test]
    fn a_value_of_another_record_run_or_line_is_refused() {
        let records = Records::generated(1, 10, Fields::default());
        let mut value = Vec::new();
        records.value(3, 1, 1, &mut value);
        assert_eq!(records.recognize(4, &value), Err(Unrecognized::OtherRecord { record: 3 }));
        Records::generated(2, 10, Fields::default()).value(4, 1, 1, &mut value);
        assert_eq!(records.recognize(4, &value), Err(Unrecognized::OtherRun));

        let records = Records::lines(1, &b"one\ntwo\n"[..]);
        Records::lines(1, &b"one\nTwo\n"[..]).value(1, 1, 1, &mut value);
        assert_eq!(records.recognize(1, &value), Err(Unrecognized::OtherPayload));
        assert!(matches!(records.recognize(1, b"one\n"), Err(Unrecognized::Unsealed(_))));
    }
}
