//! From which lengths on which way of copying is fastest, if another core has the lines in its cache. That depends on the CPU.

use std::sync::LazyLock;

/// Lengths in bytes. Each was measured with calls there and back whose argument and result have that length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thresholds {
    /// The lines of a shorter message to a peer are fetched for writing all at once, before any is written: a loop alone waits for a
    /// few at a time.
    pub(super) claim_to_peer_below: usize,
    /// Longer ones go by the CPU's string instruction: it takes whole lines without fetching what the other core has in them, but
    /// takes longer to start.
    pub(super) string_to_peer_from: usize,
    /// Of a message of this length that a peer has written, all lines are fetched before any is copied.
    pub(super) fetch_from_peer_from: usize,
    /// From here on, the string instruction is faster than that, too.
    pub(super) string_from_peer_from: usize,
}

/// Of Zen 5: the string instruction halves the time of a loop at 8 KiB if the cores share no cache, and takes a third off if they do.
/// Whether claimed lines help there was not measured.
const OTHERS: Thresholds = Thresholds {
    claim_to_peer_below: 0,
    string_to_peer_from: 2 << 10,
    fetch_from_peer_from: 2 << 10,
    string_from_peer_from: 32 << 10,
};

/// Of Emerald Rapids: claimed lines take a fifth off at 256 bytes and at 2 KiB. It fetches ahead of a loop by itself, so hints only
/// cost time.
const INTEL: Thresholds = Thresholds {
    claim_to_peer_below: 12 << 10,
    string_to_peer_from: 12 << 10,
    fetch_from_peer_from: 12 << 10,
    string_from_peer_from: 12 << 10,
};

impl Thresholds {
    /// Those of this machine's CPU.
    #[inline]
    pub(super) fn here() -> &'static Thresholds {
        static HERE: LazyLock<&Thresholds> =
            LazyLock::new(|| if is_intel() { &INTEL } else { &OTHERS });
        &HERE
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}
