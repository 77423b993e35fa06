//! The client's end of transfers: it moves the data, and then says so.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use farcall_core::codec::{self, Reader};
use farcall_transports::remote_memory::{MAX_OPERATION_BYTES, MemoryError, Remote};
use serde::de::DeserializeOwned;

use super::BulkError;
use super::service::BulkTransfersClient;
use crate::memory::{MemoryCall, RemoteMemory};
use crate::{Call, CallError, Channel, ConnectError, ServiceClient, ServiceDescription};

/// Bytes of one operation. Longer ones gain nothing, and other calls wait for them.
const STEP_BYTES: u64 = 4 << 20;

/// Operations of one transfer that are under way at a time.
const STEPS_AT_A_TIME: usize = 4;

const _: () = assert!(STEP_BYTES <= MAX_OPERATION_BYTES);

/// What a client needs for transfers: the server's [`Bulk`](super::Bulk), and its memory. Clones use the same connection.
///
/// Name both where the connection is made, `.also::<RemoteMemory>().also::<BulkClient>()`, and take them from a client's channel with
/// [`of`](Self::of).
#[derive(Clone, Debug)]
pub struct BulkClient {
    ends: BulkTransfersClient,
    memory: RemoteMemory,
}

impl BulkClient {
    /// Over the connection of another client, whose channel this is.
    ///
    /// # Errors
    /// [`ConnectError::NotCarried`]: the connection was made without this, or without [`RemoteMemory`].
    pub fn of(channel: &Channel) -> Result<BulkClient, ConnectError> {
        let memory = RemoteMemory::on(channel)?;
        Ok(BulkClient { memory, ..ServiceClient::on(channel)? })
    }

    /// This client, whose data are moved by operations of `memory`: by those of [`RemoteMemory::one_sided`], for example.
    pub fn with_memory(self, memory: RemoteMemory) -> BulkClient {
        BulkClient { memory, ..self }
    }
}

impl ServiceClient for BulkClient {
    const DESCRIPTION: &'static ServiceDescription = BulkTransfersClient::DESCRIPTION;

    fn from_channel(channel: Channel) -> Self {
        let memory = RemoteMemory::from_channel(channel.clone());
        BulkClient { ends: BulkTransfersClient::from_channel(channel), memory }
    }

    fn channel(&self) -> &Channel {
        self.ends.channel()
    }
}

/// A transfer: await it on any executor, or [`wait`](Self::wait) for it. It begins when it is first polled.
///
/// If it is dropped before it has ended, or fails, the memory is lent until its lease ends.
#[must_use = "a transfer begins when it is awaited or waited for"]
pub struct Transfer<T>(State<T>);

enum State<T> {
    Moving { steps: VecDeque<Step>, moved: Vec<Bytes>, end: End<T> },
    Refused(BulkError),
    Over,
}

type EndCall = Call<Result<Bytes, CallError<BulkError>>>;

/// What says that the transfer is over, and what is made of its answer.
struct End<T> {
    call: EndCall,
    make: Make<T>,
}

/// Makes the result of the bytes of each step, and of the server's answer.
type Make<T> = Box<dyn FnOnce(Vec<Bytes>, Bytes) -> Result<T, BulkError> + Send>;

/// One operation, which is sent when it is first polled.
enum Step {
    Read(MemoryCall<Bytes>),
    Write(MemoryCall<()>),
    Ended(Bytes),
}

impl Step {
    /// `true`: it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<bool, MemoryError> {
        let ended = match self {
            Step::Read(call) => Pin::new(call).poll(cx),
            Step::Write(call) => Pin::new(call).poll(cx).map_ok(|()| Bytes::new()),
            Step::Ended(_) => return Ok(true),
        };
        let Poll::Ready(ended) = ended else { return Ok(false) };
        *self = Step::Ended(ended?);
        Ok(true)
    }

    fn wait(self) -> Result<Bytes, MemoryError> {
        match self {
            Step::Read(call) => call.wait(),
            Step::Write(call) => call.wait().map(|()| Bytes::new()),
            Step::Ended(bytes) => Ok(bytes),
        }
    }
}

/// The parts of these bytes that are moved by one operation each.
fn steps(len: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..len).step_by(STEP_BYTES as usize).map(move |at| at..len.min(at + STEP_BYTES))
}

