//! Values that identify their write and allow checking each byte.

/// Bytes of the shortest value.
pub(crate) const MIN_BYTES: usize = 8;

/// The bytes of a value: its number, then bytes up to `len` derived from the number and their index.
pub(crate) fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((MIN_BYTES..len).map(|place| byte(number, place)));
    bytes
}

/// The number of a value.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|number| u64::from_le_bytes(*number))
}

/// The number of a value, if every byte is correct.
pub(crate) fn check(value: &[u8]) -> Option<u64> {
    let number = number(value)?;
    let mut rest = value.iter().enumerate().skip(MIN_BYTES);
    rest.all(|(place, found)| *found == byte(number, place)).then_some(number)
}

fn byte(number: u64, place: usize) -> u8 {
    ((number ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_detected() {
        let mut value = bytes(7, 100);
        assert_eq!((value.len(), check(&value)), (100, Some(7)));
        value[60] = bytes(8, 100)[60];
        assert_eq!(check(&value), None);
        assert_eq!(check(&bytes(7, 0)), Some(7));
        assert_eq!(check(b"short"), None);
    }
}
