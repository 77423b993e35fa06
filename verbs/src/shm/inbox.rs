//! The inbox of a queue pair: the memory in which a peer's messages arrive.
//!
//! Lines that the owner writes often, lines that it writes seldom, and the cells that the peer writes are
//! separate, to avoid false sharing. What even a connection that is seldom used touches lies in the first page:
//! these lines, those of [duplex](super::duplex), the table of lengths, and the cells of the small lap. Its other
//! pages take memory when they are touched.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io;

use super::accesses::Accesses;
use super::cell::{Cell, CellRing, MAX_CELLS, MIN_CELLS, SMALL_LAP};
use super::duplex::LINES;
use super::memfd;
use crate::memory::mapping::{Mapping, Population};

/// Written by the owner as it takes messages; read by the peer when the values it last read are used up.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct CreditLine {
    /// Receives posted so far, wrapping.
    pub(crate) posted: AtomicU32,
    /// Cells taken so far, wrapping.
    pub(crate) head: AtomicU32,
    /// Datagrams taken so far, wrapping.
    pub(crate) taken: AtomicU32,
}

/// Written by the owner when its state changes; read by the peer with every message.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct StateLine {
    /// An [`InboxState`].
    pub(crate) state: AtomicU32,
    /// Not zero: the owner sleeps or is about to, so the peer must ring after publishing.
    pub(crate) armed: AtomicU32,
    /// Not zero: the last message taken was longer than its receive.
    pub(crate) refused: AtomicU32,
}

/// Written by the peer.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct SenderLine {
    /// Shared credits that the peer has taken so far, wrapping (see `shared_receive`).
    pub(crate) taken: AtomicU32,
    /// Accesses of the peer through [windows](super::window).
    pub(crate) in_windows: Accesses,
    /// Not zero: a message waits until the owner has taken others, and the peer may sleep meanwhile.
    pub(crate) waits_for_room: AtomicU32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct InboxLines {
    pub(crate) credit: CreditLine,
    pub(crate) state: StateLine,
    pub(crate) sender: SenderLine,
}

/// The state that the owner of an inbox publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum InboxState {
    /// Not connected yet.
    Init = 0,
    /// Takes messages.
    Ready = 1,
    /// In error: takes no more.
    Error = 2,
    /// The queue pair is gone.
    Destroyed = 3,
}

/// The layout of an inbox. Both sides compute all offsets from these two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboxLayout {
    /// Cells of the ring.
    pub(crate) cells: u32,
    /// Entries of the table of receive lengths.
    pub(crate) lengths: u32,
}

impl InboxLayout {
    /// The layout for a queue pair with `max_recv_wr` receives. Every message that a receive admits has a cell,
    /// and a few extra cells allow for skipping the small lap.
    pub(crate) fn for_receives(max_recv_wr: usize) -> InboxLayout {
        let receives = u32::try_from(max_recv_wr).unwrap_or(MAX_CELLS);
        InboxLayout {
            cells: (receives + SMALL_LAP).next_power_of_two().clamp(MIN_CELLS, MAX_CELLS),
            lengths: receives.next_power_of_two().clamp(16, MAX_CELLS),
        }
    }

    /// Checks a layout that a peer claims.
    pub(crate) fn checked(self) -> Option<InboxLayout> {
        let fits =
            |count: u32, min: u32| count.is_power_of_two() && (min..=MAX_CELLS).contains(&count);
        (fits(self.cells, MIN_CELLS) && fits(self.lengths, 16)).then_some(self)
    }

    fn cells_offset(self) -> usize {
        (LENGTHS_OFFSET + self.lengths as usize * 4).next_multiple_of(SEPARATION_BYTES)
    }

    fn len(self) -> usize {
        self.cells_offset() + self.cells as usize * size_of::<Cell>()
    }
}

/// Neighbouring cache lines are loaded in pairs.
const SEPARATION_BYTES: usize = 128;

const DUPLEX_OFFSET: usize = size_of::<InboxLines>();

const LENGTHS_OFFSET: usize = DUPLEX_OFFSET + LINES as usize * size_of::<Cell>();

const _: () = assert!(
    DUPLEX_OFFSET.is_multiple_of(SEPARATION_BYTES)
        && LENGTHS_OFFSET.is_multiple_of(SEPARATION_BYTES)
);

/// A mapped inbox, ours or a peer's.
#[derive(Debug)]
pub(crate) struct Inbox {
    mapping: Mapping,
    layout: InboxLayout,
}

