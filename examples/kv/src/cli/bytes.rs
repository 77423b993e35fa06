//! Keys and values on the command line, on standard input, and in output.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use farcall_kv::limits::MAX_VALUE_BYTES;

/// The bytes of an argument: its own, those of its hexadecimal digits, or for `-` those of standard
/// input.
pub(crate) fn from_argument(argument: &OsStr, hex: bool) -> Result<Vec<u8>> {
    if argument != "-" {
        let bytes = argument.as_bytes();
        return if hex { decode_hex(bytes) } else { Ok(bytes.to_vec()) };
    }
    // One byte, or two digits, more than allowed, to detect input that is too long.
    let limit = if hex { 2 * MAX_VALUE_BYTES + 3 } else { MAX_VALUE_BYTES + 1 };
    let mut bytes = Vec::new();
    io::stdin()
        .take(limit as u64)
        .read_to_end(&mut bytes)
        .context("standard input could not be read")?;
    if hex { decode_hex(bytes.trim_ascii()) } else { Ok(bytes) }
}

/// Checks that standard input is not both the key and the value.
pub(crate) fn only_one_from_stdin(key: &OsStr, value: &OsStr) -> Result<()> {
    if key == "-" && value == "-" {
        bail!("standard input (-) can be the key or the value, not both");
    }
    Ok(())
}

fn decode_hex(digits: &[u8]) -> Result<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        bail!("{} hexadecimal digits; two make a byte", digits.len());
    }
    let digit = |at: usize| {
        let found = char::from(digits[at]);
        found.to_digit(16).with_context(|| format!("{found:?} is no hexadecimal digit"))
    };
    (0..digits.len()).step_by(2).map(|at| Ok((digit(at)? << 4 | digit(at + 1)?) as u8)).collect()
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn write_hex(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hexadecimal_encoding_is_lossless(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
            let mut digits = Vec::new();
            write_hex(&mut digits, &bytes).unwrap();
            prop_assert_eq!(decode_hex(&digits).unwrap(), bytes.clone());
            prop_assert_eq!(decode_hex(&digits.to_ascii_uppercase()).unwrap(), bytes);
        }
    }

    #[test]
    fn invalid_hexadecimal_is_refused() {
        assert!(decode_hex(b"abc").unwrap_err().to_string().contains("3 hexadecimal digits"));
        assert!(decode_hex(b"ag").unwrap_err().to_string().contains("'g'"));
    }

    #[test]
    fn standard_input_is_used_only_once() {
        assert!(only_one_from_stdin("-".as_ref(), "-".as_ref()).is_err());
        assert!(only_one_from_stdin("-".as_ref(), "v".as_ref()).is_ok());
    }
}
