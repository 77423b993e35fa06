//! The number of this process among all that talk to each other.

use std::sync::OnceLock;

use rustix::rand::{GetRandomFlags, getrandom};

/// Drawn once: 64 random bits. Without random numbers it is the process's number on its machine.
pub(crate) fn number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let mut bytes = [0; 8];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => std::process::id().into(),
        }
    })
}
