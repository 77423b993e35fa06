//! `hybrid`: a connection that moves among the backends. What is hostile to one of them is hostile to a lane, and in their own entries.

use super::{Backend, write_imm};
use crate::case::cases;

/// Why the suite makes no handshake by hand.
const LANES: &str =
    "its lanes shake hands as the backends that they are of, whose entries have this case";

/// The suite's entry.
pub(super) const BACKEND: Backend = Backend {
    name: farcall_transports::hybrid::NAME,
    options: &["window", "slot", "max_message", "memory", "silence"],
    cases: cases! {},
    exceptions: &[
        ("hostile_handshakes::broken_hellos_are_refused", LANES),
        ("hostile_handshakes::broken_setups_are_refused", LANES),
        ("hostile_handshakes::clients_that_never_become_ready_disturb_nobody", LANES),
        ("hostile_handshakes::clients_that_never_become_ready_leave_nothing", LANES),
        (
            "hostile_handshakes::clients_that_never_call_make_room_and_those_that_have_called_stay",
            LANES,
        ),
        ("hostile_handshakes::broken_welcomes_are_refused", LANES),
    ],
    open_end: write_imm::BACKEND.open_end,
    broken_setups: write_imm::BACKEND.broken_setups,
    #[cfg(feature = "sim")]
    racks: super::slots::racks::ALL,
};
