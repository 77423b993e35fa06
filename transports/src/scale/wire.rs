//! The arguments of [`Op::Mode`](crate::slots::wire::Op::Mode), and the note by which a response brings the first of them.

/// Most places of a pool: an argument has ten bits, and 0 means none.
pub(super) const MAX_PLACES: u32 = 1 << 9;

/// Server: leave your place. The client writes no more into it, and then says [`LEFT`].
pub(super) const STOP: u32 = 0;

/// Client: nothing more of mine is on its way into my place.
pub(super) const LEFT: u32 = 0;

/// Client: the log of requests has grown; eight bytes that come with the immediate say to where.
pub(super) const GROWN: u32 = 1;

/// The note on a response that brings its client into a place.
pub(super) const fn note_of_place(place: u32) -> u16 {
    place as u16 + 1
}

/// The place that a note names.
pub(super) const fn place_in_note(note: u16) -> Option<u32> {
    match note {
        0 => None,
        note => Some(note as u32 - 1),
    }
}
