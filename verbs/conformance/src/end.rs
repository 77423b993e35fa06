//! One end of a case: its device, its link to the other end, and bounded waiting.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use farcall_verbs::{CompletionChannel, Device, OpenError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::link::{Link, LinkClosed};
use crate::usage::Usage;
use crate::verdict::{CaseResult, Halt};

/// The role of an end in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Posts the operations that the case is about.
    Initiator,
    /// Owns the memory, or the receives, that they reach.
    Target,
}

/// Counts what an end holds.
pub type CountUsage = Box<dyn Fn() -> io::Result<Usage>>;

/// What a fixture can do besides carrying a case.
#[derive(Default)]
pub struct Powers {
    /// Kills the other end at once, with no chance to say goodbye (SIGKILL, a power cut).
    pub kill_peer: Option<Box<dyn FnMut()>>,
    /// Stops the other end's process (`true`), or lets it go on.
    pub stop_peer: Option<Box<dyn FnMut(bool)>>,
    /// Opens this end's device once more.
    pub reopen: Option<Box<dyn Fn() -> Result<Device, OpenError>>>,
    /// Counts what this end holds, where nothing else is counted with it.
    pub usage: Option<CountUsage>,
    /// This end has a thread of its own, which may sleep in the device. Otherwise both ends (and
    /// perhaps time itself) only move when every end has given up its turn.
    pub may_block: bool,
}

/// No single wait is longer, by the device's clock: ample on a machine that is busy with other things.
pub const PATIENCE_NS: u64 = 15_000_000_000;

/// One end of a case.
pub struct End {
    role: Role,
    device: Device,
    link: Box<dyn Link>,
    powers: Powers,
}

impl End {
    /// An end on `device` whose peer is at the other side of `link`.
    pub fn new(role: Role, device: Device, link: Box<dyn Link>, powers: Powers) -> End {
        End { role, device, link, powers }
    }

    /// This end's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// This end's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the fixture can do.
    pub fn powers(&mut self) -> &mut Powers {
        &mut self.powers
    }

    /// What this end holds now.
    pub fn usage(&self) -> CaseResult<Usage> {
        match &self.powers.usage {
            Some(count) => Ok(count()?),
            None => Err(Halt::failed("the fixture offered to count what an end holds")),
        }
    }

    /// Sends a value to the other end, which receives it with [`End::hear`].
    pub fn tell<T: Serialize + ?Sized>(&mut self, what: &T) -> CaseResult {
        let message = postcard::to_allocvec(what)?;
        self.link.send(&message).map_err(|LinkClosed| left())
    }

    /// Waits for the next value from the other end.
    pub async fn hear<T: DeserializeOwned>(&mut self) -> CaseResult<T> {
        let message = self.hear_bytes().await?;
        Ok(postcard::from_bytes(&message)?)
    }

    async fn hear_bytes(&mut self) -> CaseResult<Vec<u8>> {
        let deadline_ns = self.deadline_ns();
        loop {
            match self.link.try_receive() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(LinkClosed) => return Err(left()),
            }
            if self.device.now_ns() > deadline_ns {
                return Err(Halt::PeerLeft("the other end sent nothing in time".into()));
            }
            turn().await;
        }
    }

    /// The next value from the other end, if it has arrived: for loops that work while they wait.
    pub fn overhear<T: DeserializeOwned>(&mut self) -> CaseResult<Option<T>> {
        match self.link.try_receive() {
            Ok(Some(message)) => Ok(Some(postcard::from_bytes(&message)?)),
            Ok(None) => Ok(None),
            Err(LinkClosed) => Err(left()),
        }
    }

    /// Exchanges values with the other end.
    pub async fn exchange<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> CaseResult<T> {
        self.tell(mine)?;
        self.hear().await
    }

    /// Waits until both ends are here.
    pub async fn meet(&mut self) -> CaseResult {
        self.exchange(&()).await
    }

    /// Waits, with a bound, until `attempt` finds what it looks for.
    pub async fn poll_until<T>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> CaseResult<Option<T>>,
    ) -> CaseResult<T> {
        let deadline_ns = self.deadline_ns();
        loop {
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            if self.device.now_ns() > deadline_ns {
                return Err(Halt::Failed(format!("timed out waiting for {what}")));
            }
            turn().await;
        }
    }

    /// Sleeps until `channel` has an event or `timeout_ns` have passed; true for an event.
    pub async fn sleep_until_event(
        &self,
        channel: &CompletionChannel,
        timeout_ns: u64,
    ) -> CaseResult<bool> {
        if self.powers.may_block {
            return Ok(channel.wait(std::time::Duration::from_nanos(timeout_ns))?);
        }
        let deadline_ns = self.device.now_ns().saturating_add(timeout_ns);
        loop {
            if channel.wait(std::time::Duration::ZERO)? {
                return Ok(true);
            }
            if self.device.now_ns() > deadline_ns {
                return Ok(false);
            }
            turn().await;
        }
    }

    /// When a wait that starts now has taken too long.
    pub fn deadline_ns(&self) -> u64 {
        self.device.now_ns().saturating_add(PATIENCE_NS)
    }
}

fn left() -> Halt {
    Halt::PeerLeft("the other end closed the link".into())
}

/// Gives up the turn once: the other end, and time, may move.
pub async fn turn() {
    Turn { taken: false }.await;
}

struct Turn {
    taken: bool,
}

impl Future for Turn {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.taken {
            return Poll::Ready(());
        }
        self.taken = true;
        Poll::Pending
    }
}