impl<T: Send + 'static> Transfer<T> {
    pub(super) fn reading(
        with: &BulkClient,
        parts: &[Remote],
        make: impl FnOnce(Vec<Bytes>) -> T + Send + 'static,
    ) -> Transfer<T> {
        let lens: Vec<u64> = parts.iter().map(Remote::len).collect();
        let step = |part: &Remote, range| Ok(Step::Read(with.memory.read(&part.slice(range)?)));
        let all = parts.iter().flat_map(|part| steps(part.len()).map(move |range| (part, range)));
        let made: Result<_, MemoryError> = all.map(|(part, range)| step(part, range)).collect();
        let make = move |moved, _| Ok(make(join(&lens, moved)));
        let call = |first| with.ends.end(first, true);
        Transfer::new(parts, made.map_err(BulkError::Memory), call, Box::new(make))
    }

    pub(super) fn skipping(
        with: &BulkClient,
        parts: &[Remote],
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Transfer<T> {
        let call = |first| with.ends.end(first, false);
        Transfer::new(parts, Ok(VecDeque::new()), call, Box::new(move |_, _| Ok(make())))
    }

    fn new(
        parts: &[Remote],
        steps: Result<VecDeque<Step>, BulkError>,
        call: impl FnOnce(Remote) -> EndCall,
        make: Make<T>,
    ) -> Transfer<T> {
        let none = BulkError::Parts { parts: 0 };
        Transfer(match (steps, parts.first()) {
            (Err(why), _) => State::Refused(why),
            (Ok(_), None) => State::Refused(none),
            (Ok(steps), Some(first)) => {
                let end = End { call: call(*first), make };
                State::Moving { steps, moved: Vec::new(), end }
            }
        })
    }

    /// Makes it, and blocks this thread until it ends.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn wait(self) -> Result<T, BulkError> {
        let State::Moving { steps, mut moved, end } = self.0 else { return self.0.refusal() };
        for step in steps {
            moved.push(step.wait()?);
        }
        let End { call, make } = end;
        make(moved, call.wait().map_err(not_told)?)
    }
}

impl<T: DeserializeOwned + Send + 'static> Transfer<T> {
    pub(super) fn writing(with: &BulkClient, parts: &[Remote], bytes: Vec<Bytes>) -> Transfer<T> {
        let made = check_lens(parts, &bytes).and_then(|()| {
            let mut made = VecDeque::new();
            for (part, bytes) in parts.iter().zip(bytes) {
                for range in steps(part.len()) {
                    let written = bytes.slice(range.start as usize..range.end as usize);
                    made.push_back(Step::Write(with.memory.write(&part.slice(range)?, written)));
                }
            }
            Ok(made)
        });
        let call = |first| with.ends.end(first, true);
        Transfer::new(parts, made, call, Box::new(|_, answer| decode(&answer)))
    }
}

fn check_lens(parts: &[Remote], bytes: &[Bytes]) -> Result<(), BulkError> {
    for part in 0..parts.len().max(bytes.len()) {
        let expected = parts.get(part).map_or(0, Remote::len);
        let len = bytes.get(part).map_or(0, |bytes| bytes.len() as u64);
        if len != expected {
            return Err(BulkError::Length { part: part as u32, len, expected });
        }
    }
    Ok(())
}

/// The bytes of each part: those of one step as they came, of several joined.
fn join(lens: &[u64], moved: Vec<Bytes>) -> Vec<Bytes> {
    let mut moved = moved.into_iter();
    let part = |len: &u64| match len.div_ceil(STEP_BYTES) as usize {
        1 => moved.next().unwrap_or_default(),
        steps => {
            let mut whole = BytesMut::with_capacity(*len as usize);
            moved.by_ref().take(steps).for_each(|bytes| whole.extend_from_slice(&bytes));
            whole.freeze()
        }
    };
    lens.iter().map(part).collect()
}

fn decode<T: DeserializeOwned>(answer: &Bytes) -> Result<T, BulkError> {
    codec::decode::<codec::Serde, T>(Reader::owned(answer))
        .map_err(|why| BulkError::Value(why.to_string()))
}

#[cold]
fn not_told(error: CallError<BulkError>) -> BulkError {
    match error {
        CallError::Service(error) => error,
        CallError::Rpc(error) => BulkError::NotTold(error.to_string()),
    }
}

impl<T> State<T> {
    #[cold]
    fn refusal(self) -> Result<T, BulkError> {
        Err(match self {
            State::Refused(why) => why,
            _ => BulkError::Over,
        })
    }

    /// Moves on. `Ok(false)`: steps are under way.
    fn poll_steps(
        steps: &mut VecDeque<Step>,
        moved: &mut Vec<Bytes>,
        cx: &mut Context<'_>,
    ) -> Result<bool, MemoryError> {
        loop {
            for step in steps.iter_mut().take(STEPS_AT_A_TIME) {
                step.poll(cx)?;
            }
            let before = moved.len();
            while let Some(Step::Ended(bytes)) = steps.front_mut() {
                moved.push(std::mem::take(bytes));
                steps.pop_front();
            }
            match (steps.is_empty(), moved.len() > before) {
                (true, _) => return Ok(true),
                // Others can begin.
                (false, true) => {}
                (false, false) => return Ok(false),
            }
        }
    }
}

impl<T> Future for Transfer<T> {
    type Output = Result<T, BulkError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let State::Moving { steps, moved, end } = &mut self.0 else {
            return Poll::Ready(std::mem::replace(&mut self.0, State::Over).refusal());
        };
        let answer = match State::<T>::poll_steps(steps, moved, cx) {
            Ok(false) => return Poll::Pending,
            Err(why) => Err(why.into()),
            Ok(true) => match Pin::new(&mut end.call).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(answer) => answer.map_err(not_told),
            },
        };
        let State::Moving { moved, end, .. } = std::mem::replace(&mut self.0, State::Over) else {
            return Poll::Ready(Err(BulkError::Over));
        };
        Poll::Ready(answer.and_then(|answer| (end.make)(moved, answer)))
    }
}

/// It has no references to itself.
impl<T> Unpin for Transfer<T> {}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").finish_non_exhaustive()
    }
}