impl Inbox {
    /// Creates an inbox of ours, and the file to give to the peer.
    pub(crate) fn create(layout: InboxLayout) -> io::Result<(Inbox, OwnedFd)> {
        let (file, mapping) = memfd::create(
            "farcall-inbox",
            layout.len(),
            memfd::Peers::ReadAndWrite,
            Population::WhenTouched,
        )?;
        Ok((Inbox { mapping, layout }, file))
    }

    /// Maps a peer's inbox.
    pub(crate) fn map(file: BorrowedFd<'_>, layout: InboxLayout) -> io::Result<Inbox> {
        let mapping = memfd::map_foreign(file.as_fd(), layout.len(), true)?;
        Ok(Inbox { mapping, layout })
    }

    #[inline]
    pub(crate) fn lines(&self) -> &InboxLines {
        // SAFETY: the start of the mapping, page-aligned and initially zero. All its fields are atomics, so
        // the other side may write them.
        unsafe { &*self.mapping.start().cast::<InboxLines>() }
    }

    pub(crate) fn lines_ptr(&self) -> NonNull<InboxLines> {
        NonNull::from(self.lines())
    }

    /// The length of the receive for the `position`-th message.
    #[inline]
    pub(crate) fn receive_length(&self, position: u32) -> &AtomicU32 {
        let index = (position & (self.layout.lengths - 1)) as usize;
        // SAFETY: the table starts there, aligned, and has `lengths` entries, a power of two.
        unsafe { &*self.mapping.start().add(LENGTHS_OFFSET).cast::<AtomicU32>().add(index) }
    }

    /// The ring. The caller keeps this inbox alive while it uses the ring.
    pub(crate) fn ring(&self) -> CellRing {
        // SAFETY: the cells lie in the mapping by the layout's construction, 64-byte aligned.
        unsafe {
            let cells = self.mapping.start().add(self.layout.cells_offset()).cast::<Cell>();
            CellRing::new(cells, self.layout.cells)
        }
    }

    /// The lines that the peer opens, and in which the owner answers. The caller keeps this inbox alive while
    /// it uses them.
    pub(crate) fn duplex_lines(&self) -> CellRing {
        // SAFETY: as for `ring`; the lines lie before the table.
        unsafe {
            let lines = self.mapping.start().add(DUPLEX_OFFSET).cast::<Cell>();
            CellRing::new(lines, LINES)
        }
    }

    pub(crate) fn layout(&self) -> InboxLayout {
        self.layout
    }

    /// Whether the owner sleeps, or is about to, and is to be woken by the caller.
    #[cold]
    pub(crate) fn take_arming(&self) -> bool {
        let armed = &self.lines().state.armed;
        armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::SeqCst) != 0
    }

    pub(crate) fn set_state(&self, state: InboxState) {
        self.lines().state.state.store(state as u32, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::PAGE_BYTES;

    #[test]
    fn lines_lie_apart_and_in_the_first_page_with_the_small_lap() {
        let small_lap = InboxLayout::for_receives(84).cells_offset() + SMALL_LAP as usize * 64;
        assert!(small_lap <= PAGE_BYTES, "{small_lap}");
        assert_eq!(std::mem::offset_of!(InboxLines, state), 128);
        assert_eq!(std::mem::offset_of!(InboxLines, sender), 256);
    }

    #[test]
    fn a_claimed_layout_is_checked() {
        for (cells, lengths) in [(0, 16), (63, 16), (65, 16), (64, 0), (64, 17), (1 << 16, 16)] {
            assert_eq!(InboxLayout { cells, lengths }.checked(), None, "{cells} {lengths}");
        }
        assert!(InboxLayout::for_receives(1).checked().is_some());
        assert!(InboxLayout::for_receives(1 << 15).checked().is_some());
    }

    #[test]
    fn both_sides_see_the_same_cells() {
        let (ours, file) = Inbox::create(InboxLayout::for_receives(16)).unwrap();
        let theirs = Inbox::map(file.as_fd(), ours.layout()).unwrap();
        theirs.ring().cell(7).fill(3, &[9]);
        assert_eq!(ours.ring().cell(7).second_word(), (3, 0));
        ours.set_state(InboxState::Ready);
        assert_eq!(theirs.lines().state.state.load(Ordering::Acquire), InboxState::Ready as u32);
    }
}
