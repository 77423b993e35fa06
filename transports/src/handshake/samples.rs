//! What the handshakes of tests say.

use super::Hello;
use crate::contract::Terms;
use farcall_core::transport::{Lane, LaneReason};

/// What both ends offer.
pub(super) const TERMS: Terms = Terms { window: 8, slot: 4096, max_message: 99 };

/// The hello of a client whose backend says this.
pub(super) fn hello(setup: &[u8]) -> Hello {
    Hello {
        backend: "write_imm".into(),
        service: "Kv".into(),
        fingerprint: 7,
        terms: TERMS,
        setup: setup.to_vec(),
        further: Vec::new(),
        lane: Lane::Alone,
        why: LaneReason::First,
        thread: None,
    }
}
