//! Hints to the CPU's caches: they move lines and do nothing else, whoever else has the memory.

/// Asks for the line at this address: it will be read soon.
#[inline]
pub(crate) fn to_read<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which accesses nothing, wherever the address leads.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Takes the line at this address over: it will be written soon.
#[inline]
pub(crate) fn to_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
