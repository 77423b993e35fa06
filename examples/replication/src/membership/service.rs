//! The membership as a service of one process.
//!
//! It is one process: while it is away, nobody can be excluded or join, and the group goes on as it is. With a directory it keeps its
//! configuration through a crash.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farcall::{CallError, RpcError};
use farcall_persist::{Kind, Level, Log, Options};

use super::{Configuration, InProcess, Membership, Unavailable};
use crate::record::Epoch;

/// Decides which configuration follows which.
#[farcall::service(name = "farcall.replication.configuration")]
pub trait ConfigurationRegister {
    /// The newest configuration.
    #[rpc(idempotent)]
    fn current(&self) -> Configuration;

    /// Accepts a configuration for the next epoch, if it is the first. Gives the newest one.
    fn propose(&self, next: Configuration) -> Result<Configuration, String>;
}

/// The server of this service.
pub use ConfigurationRegisterServer as MembershipServer;

/// Serves the configurations of a group, from memory or from a directory.
#[derive(Clone)]
pub struct ConfigurationService {
    accepted: InProcess,
    /// Held while a proposal is made persistent.
    log: Arc<Mutex<Option<Log>>>,
}

impl ConfigurationService {
    /// Serves configurations that are in memory alone: they are lost with the process.
    #[must_use]
    pub fn in_memory(accepted: InProcess) -> Self {
        Self { accepted, log: Arc::default() }
    }

    /// Serves the configurations of this directory, which is made if it does not exist.
    ///
    /// # Errors
    /// The log there cannot be opened or read.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let log = Log::open(directory, Options::default().segment_bytes(1 << 20))?;
        let accepted = InProcess::default();
        for record in log.records(None) {
            let record = record?;
            if record.kind() == Kind::Entry {
                let next: Configuration = postcard::from_bytes(&record.payload)?;
                accepted.accept(&next);
            }
        }
        Ok(Self { accepted, log: Arc::new(Mutex::new(Some(log))) })
    }

    fn accept(&self, next: &Configuration) -> anyhow::Result<Configuration> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.accepted.newest();
        if let Some(log) = &*log
            && next.follows(&newest)
        {
            // Persistent before anybody may act on it.
            log.append(&postcard::to_allocvec(next)?, Level::Persistent)?.wait()?;
        }
        Ok(self.accepted.accept(next))
    }
}

impl ConfigurationRegister for ConfigurationService {
    fn current(&self) -> Configuration {
        self.accepted.newest()
    }

    fn propose(&self, next: Configuration) -> Result<Configuration, String> {
        self.accept(&next).map_err(|why| format!("{why:#}"))
    }
}

/// The membership service of another process.
pub struct RemoteMembership {
    address: String,
    timeout: Duration,
    /// Connected when it is first used, and again after a failure.
    client: Mutex<Option<ConfigurationRegisterClient>>,
}

/// How often a watcher asks.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

impl RemoteMembership {
    /// The service at this address. Each call may take so long.
    #[must_use]
    pub fn at(address: &str, timeout: Duration) -> Self {
        Self { address: address.to_owned(), timeout, client: Mutex::default() }
    }

    fn client(&self) -> Result<ConfigurationRegisterClient, Unavailable> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let connecting = ConfigurationRegisterClient::connect(self.address.as_str());
        let connected = connecting.timeout(self.timeout).dial_timeout(self.timeout).wait();
        let connected = connected.map_err(|why| self.unavailable(&why))?;
        *client = Some(connected.clone());
        Ok(connected)
    }

    fn unavailable(&self, why: &dyn std::fmt::Display) -> Unavailable {
        Unavailable { at: self.address.clone(), why: why.to_string() }
    }

    fn failed(&self, why: &RpcError) -> Unavailable {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.unavailable(why)
    }
}

impl Membership for RemoteMembership {
    fn current(&self) -> Result<Configuration, Unavailable> {
        self.client()?.current().wait().map_err(|why| self.failed(&why))
    }

    fn propose(&self, next: &Configuration) -> Result<Configuration, Unavailable> {
        self.client()?.propose(next.clone()).wait().map_err(|why| match why {
            CallError::Rpc(why) => self.failed(&why),
            CallError::Service(why) => self.unavailable(&why),
        })
    }

    fn watch(&self, epoch: Epoch, at_most: Duration) -> Result<Configuration, Unavailable> {
        let until = std::time::Instant::now() + at_most;
        loop {
            let current = self.current()?;
            if current.epoch > epoch || std::time::Instant::now() >= until {
                return Ok(current);
            }
            std::thread::sleep(WATCH_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::{Member, ReplicaId};

    #[test]
    fn a_configuration_is_there_after_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = |epoch| Configuration {
            epoch: Epoch(epoch),
            primary: ReplicaId(epoch),
            members: vec![Member { id: ReplicaId(epoch), address: "shm://x".into() }],
        };
        for epoch in 1..4 {
            let service = ConfigurationService::open(directory.path()).unwrap();
            assert_eq!(service.current().epoch, Epoch(epoch - 1));
            assert_eq!(service.propose(configuration(epoch)).unwrap(), configuration(epoch));
            assert_eq!(service.propose(configuration(9)).unwrap().epoch, Epoch(epoch));
        }
    }
}
