//! The arguments of [`Op::Mode`](crate::slots::wire::Op::Mode), and the notes by which a response says the same.

/// Most places of a pool: an argument has ten bits, and 0 means none.
pub(super) const MAX_PLACES: u32 = 1 << 9;

/// Server: leave your place. The client writes no more into it, and then says [`LEFT`]. Where a response goes to the client anyway,
/// [`Note::Stop`] says it.
pub(super) const STOP: u32 = 0;

/// Client: nothing more of mine is on its way into my place.
pub(super) const LEFT: u32 = 0;

/// Client: the log of requests has grown; eight bytes that come with the immediate say to where.
pub(super) const GROWN: u32 = 1;

/// What a response tells its client besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// This is your place from now on.
    Enter(u32),
    /// As [`STOP`].
    Stop,
}

impl Note {
    /// As it stands on the message, where 0 is none.
    pub(super) const fn to_wire(self) -> u16 {
        match self {
            Note::Enter(place) => place as u16 + 1,
            Note::Stop => u16::MAX,
        }
    }

    pub(super) const fn from_wire(note: u16) -> Option<Note> {
        match note {
            0 => None,
            u16::MAX => Some(Note::Stop),
            note => Some(Note::Enter(note as u32 - 1)),
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for note in [Note::Enter(0), Note::Enter(MAX_PLACES - 1), Note::Stop] {
            assert_eq!(Note::from_wire(note.to_wire()), Some(note));
        }
        assert_eq!(Note::from_wire(0), None);
    }
}
