//! The records that a run works on: their keys, and what may stand in them.

use std::io::Write;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::keys::{ZIPFIAN_CONSTANT, fnv_hash64};
use super::stamp::{self, STAMP_BYTES, Stamp, Unsealed};

/// Who wrote a record before the clients started.
pub const LOADER: u32 = 0;

/// What the keys of generated records begin with.
pub const KEY_PREFIX: &str = "user";

/// How long a field of a generated record is.
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
    /// 1 byte to the given length, each as likely.
    Uniform,
    /// 1 byte to the given length, short ones more likely.
    Zipfian,
}

/// The shape of generated records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fields {
    /// How many fields a record has.
    pub count: u32,
    /// How long a field is at most.
    pub length: u32,
    /// How long it is.
    pub distribution: FieldLengthDistribution,
}

impl Default for Fields {
    /// The original's: 10 fields of 100 bytes.
    fn default() -> Self {
        Self { count: 10, length: 100, distribution: FieldLengthDistribution::Constant }
    }
}

/// What the records hold.
#[derive(Clone, Debug)]
enum Content {
    /// Random fields, as in the original.
    Generated(Fields),
    /// The lines of a text: record `i` is line `i + 1`, with its line end.
    Lines(Text),
}

/// A text, and where its lines start; the last entry is where it ends.
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

    /// A line with its end, counted from 0.
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

    /// One record for each line of `text`: its number is the key, the line the value.
    #[must_use]
    pub fn lines(run: u64, text: impl Into<Arc<[u8]>>) -> Self {
        let text = Text::new(text.into());
        Self { run, loaded: text.lines(), content: Content::Lines(text) }
    }

    /// How many records there are before the clients start.
    #[must_use]
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Writes the key of `record` into `key`.
    pub fn key(&self, record: u64, key: &mut Vec<u8>) {
        key.clear();
        let written = match self.content {
            // As the original with `insertorder=hashed`.
            Content::Generated(_) => write!(key, "{KEY_PREFIX}{}", fnv_hash64(record)),
            Content::Lines(_) => write!(key, "{}", record + 1),
        };
        written.expect("a vector takes any bytes");
    }

    /// Writes into `value` what `writer` puts into `record` with its write number `version`.
    ///
    /// A line is loaded as it is; everything else carries a stamp.
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

    /// Which write the value of `record` comes from, if all of its bytes are right.
    ///
    /// # Errors
    /// The value is not one that this run wrote for this record.
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

/// Why a value is none that this run wrote for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrecognized {
    /// Its bytes are not those that anyone wrote.
    #[error(transparent)]
    Unsealed(#[from] Unsealed),
    /// It is whole, but another run's.
    #[error("another run wrote it")]
    OtherRun,
    /// It is whole, but another record's.
    #[error("it belongs to record {record}")]
    OtherRecord {
        /// That record.
        record: u64,
    },
    /// It is whole, but its payload is not the record's.
    #[error("its payload is another")]
    OtherPayload,
}

/// The fields of a generated record; with its stamp it is as long as its fields, where they leave
/// room for one.
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
    fn a_text_gives_its_lines_and_they_give_it_back() {
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
    fn keys_are_the_originals_or_line_numbers() {
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
    fn a_value_of_another_record_run_or_line_is_not_recognized() {
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
