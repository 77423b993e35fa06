//! Fuzz targets of notes, which the server writes as it likes.

use bolero::check;

use super::*;

/// Any sixteen bits are no note, or one that is written as the same bits.
#[test]
fn any_bits_are_a_note_or_none() {
    check!().with_type::<u16>().for_each(|bits| {
        assert_eq!(Note::from_wire(*bits).map_or(0, Note::to_wire), *bits);
    });
}
