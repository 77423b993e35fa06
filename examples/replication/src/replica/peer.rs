//! What replicas ask each other for, and what clients ask the primary for.

use bytes::Bytes;
use farcall::Shape;
use farcall::memory::Remote;
use serde::{Deserialize, Serialize};

use super::answer::answer;
use super::driver::{Input, Mailbox};
use crate::level::Level;
use crate::membership::{Member, ReplicaId};
use crate::node::{Ack, Enter, Entered, GroupError, Refusal, Status};
use crate::record::Epoch;
use crate::store::{Query, Request, View};

/// What a backup lends to the primary of its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Lent {
    /// To write: see [`ring`](crate::ring).
    pub ring: Remote,
    /// To read: the words of [`Progress`](crate::node::Progress).
    pub progress: Remote,
}

/// A replica that wants to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct JoinRequest {
    /// Which, and where.
    pub member: Member,
    /// What it lends.
    pub lent: Lent,
    /// The length of its ring, in bytes.
    pub ring_bytes: u64,
    /// Whether it syncs records to a disk.
    pub syncs: bool,
}

/// What replicas ask each other for.
#[farcall::service(name = "farcall.replication.peer")]
pub trait Peer {
    /// Asks this replica, and no later one at its address, to enter an epoch.
    async fn enter(&self, to: ReplicaId, request: Enter) -> Result<(Entered, Lent), Refusal>;

    /// Asks the primary to take another replica in. Answers the epoch of the ring, and a snapshot.
    async fn join(&self, request: JoinRequest) -> Result<(Epoch, Bytes), Refusal>;
}

/// What clients ask the primary for.
#[farcall::service(name = "farcall.replication.group")]
pub trait Group {
    /// Applies a command, and answers when it is at this level.
    async fn submit(&self, request: Request, level: Level) -> Result<Ack, GroupError>;

    /// Reads.
    #[rpc(idempotent)]
    async fn read(&self, query: Query) -> Result<View, GroupError>;

    /// What the replica is.
    #[rpc(idempotent)]
    async fn status(&self) -> Option<Status>;
}

/// Serves both, by the replica's thread.
#[derive(Clone)]
pub(super) struct Services(pub(super) Mailbox);

impl Peer for Services {
    async fn enter(&self, to: ReplicaId, request: Enter) -> Result<(Entered, Lent), Refusal> {
        let (answerer, answer) = answer();
        self.0.send(Input::Enter { to, request, answerer }).map_err(|()| Refusal::Busy)?;
        answer.await.unwrap_or(Err(Refusal::Removed))
    }

    async fn join(&self, request: JoinRequest) -> Result<(Epoch, Bytes), Refusal> {
        let (answerer, answer) = answer();
        self.0.send(Input::Join { request, answerer }).map_err(|()| Refusal::Busy)?;
        answer.await.unwrap_or(Err(Refusal::NotPrimary))
    }
}

impl Group for Services {
    async fn submit(&self, request: Request, level: Level) -> Result<Ack, GroupError> {
        let (answerer, answer) = answer();
        let input = Input::Submit { request, level, answerer };
        self.0.send(input).map_err(|()| GroupError::Overloaded)?;
        answer.await.unwrap_or(Err(GroupError::Unknown))
    }

    async fn read(&self, query: Query) -> Result<View, GroupError> {
        let (answerer, answer) = answer();
        self.0.send(Input::Read { query, answerer }).map_err(|()| GroupError::Overloaded)?;
        answer.await.unwrap_or(Err(GroupError::NotPrimary(None)))
    }

    async fn status(&self) -> Option<Status> {
        let (answerer, answer) = answer();
        self.0.send(Input::Status { answerer }).ok()?;
        answer.await
    }
}
