//! Copies that tolerate concurrent writes to either side.
//!
//! A peer may change memory that it maps at any moment, so ordinary Rust copies there would be undefined
//! behaviour. These copies use machine instructions on x86-64 and relaxed atomics elsewhere. A race can mix
//! old and new bytes; it can do nothing worse. Bytes are stored from low addresses to high ones where a copy does not
//! say otherwise. The last aligned word of an aligned destination is stored whole, after all bytes before it.

use super::prefetch;
use super::thresholds::Thresholds;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies `len` bytes forward.
///
/// # Safety
/// Both ranges must be mapped for the access, and must not overlap. No Rust reference may cover shared
/// memory; private memory must be readable (`source`) or exclusively ours (`target`).
#[inline]
pub(crate) unsafe fn copy_forward(target: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86_64::copy_forward(target, source, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on from the caller.
    unsafe {
        portable::copy_forward(target, source, len);
    }
}

/// Copies as [`copy_forward`] what a peer may be storing. Of each line of the source, the first word is loaded no later than the rest, and
/// before all that this thread loads afterwards: a line whose first word was stored last, with release ordering, is whole if the copy has
/// that word.
///
/// # Safety
/// As for [`copy_forward`].
#[inline]
pub(crate) unsafe fn copy_polled(target: *mut u8, source: *const u8, len: usize) {
    // x86 performs loads in program order (Intel SDM 3A 9.2.2).
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86_64::copy_forward(target, source, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on from the caller.
    unsafe {
        portable::copy_polled(target, source, len);
    }
}

/// Hints that these bytes will be copied to a peer, if that makes the copy faster.
#[inline]
pub(crate) fn claim(target: *const u8, len: usize) {
    if len < Thresholds::here().claim_to_peer_below {
        for offset in (0..len).step_by(LINE_BYTES) {
            prefetch::to_write(target.wrapping_add(offset));
        }
    }
}

/// Copies `len` bytes, which another core may have in its cache at the target. Bytes are stored in any order, except that the last
/// aligned word of an aligned destination is stored whole, after all bytes before it. A thread that sees a later store of this
/// thread also sees the copied bytes.
///
/// # Safety
/// As for [`copy_forward`].
#[inline]
pub(crate) unsafe fn copy_unordered(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match len < Thresholds::here().string_to_peer_from {
            true => copy_forward(target, source, len),
            false => copy_string(target, source, len),
        }
    }
}

/// Copies `len` bytes, which another core may have in its cache at the source, in any order.
///
/// # Safety
/// As for [`copy_forward`].
#[inline]
pub(crate) unsafe fn copy_fetched(target: *mut u8, source: *const u8, len: usize) {
    let thresholds = Thresholds::here();
    if len >= thresholds.string_from_peer_from {
        // SAFETY: passed on from the caller.
        return unsafe { copy_string(target, source, len) };
    }
    if len >= thresholds.fetch_from_peer_from {
        for offset in (0..len).step_by(LINE_BYTES) {
            prefetch::to_read(source.wrapping_add(offset));
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { copy_forward(target, source, len) };
}

/// Copies `len` bytes with the CPU's string instruction if it is fast. Stores as [`copy_unordered`].
///
/// # Safety
/// As for [`copy_forward`]; at least 8 bytes.
#[inline]
unsafe fn copy_string(target: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86_64::copy_string(target, source, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on from the caller.
    unsafe {
        portable::copy_forward(target, source, len);
    }
}

/// Copies `len` bytes with non-temporal stores, where the CPU has them. Bytes are stored in any order,
/// except that the last aligned word of an aligned destination is stored whole, after all bytes before it.
/// A thread that sees a later store of this thread also sees the copied bytes.
///
/// # Safety
/// As for [`copy_forward`].
pub(crate) unsafe fn copy_streaming(target: *mut u8, source: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86_64::copy_streaming(target, source, len);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: passed on from the caller.
    unsafe {
        portable::copy_forward(target, source, len);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::asm;

    /// # Safety
    /// As for [`super::copy_forward`].
    #[inline]
    pub(super) unsafe fn copy_forward(mut target: *mut u8, mut source: *const u8, mut len: usize) {
        // Every store below is an ordinary one, and x86 makes those visible in program order (Intel SDM
        // 3A 9.2.2). A string instruction would not do: its stores may be seen out of order.
        if len >= 64 + 8 {
            // At least 8 bytes remain, so that the last word is stored by an instruction of its own.
            let bulk = (len - 8) & !63;
            // SAFETY: reads and writes `bulk <= len` bytes of the ranges that the caller vouches for.
            unsafe { copy_lines(target, source, bulk) };
            // SAFETY: `bulk <= len`.
            (target, source) = unsafe { (target.add(bulk), source.add(bulk)) };
            len -= bulk;
        }
        while len >= 8 {
            // SAFETY: 8 bytes remain in both ranges; asm, because the other side may race with it.
            unsafe {
                asm!(
                    "mov {word}, [{source}]",
                    "mov [{target}], {word}",
                    word = out(reg) _,
                    source = in(reg) source,
                    target = in(reg) target,
                    options(nostack, preserves_flags)
                );
                (target, source) = (target.add(8), source.add(8));
            }
            len -= 8;
        }
        while len > 0 {
            // SAFETY: a byte remains in both ranges; asm, because the other side may race with it.
            unsafe {
                asm!(
                    "mov {byte}, [{source}]",
                    "mov [{target}], {byte}",
                    byte = out(reg_byte) _,
                    source = in(reg) source,
                    target = in(reg) target,
                    options(nostack, preserves_flags)
                );
                (target, source) = (target.add(1), source.add(1));
            }
            len -= 1;
        }
    }

    /// # Safety
    /// As for [`super::copy_string`].
    #[inline]
    pub(super) unsafe fn copy_string(target: *mut u8, source: *const u8, len: usize) {
        if !std::arch::is_x86_feature_detected!("ermsb") {
            // SAFETY: passed on from the caller.
            return unsafe { copy_forward(target, source, len) };
        }
        // From 8 to 15 bytes remain, so that the last word is stored by an instruction of its own.
        let bulk = (len - 8) & !7;
        // Its stores may be seen in any order, but before those of later instructions (Intel SDM 3A 9.2.4).
        // SAFETY: reads and writes `bulk` bytes of the ranges that the caller vouches for, and then those that remain.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bulk => _,
                inout("rdi") target => _,
                inout("rsi") source => _,
                options(nostack, preserves_flags)
            );
            copy_forward(target.add(bulk), source.add(bulk), len - bulk);
        }
    }

    /// # Safety
    /// As for [`super::copy_forward`].
    pub(super) unsafe fn copy_streaming(target: *mut u8, source: *const u8, len: usize) {
        let head = target.align_offset(64).min(len);
        // The last word, and what is left of its line, is stored in order.
        let lines = (len - head).saturating_sub(8) & !63;
        // SAFETY: the three parts cover exactly the ranges that the caller vouches for; the middle one is
        // aligned. `lines` is a multiple of 64 and may be 0.
        unsafe {
            copy_forward(target, source, head);
            if lines > 0 {
                stream_lines(target.add(head), source.add(head), lines);
            }
            let done = head + lines;
            copy_forward(target.add(done), source.add(done), len - done);
        }
    }

    /// # Safety
    /// As for [`super::copy_forward`]; `len` is a positive multiple of 64, and `target` is aligned to 64.
    unsafe fn stream_lines(target: *mut u8, source: *const u8, len: usize) {
        // SSE2, which every x86-64 has; the stores, not their width, are what takes time here. The fence
        // orders them before every later store, which plain stores of x86 need not be told
        // (Intel SDM 3A 9.2.2).
        // SAFETY: the loop covers exactly `len` bytes of both ranges.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + 32]",
                "movups {d}, [{source} + 48]",
                "movntps [{target}], {a}",
                "movntps [{target} + 16], {b}",
                "movntps [{target} + 32], {c}",
                "movntps [{target} + 48], {d}",
                "add {source}, 64",
                "add {target}, 64",
                "sub {len}, 64",
                "jne 2b",
                "sfence",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                source = inout(reg) source => _,
                target = inout(reg) target => _,
                len = inout(reg) len => _,
                options(nostack)
            );
        }
    }

    /// # Safety
    /// As for [`super::copy_forward`]; `len` is a positive multiple of 64.
    #[inline]
    unsafe fn copy_lines(target: *mut u8, source: *const u8, len: usize) {
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the CPU has AVX; the rest is passed on from the caller.
            unsafe { copy_lines_avx(target, source, len) }
        } else {
            // SAFETY: passed on from the caller.
            unsafe { copy_lines_sse(target, source, len) }
        }
    }

    #[target_feature(enable = "avx")]
    unsafe fn copy_lines_avx(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the loop covers exactly `len` bytes of both ranges.
        unsafe {
            asm!(
                "2:",
                "vmovdqu {a}, [{source}]",
                "vmovdqu {b}, [{source} + 32]",
                "vmovdqu [{target}], {a}",
                "vmovdqu [{target} + 32], {b}",
                "add {source}, 64",
                "add {target}, 64",
                "sub {len}, 64",
                "jne 2b",
                "vzeroupper",
                a = out(ymm_reg) _,
                b = out(ymm_reg) _,
                source = inout(reg) source => _,
                target = inout(reg) target => _,
                len = inout(reg) len => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack)
            );
        }
    }

    unsafe fn copy_lines_sse(target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the loop covers exactly `len` bytes of both ranges.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + 32]",
                "movups {d}, [{source} + 48]",
                "movups [{target}], {a}",
                "movups [{target} + 16], {b}",
                "movups [{target} + 32], {c}",
                "movups [{target} + 48], {d}",
                "add {source}, 64",
                "add {target}, 64",
                "sub {len}, 64",
                "jne 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                source = inout(reg) source => _,
                target = inout(reg) target => _,
                len = inout(reg) len => _,
                options(nostack)
            );
        }
    }
}

