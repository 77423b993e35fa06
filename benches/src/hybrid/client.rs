//! A client of the day, as an actor of the rack.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use farcall::rack::sim::{Actor, Next, Node, Turn};
use farcall::rack::{Dialled, Dialling, turn_after};
use farcall::time::Instant;
use farcall::{Connection, ConnectionOptions, PendingCall, PollClient as _, RpcError};
use farcall_core::time::PollAt;

use super::day::Kind;
use super::run::Tally;

#[farcall::service]
pub(super) trait Work {
    /// Returns the bytes after so many nanoseconds of the server's CPU.
    fn work(&self, nanos: u64, bytes: &[u8]) -> Vec<u8>;
}

/// Takes the time of the node's CPU.
pub(super) struct Worker(pub(super) Node);

impl Work for Worker {
    fn work(&self, nanos: u64, bytes: &[u8]) -> Vec<u8> {
        self.0.busy(nanos);
        bytes.to_vec()
    }
}

/// No call takes so long, even behind those of a crowd.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// When a call is tried again for which there was no room.
const RETRY_NS: u64 = 1_000;

/// A call under way.
struct Call {
    pending: PendingCall<Result<Vec<u8>, RpcError>>,
    sent: Instant,
    bytes: usize,
    phase: usize,
}

/// One client: it makes the calls of the present phase if it has a part in it.
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) dialling: Option<Dialling>,
    pub(super) message: Rc<[u8]>,
    pub(super) tally: Rc<RefCell<Tally>>,
    work: Option<WorkPollClient>,
    calls: Vec<Call>,
}

impl Client {
    pub(super) fn new(
        number: usize,
        dialling: Dialling,
        message: &Rc<[u8]>,
        tally: &Rc<RefCell<Tally>>,
    ) -> Client {
        Client {
            number,
            dialling: Some(dialling),
            message: Rc::clone(message),
            tally: Rc::clone(tally),
            work: None,
            calls: Vec::new(),
        }
    }

    fn advance(&mut self, now: Instant) -> Result<Turn> {
        if let Some(dialling) = &mut self.dialling {
            let connection = match dialling.turn(now) {
                Dialled::NotYet(at) => return Ok(Turn::then(Next::At(at.as_nanos()))),
                Dialled::Done(connection) => connection?,
            };
            let options = ConnectionOptions::default().timeout(CALL_TIMEOUT);
            let connection = Connection::new(connection, dialling.site(), &options);
            self.work = Some(WorkPollClient::from_connection(connection));
            self.dialling = None;
            self.tally.borrow_mut().connected += 1;
        }
        let work = self.work.as_mut().context("not connected")?;
        let mut progress = work.connection().turn(now);
        let mut tally = self.tally.borrow_mut();
        let mut failed = None;
        self.calls.retain_mut(|call| match work.take(&mut call.pending) {
            None => true,
            Some(Ok(bytes)) if bytes.len() == call.bytes => {
                tally.answer(call.phase, (now - call.sent).as_nanos() as u64);
                false
            }
            Some(answer) => {
                failed = Some(
                    answer.map_or_else(|error| error.to_string(), |_| "a wrong answer".into()),
                );
                false
            }
        });
        if let Some(failed) = failed {
            anyhow::bail!("client {}: {failed}", self.number);
        }
        let phase = tally.phase;
        let Some(Kind { bytes, outstanding, handler_ns }) = tally.kind_of(self.number) else {
            return Ok(turn_after(progress));
        };
        let had = self.calls.len();
        for _ in had..outstanding {
            match work.start_work(handler_ns, &self.message[..bytes]) {
                Ok(pending) => self.calls.push(Call { pending, sent: now, bytes, phase }),
                // Not yet: the send queue is full, or it is not this client's turn.
                Err(RpcError::Overloaded(_)) => {
                    let again = PollAt::At(now.saturating_add_nanos(RETRY_NS));
                    progress.next = progress.next.earlier(again);
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if self.calls.len() > had {
            let next = progress.next;
            progress = work.connection().turn(now);
            progress.next = progress.next.earlier(next);
        }
        Ok(turn_after(progress))
    }
}

impl Actor for Client {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let turn = self.advance(Instant::from_nanos(now_ns));
        self.tally.borrow_mut().failure.turn(turn)
    }
}
