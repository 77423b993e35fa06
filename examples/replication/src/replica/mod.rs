//! A replica as a server: what its [node](crate::node) asks for is done with farcall, a disk, and a membership service.
//!
//! One thread owns the node and the memory that is lent. It takes inputs from a bounded queue: calls of clients and peers, ends of syncs,
//! answers of the membership service. It polls its rounds of one-sided operations itself. What may block (to connect, to propose, to sync) is
//! done by other threads, which answer through the queue.

mod answer;
mod disk;
mod driver;
mod lent;
mod membership_thread;
mod peer;
mod rounds;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use anyhow::Result;
use farcall::memory::{Memory, MemoryServer};
use farcall::{RunningServer, Server};

pub use self::disk::{Recovered, recover};
pub use self::peer::{
    Group, GroupClient, GroupPollClient, GroupServer, JoinRequest, Lent, Peer, PeerClient,
    PeerPollClient, PeerServer,
};

pub(crate) use self::driver::unique;
use self::driver::{Driver, Input, Mailbox};
use self::peer::Services;
use crate::membership::Membership;
use crate::node::{NodeOptions, Status};
use crate::ring::MIN_RING_BYTES;

/// A replica of a group, which joins it, or founds it if there is none.
///
/// ```
/// use std::sync::{Arc, OnceLock};
///
/// use farcall_replication::client::Client;
/// use farcall_replication::level::Level;
/// use farcall_replication::membership::InProcess;
/// use farcall_replication::replica::Replica;
/// use farcall_replication::store::{Command, Query, View};
///
/// # fn main() -> anyhow::Result<()> {
/// // All in one process here; `ConfigurationService` serves the membership to other processes.
/// let membership = Arc::new(InProcess::default());
/// let address = |name: &str| format!("shm://replica-doc-{name}-{}", std::process::id());
/// let replicas = ["a", "b"].map(|name| {
///     Replica::builder(membership.clone()).listen(&address(name))
/// });
/// # let replicas: Vec<_> = replicas.into_iter().collect::<Result<_, _>>()?;
///
/// let mut client = Client::new(membership);
/// client.wait_for_members(2)?;
/// let put = Command::Put { key: "k".into(), value: "v".into() };
/// let ack = client.submit(put, Level::Replicated(2))?;
/// assert!(ack.reached.covers(Level::Replicated(2)));
/// assert_eq!(client.read(Query::Get("k".into()))?, View::Value(Some("v".into())));
/// # drop(replicas);
/// # Ok(())
/// # }
/// ```
pub struct Replica {
    mailbox: Mailbox,
    thread: Option<JoinHandle<()>>,
    failure: Arc<OnceLock<String>>,
    server: Option<RunningServer>,
}

/// Makes a [`Replica`].
pub struct ReplicaBuilder {
    membership: Arc<dyn Membership>,
    options: NodeOptions,
    directory: Option<PathBuf>,
    device: Option<String>,
}

impl Replica {
    /// A replica of the group with this membership: in memory alone, on shared memory.
    #[must_use]
    pub fn builder(membership: Arc<dyn Membership>) -> ReplicaBuilder {
        let options = NodeOptions::default();
        ReplicaBuilder { membership, options, directory: None, device: None }
    }

    /// What it is. `None`: it has ended.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let (answerer, answer) = answer::answer();
        self.mailbox.send(Input::Status { answerer }).ok()?;
        futures_executor::block_on(answer)
    }

    /// Why it has ended: its disk has failed, for example. The group goes on without it.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.mailbox.deliver(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        drop(self.server.take());
    }
}

impl ReplicaBuilder {
    /// With other options than the default. Whether it syncs depends on [`directory`](Self::directory) alone.
    #[must_use]
    pub fn options(self, options: NodeOptions) -> Self {
        Self { options, ..self }
    }

    /// Syncs all records to a disk, below this directory, which no other replica has. If this replica founds a group, it begins with the
    /// state that is there.
    #[must_use]
    pub fn directory(self, directory: PathBuf) -> Self {
        Self { directory: Some(directory), ..self }
    }

    /// Lends memory of this RDMA device, such as `rxe0`, for addresses that begin with `rdma://`.
    #[must_use]
    pub fn device(self, device: &str) -> Self {
        Self { device: Some(device.to_owned()), ..self }
    }

    /// Starts it. Peers and clients reach it at this address.
    ///
    /// # Errors
    /// The address, the directory or the device cannot be used.
    pub fn listen(self, address: &str) -> Result<Replica> {
        let ReplicaBuilder { membership, mut options, directory, device } = self;
        anyhow::ensure!(
            options.ring_bytes >= MIN_RING_BYTES && options.ring_bytes.is_multiple_of(8),
            "a ring has at least {MIN_RING_BYTES} bytes, and a multiple of 8"
        );
        options.syncs = directory.is_some();
        let memory = match &device {
            Some(device) => Memory::open(device)?,
            None => Memory::new()?,
        };
        let (mailbox, inbox) = Mailbox::new();
        let services = Services(mailbox.clone());
        let server = Server::builder()
            .service(PeerServer::new(services.clone()))
            .service(GroupServer::new(services))
            .service(MemoryServer::new(memory.clone()))
            .listen(address)?;
        let driver = Driver::new(
            address.to_owned(),
            membership,
            options,
            directory,
            memory,
            mailbox.clone(),
            inbox,
        )?;
        let failure = driver.failure();
        let thread =
            std::thread::Builder::new().name("replica".into()).spawn(move || driver.run())?;
        mailbox.set_thread(thread.thread().clone());
        Ok(Replica { mailbox, thread: Some(thread), failure, server: Some(server) })
    }
}