#[cfg_attr(target_arch = "x86_64", cfg(test))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

    use super::LINE_BYTES;

    /// # Safety
    /// As for [`super::copy_polled`].
    pub(super) unsafe fn copy_polled(target: *mut u8, source: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let line = LINE_BYTES - source.addr().wrapping_add(done) % LINE_BYTES;
            let line = line.min(len - done);
            let word = line.min(8);
            // SAFETY: `done + line <= len`; the rest is passed on from the caller.
            unsafe {
                copy_forward(target.add(done), source.add(done), word);
                // The load of the word comes before those of the rest: the loads of a copy are relaxed.
                fence(Ordering::Acquire);
                copy_forward(target.add(done + word), source.add(done + word), line - word);
            }
            done += line;
        }
    }

    /// # Safety
    /// As for [`super::copy_forward`].
    pub(super) unsafe fn copy_forward(mut target: *mut u8, mut source: *const u8, mut len: usize) {
        // SAFETY: every access lies in the ranges that the caller vouches for; words only where both
        // sides are aligned. Atomics, because the other side may race with it.
        unsafe {
            while len > 0 {
                if len >= 8 && target.addr().is_multiple_of(8) && source.addr().is_multiple_of(8) {
                    let word = (*source.cast::<AtomicU64>()).load(Ordering::Relaxed);
                    (*target.cast::<AtomicU64>()).store(word, Ordering::Release);
                    (target, source) = (target.add(8), source.add(8));
                    len -= 8;
                } else {
                    let byte = (*source.cast::<AtomicU8>()).load(Ordering::Relaxed);
                    (*target.cast::<AtomicU8>()).store(byte, Ordering::Release);
                    (target, source) = (target.add(1), source.add(1));
                    len -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    const COPIES: [Copy; 7] = [
        copy_forward,
        copy_polled,
        copy_unordered,
        copy_fetched,
        copy_streaming,
        portable::copy_forward,
        portable::copy_polled,
    ];

    #[test]
    fn long_copies_move_all_of_their_bytes() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
        let Thresholds { string_to_peer_from, string_from_peer_from, .. } = *Thresholds::here();
        let lens = [string_to_peer_from, string_from_peer_from].map(|long| long - 2..long + 68);
        for (step, len) in lens.into_iter().flatten().enumerate() {
            let from = step / 3;
            for copy in COPIES.into_iter().chain([copy_string as Copy]) {
                let mut target = vec![0; len + 1];
                // SAFETY: both are ours alone and long enough.
                unsafe { copy(target.as_mut_ptr(), bytes[from..].as_ptr(), len) };
                assert!(target[..len] == bytes[from..from + len] && target[len] == 0, "{len}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_copy_moves_its_range_and_nothing_else(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            from in 0usize..64,
            to in 0usize..64,
        ) {
            let from = from.min(bytes.len());
            let source = &bytes[from..];
            for copy in COPIES {
                let mut target = vec![0xA5u8; to + source.len() + 40];
                // SAFETY: both are ours alone and long enough.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr(), source.len()) };
                prop_assert_eq!(&target[to..to + source.len()], source);
                prop_assert!(target[..to].iter().all(|byte| *byte == 0xA5));
                prop_assert!(target[to + source.len()..].iter().all(|byte| *byte == 0xA5));
            }
        }
    }
}
