//! The peers by name.

use anyhow::{Result, bail};

use super::farcall_clients::{self, Carrier};
use super::{Peer, Programs, Setup, program, tarpc, tonic};

/// A library or a client of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// farcall's blocking calls over shared memory.
    FarcallWait,
    /// farcall's async calls over shared memory.
    FarcallAwait,
    /// farcall's async calls over shared memory, in tasks of a runtime with several threads.
    FarcallAwaitMulti,
    /// farcall's polling client over shared memory.
    FarcallPoll,
    /// UCX's active messages over shared memory: no stubs, no deadlines.
    Ucx,
    /// The same, where the time of a call ends before the client has read the answer.
    UcxUnread,
    /// iceoryx2's request-response.
    Iceoryx2,
    /// tarpc over a Unix socket.
    TarpcUnix,
    /// tonic over a Unix socket.
    TonicUnix,
    /// farcall's blocking calls over TCP.
    FarcallTcpWait,
    /// farcall's async calls over TCP.
    FarcallTcpAwait,
    /// farcall's polling client over TCP.
    FarcallTcpPoll,
    /// tarpc over TCP.
    TarpcTcp,
}

/// All with their names in arguments and reports, and in tables.
const ALL: [(Kind, &str, &str); 13] = [
    (Kind::FarcallWait, "farcall-wait", "farcall `.wait()`"),
    (Kind::FarcallAwait, "farcall-await", "farcall `.await`"),
    (Kind::FarcallAwaitMulti, "farcall-await-multi", "farcall `.await`, threads"),
    (Kind::FarcallPoll, "farcall-poll", "farcall polling"),
    (Kind::Ucx, "ucx", "UCX"),
    (Kind::UcxUnread, "ucx-unread", "UCX, answer unread"),
    (Kind::Iceoryx2, "iceoryx2", "iceoryx2"),
    (Kind::TarpcUnix, "tarpc-unix", "tarpc, Unix"),
    (Kind::TonicUnix, "tonic-unix", "tonic, Unix"),
    (Kind::FarcallTcpWait, "farcall-tcp-wait", "farcall TCP `.wait()`"),
    (Kind::FarcallTcpAwait, "farcall-tcp-await", "farcall TCP `.await`"),
    (Kind::FarcallTcpPoll, "farcall-tcp-poll", "farcall TCP polling"),
    (Kind::TarpcTcp, "tarpc-tcp", "tarpc, TCP"),
];

/// The peers over TCP are measured only if named.
const TCP: [Kind; 4] =
    [Kind::FarcallTcpWait, Kind::FarcallTcpAwait, Kind::FarcallTcpPoll, Kind::TarpcTcp];

/// Parses a list of peers: names, `local` for all that do not use TCP, `tcp` for the others.
///
/// # Errors
///
/// A name that is none.
pub fn kinds(list: &str) -> Result<Vec<Kind>, String> {
    let mut kinds = Vec::new();
    for name in list.split(',').map(str::trim) {
        let named = ALL.iter().map(|(kind, ..)| *kind).filter(|kind| match name {
            "local" => !TCP.contains(kind),
            "tcp" => TCP.contains(kind),
            name => kind.name() == name,
        });
        let before = kinds.len();
        kinds.extend(named);
        if kinds.len() == before {
            let known = ALL.map(|(_, name, _)| name).join(", ");
            return Err(format!(
                "no peer is called `{name}`; known are: {known}; `local` and `tcp` are groups"
            ));
        }
    }
    Ok(kinds)
}

impl Kind {
    /// In arguments and reports.
    pub fn name(self) -> &'static str {
        ALL[self.index()].1
    }

    /// In tables and pictures.
    pub fn title(self) -> &'static str {
        ALL[self.index()].2
    }

    fn index(self) -> usize {
        ALL.iter().position(|(kind, ..)| *kind == self).unwrap_or_default()
    }

    /// Whether its client can have that many calls outstanding. A thread that blocks in each call has one.
    pub(super) fn can(self, window: usize) -> bool {
        window == 1 || !matches!(self, Kind::FarcallWait | Kind::FarcallTcpWait)
    }

    /// Checks that the program that it needs was named and exists; the others need none.
    pub(super) fn require(self, programs: &Programs) -> Result<()> {
        let program = match self {
            Kind::Ucx | Kind::UcxUnread => &programs.ucx,
            Kind::Iceoryx2 => &programs.iceoryx2,
            _ => return Ok(()),
        };
        let name = self.name();
        match program {
            Some(program) if program.is_file() => Ok(()),
            Some(program) => bail!(
                "there is no program {} for the peer `{name}`; `cargo xtask peers` builds it",
                program.display()
            ),
            None => bail!(
                "the peer `{name}` is a program of its own: name it with `--{name} PROGRAM`, or run `cargo xtask peers`, which builds it"
            ),
        }
    }

    /// Starts its server, and a client on the calling thread.
    pub(super) fn start(self, setup: &Setup<'_>) -> Result<Box<dyn Peer>> {
        match self {
            Kind::FarcallWait => farcall_clients::wait(self, Carrier::Shm, setup),
            Kind::FarcallAwait => farcall_clients::asynchronous(self, Carrier::Shm, setup),
            Kind::FarcallAwaitMulti => farcall_clients::multi(self, Carrier::Shm, setup),
            Kind::FarcallPoll => farcall_clients::poll(self, Carrier::Shm, setup),
            Kind::FarcallTcpWait => farcall_clients::wait(self, Carrier::Tcp, setup),
            Kind::FarcallTcpAwait => farcall_clients::asynchronous(self, Carrier::Tcp, setup),
            Kind::FarcallTcpPoll => farcall_clients::poll(self, Carrier::Tcp, setup),
            Kind::TarpcUnix => tarpc::unix(self, setup),
            Kind::TarpcTcp => tarpc::tcp(self, setup),
            Kind::TonicUnix => tonic::unix(self, setup),
            Kind::Ucx => program::start(setup.programs.ucx.as_deref(), &[], setup),
            Kind::UcxUnread => program::start(setup.programs.ucx.as_deref(), &["unread"], setup),
            Kind::Iceoryx2 => program::start(setup.programs.iceoryx2.as_deref(), &[], setup),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_alone_or_as_groups() {
        assert_eq!(kinds("tarpc-unix, ucx").unwrap(), [Kind::TarpcUnix, Kind::Ucx]);
        let all = [kinds("local").unwrap(), kinds("tcp").unwrap()].concat();
        assert_eq!(all, ALL.map(|(kind, ..)| kind));
        let why = kinds("local,grpc").unwrap_err();
        assert!(why.contains("`grpc`") && why.contains("tonic-unix"), "{why}");
    }

    #[test]
    fn a_peer_without_its_program_says_how_to_get_it() {
        let mut programs = Programs::default();
        let why = Kind::Ucx.require(&programs).unwrap_err().to_string();
        assert!(why.contains("--ucx PROGRAM") && why.contains("cargo xtask peers"), "{why}");
        programs.ucx = Some("/nowhere/ucx-echo".into());
        let why = Kind::Ucx.require(&programs).unwrap_err().to_string();
        assert!(why.contains("/nowhere/ucx-echo") && why.contains("cargo xtask peers"), "{why}");
        Kind::TonicUnix.require(&programs).unwrap();
    }
}
