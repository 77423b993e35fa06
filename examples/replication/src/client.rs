//! A client of a group: it finds the primary, and sends a command again with the same number until it knows what became of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall::{CallError, ReconnectPolicy, RpcError};

use crate::level::Level;
use crate::membership::{Member, Membership, ReplicaId};
use crate::node::{Ack, GroupError, Status};
use crate::replica::{GroupClient, unique};
use crate::store::{Command, Query, Request, View};

/// How long a client waits before it asks again who the primary is.
const PAUSE: Duration = Duration::from_millis(5);

/// Why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// It was not done, and will not be.
    #[error("it was not done: {0}")]
    DidNotRun(String),
    /// It was done or not, or may still be done.
    #[error("whether it was done is not known: {0}")]
    Unknown(String),
    /// It was done, and is not as safe as was asked for.
    #[error(transparent)]
    Weaker(GroupError),
}

/// A client, which has one operation under way at a time.
pub struct Client {
    membership: Arc<dyn Membership>,
    id: u64,
    sequence: u64,
    timeout: Duration,
    connected: Option<(ReplicaId, GroupClient)>,
    /// Who the primary is, as a replica says.
    hint: Option<Member>,
    tries: u64,
}

impl Client {
    /// A client that was not there before.
    #[must_use]
    pub fn new(membership: Arc<dyn Membership>) -> Client {
        Client {
            membership,
            id: unique(),
            sequence: 0,
            timeout: Duration::from_secs(10),
            connected: None,
            hint: None,
            tries: 0,
        }
    }

    /// How long an operation may take, with all its tries. Default 10 s.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Client {
        Client { timeout, ..self }
    }

    /// How often it had to send something again.
    #[must_use]
    pub fn tries(&self) -> u64 {
        self.tries
    }

    /// Applies a command, at most once, and waits until it is at this level.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn submit(&mut self, command: Command, level: Level) -> Result<Ack, ClientError> {
        self.sequence += 1;
        let request = Request { client: self.id, sequence: self.sequence, command };
        self.repeat(|group| group.submit(request.clone(), level).wait())
    }

    /// Reads what all commands that were acknowledged before have made.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read(&mut self, query: Query) -> Result<View, ClientError> {
        self.repeat(|group| group.read(query.clone()).wait())
    }

    /// Waits until the group has so many members.
    ///
    /// # Errors
    /// [`ClientError`]: it has fewer when the time is over.
    pub fn wait_for_members(&mut self, count: usize) -> Result<(), ClientError> {
        let until = Instant::now() + self.timeout;
        loop {
            let newest = self.membership.current().map_err(|why| did_not_run(&why))?;
            if newest.members.len() >= count {
                return Ok(());
            }
            if Instant::now() > until {
                let members = newest.members.len();
                return Err(did_not_run(&format!("the group has {members} members")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Calls the primary until there is a result.
    fn repeat<T>(
        &mut self,
        call: impl Fn(&GroupClient) -> Result<T, CallError<GroupError>>,
    ) -> Result<T, ClientError> {
        let until = Instant::now() + self.timeout;
        let mut may_have_run = false;
        loop {
            let why = match self.group(until) {
                Err(why) => why,
                Ok(group) => match call(&group) {
                    Ok(result) => return Ok(result),
                    Err(error) => self.failed(error, &mut may_have_run)?,
                },
            };
            if Instant::now() > until {
                return Err(match may_have_run {
                    true => ClientError::Unknown(why),
                    false => ClientError::DidNotRun(why),
                });
            }
            self.tries += 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// What an error means for the operation. `Ok`: it is to be sent again.
    fn failed(
        &mut self,
        error: CallError<GroupError>,
        may_have_run: &mut bool,
    ) -> Result<String, ClientError> {
        let why = error.to_string();
        match error {
            CallError::Service(GroupError::NotPrimary(primary)) => {
                self.connected = None;
                self.hint = primary;
            }
            CallError::Service(error @ GroupError::Weaker { .. }) => {
                return Err(ClientError::Weaker(error));
            }
            CallError::Service(GroupError::TooLong(_) | GroupError::NotEnoughReplicas { .. }) => {
                // An earlier try may have been done at another primary.
                return Err(match *may_have_run {
                    true => ClientError::Unknown(why),
                    false => ClientError::DidNotRun(why),
                });
            }
            CallError::Service(error) => *may_have_run |= !error.did_not_run(),
            CallError::Rpc(error) => {
                *may_have_run |= error.may_have_run();
                self.connected = None;
                // A primary that is stopped answers nothing; the membership service knows its successor.
                self.hint = None;
            }
        }
        Ok(why)
    }

    /// The primary, as far as is known.
    fn group(&mut self, until: Instant) -> Result<GroupClient, String> {
        if let Some((_, group)) = &self.connected {
            return Ok(group.clone());
        }
        let primary = match self.hint.take() {
            Some(primary) => primary,
            None => {
                let newest = self.membership.current().map_err(|why| why.to_string())?;
                let primary = newest.member(newest.primary).cloned();
                primary.ok_or_else(|| "the group has no members".to_owned())?
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        let group =
            connect(&primary.address, left.min(CALL_TIMEOUT)).map_err(|why| why.to_string())?;
        self.connected = Some((primary.id, group.clone()));
        Ok(group)
    }
}

/// How long one try may take. A primary that is stopped answers nothing.
const CALL_TIMEOUT: Duration = Duration::from_millis(1000);

fn connect(address: &str, timeout: Duration) -> Result<GroupClient, farcall::ConnectError> {
    let timeout = timeout.max(Duration::from_millis(10));
    let connecting = GroupClient::connect(address).timeout(timeout).dial_timeout(timeout);
    connecting.reconnect(ReconnectPolicy::NEVER).wait()
}

fn did_not_run(why: &dyn std::fmt::Display) -> ClientError {
    ClientError::DidNotRun(why.to_string())
}

/// What the replica at this address is. `None`: it has ended.
///
/// # Errors
/// It does not answer.
pub fn status_of(address: &str, timeout: Duration) -> anyhow::Result<Option<Status>> {
    let status: Result<_, RpcError> = connect(address, timeout)?.status().wait();
    Ok(status?)
}
