//! A host's addresses, in bounded time.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Instant;

use crossbeam_channel::bounded;

/// Why a host has no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error(
        "the name {name:?} does not resolve ({source}); check its spelling, or write the address in numbers"
    )]
    Unknown { name: String, source: io::Error },
    #[error("the name {name:?} was not resolved in time; write the address in numbers")]
    TimedOut { name: String },
    #[error("no thread to resolve {name:?}: {source}")]
    Thread { name: String, source: io::Error },
}

/// The addresses of `host`, at least one.
pub(crate) fn resolve(
    host: &str,
    port: u16,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, ResolveError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let name = || host.to_owned();
    let (answer, answered) = bounded(1);
    let asked = name();
    // The system's resolver has bounds of its own, which are longer than ours: its thread outlives
    // whoever waited, and ends by itself.
    let ask = move || {
        let found = (asked.as_str(), port).to_socket_addrs().map(|found| found.collect::<Vec<_>>());
        let _ = answer.send(found);
    };
    thread::Builder::new()
        .name("farcall-resolve".into())
        .spawn(ask)
        .map_err(|source| ResolveError::Thread { name: name(), source })?;
    match answered.recv_deadline(deadline) {
        Ok(Ok(found)) if !found.is_empty() => Ok(found),
        Ok(Ok(_)) => {
            let source = io::Error::new(io::ErrorKind::NotFound, "it has no address");
            Err(ResolveError::Unknown { name: name(), source })
        }
        Ok(Err(source)) => Err(ResolveError::Unknown { name: name(), source }),
        Err(_) => Err(ResolveError::TimedOut { name: name() }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn numbers_need_no_resolver() {
        for host in ["10.0.0.1", "::1"] {
            let found = resolve(host, 7, Instant::now()).unwrap();
            assert_eq!(found, [SocketAddr::new(host.parse().unwrap(), 7)]);
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_told() {
        let error = resolve("no-such-host.invalid", 7, soon()).unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }

    #[test]
    fn the_wait_for_a_name_ends() {
        let error = resolve("localhost", 7, Instant::now()).err();
        // It may just have been answered.
        assert!(matches!(error, None | Some(ResolveError::TimedOut { .. })), "{error:?}");
    }
}
