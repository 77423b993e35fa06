//! The text that the demo loads.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

/// Used if no file is given.
const WORD_LIST: &str = "/usr/share/dict/words";

/// The most bytes loaded of a larger file.
const MAX_TEXT_BYTES: usize = 64 << 20;
const MAX_TEXT_LINES: usize = 1_000_000;
const SMALL_TEXT_LINES: usize = 5_000;

/// Keeps a line with its stamp well below the limit of values.
const MAX_LINE_BYTES: usize = 1 << 20;

/// This program's own source: a text that is always available.
const OWN_SOURCE: &[&str] = &[
    include_str!("../../lib.rs"),
    include_str!("../../limits.rs"),
    include_str!("../../store.rs"),
    include_str!("../../tsv.rs"),
    include_str!("../../ycsb/check.rs"),
    include_str!("../../ycsb/client.rs"),
    include_str!("../../ycsb/keys.rs"),
    include_str!("../../ycsb/latency.rs"),
    include_str!("../../ycsb/records.rs"),
    include_str!("../../ycsb/stamp.rs"),
    include_str!("../../ycsb/workload.rs"),
];

/// A text and its origin.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: Arc<[u8]>,
    pub(super) lines: usize,
    /// Whether the file is longer.
    pub(super) cut: bool,
}

/// Reads the given file, or else the word list, or else this program's own source.
pub(super) fn read(file: Option<&Path>, small: bool) -> Result<Source> {
    let max_lines = if small { SMALL_TEXT_LINES } else { MAX_TEXT_LINES };
    let (name, bytes, cut) = match file {
        Some(path) => {
            let (bytes, cut) =
                read_file(path).with_context(|| format!("{} could not be read", path.display()))?;
            (path.display().to_string(), bytes, cut)
        }
        None => match read_file(WORD_LIST.as_ref()) {
            Ok((bytes, cut)) if !bytes.is_empty() => (WORD_LIST.to_owned(), bytes, cut),
            _ => ("this program's own source".to_owned(), OWN_SOURCE.concat().into_bytes(), false),
        },
    };
    if bytes.is_empty() {
        bail!("{name} is empty; the demo needs a text of one line or more");
    }
    let (end, lines) = first_lines(&bytes, max_lines);
    let cut = cut || end < bytes.len();
    let text: Arc<[u8]> = bytes[..end].into();
    if let Some(at) = text.split(|&byte| byte == b'\n').position(|line| line.len() > MAX_LINE_BYTES)
    {
        bail!("line {} of {name} has more than {MAX_LINE_BYTES} bytes; is it a text?", at + 1);
    }
    Ok(Source { name, text, lines, cut })
}

fn read_file(path: &Path) -> std::io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let cut = bytes.len() > MAX_TEXT_BYTES;
    bytes.truncate(MAX_TEXT_BYTES);
    Ok((bytes, cut))
}

/// The length and number of the first `max` lines.
fn first_lines(text: &[u8], max: usize) -> (usize, usize) {
    let mut lines = 0;
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        lines += 1;
        if lines == max {
            return (at + 1, lines);
        }
    }
    let last_has_no_end = !text.ends_with(b"\n");
    (text.len(), lines + usize::from(last_has_no_end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_counted_and_cut() {
        assert_eq!(first_lines(b"a\nb\nc", 9), (5, 3));
        assert_eq!(first_lines(b"a\nb\nc\n", 9), (6, 3));
        assert_eq!(first_lines(b"a\nb\nc\n", 2), (4, 2));
        assert_eq!(first_lines(b"a\nb\nc\n", 3), (6, 3));
    }

    #[test]
    fn without_a_file_there_is_a_default_text() {
        let source = read(None, false).unwrap();
        assert!(source.lines > 1000);
        assert!(!source.cut);
        let small = read(None, true).unwrap();
        assert!(small.lines <= SMALL_TEXT_LINES);
    }

    #[test]
    fn a_file_that_is_not_a_text_is_refused() {
        let missing = read(Some("/nonexistent/file".as_ref()), false);
        assert!(missing.err().unwrap().to_string().contains("/nonexistent/file"));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let empty = read(Some(file.path()), false);
        assert!(empty.err().unwrap().to_string().contains("empty"));
        file.write_all(b"one\n").unwrap();
        file.write_all(&vec![b'x'; MAX_LINE_BYTES + 1]).unwrap();
        let long = read(Some(file.path()), false);
        assert!(long.err().unwrap().to_string().contains("line 2"));
    }
}
