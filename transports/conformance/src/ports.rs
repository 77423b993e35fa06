//! TCP ports for servers of tests: no two tests get the same, in any process.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

/// Below the ephemeral ports, which the system may give to a client at any moment.
pub const RANGE: Range<u16> = 20_000..32_000;

/// An unused port of this machine, reserved as long as this process lives.
///
/// # Panics
/// All ports are taken.
pub fn claim() -> u16 {
    /// Each port has an abstract socket of its own, which tells other processes that it is reserved.
    static CLAIMS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = RANGE.end - RANGE.start;
    // Processes that start together begin far from each other.
    let begin = (process::id().wrapping_mul(7919) % u32::from(count)) as u16;
    for _ in 0..count {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + ((u32::from(begin) + u32::from(step)) % u32::from(count)) as u16;
        let claimed = SocketAddr::from_abstract_name(format!("farcall-test-port/{port}"))
            .and_then(|name| UnixListener::bind_addr(&name));
        let Ok(claim) = claimed else { continue };
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
            return port;
        }
    }
    panic!("no free TCP port in {RANGE:?}");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn claims_differ() {
        let claims: HashSet<u16> = (0..100).map(|_| super::claim()).collect();
        assert_eq!(claims.len(), 100);
        assert!(claims.iter().all(|port| super::RANGE.contains(port)));
    }
}
