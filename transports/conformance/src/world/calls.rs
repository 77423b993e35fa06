//! Calls of a case: started, finished and cancelled, with bounded waits.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use farcall_core::{
    CallError, PendingCall, PollClient, RpcError,
    codec::{As, Whole},
    service::{Answer, Method},
};

use super::{Server, World};
use crate::{
    pattern,
    service::{SuiteError, SuitePollClient},
};

impl World<'_> {
    /// One turn of a client, without waiting for anything.
    pub fn turn(&self, client: &mut impl PollClient) {
        client.connection().poll();
        self.fixture.turn();
    }

    /// Starts a call, as soon as there is room for it.
    #[track_caller]
    pub fn try_start<P: PollClient, R>(
        &self,
        client: &mut P,
        mut start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> Result<PendingCall<R>, RpcError> {
        self.until("the client has room for one more call", || match start(client) {
            Err(RpcError::Overloaded(_)) => {
                client.connection().poll();
                None
            }
            other => Some(other),
        })
    }

    /// Starts a call as soon as there is room for it; it must start.
    #[track_caller]
    pub fn start<P: PollClient, R>(
        &self,
        client: &mut P,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> PendingCall<R> {
        match self.try_start(client, start) {
            Ok(pending) => pending,
            Err(error) => panic!("start a call: {error:?}"),
        }
    }

    /// The outcome of a started call.
    #[track_caller]
    pub fn finish<P: PollClient, R: 'static>(
        &self,
        client: &mut P,
        mut pending: PendingCall<R>,
    ) -> R {
        self.until("a call has ended", || {
            client.connection().poll();
            client.connection().take(&mut pending)
        })
    }

    /// The outcome of a call started by one of several clients; all are polled.
    #[track_caller]
    pub fn finish_among<P: PollClient, R: 'static>(
        &self,
        clients: &mut [P],
        which: usize,
        mut pending: PendingCall<R>,
    ) -> R {
        self.until("a call has ended", || {
            for client in &mut *clients {
                client.connection().poll();
            }
            clients[which].connection().take(&mut pending)
        })
    }

    /// Starts a call and waits for its outcome.
    #[track_caller]
    pub fn call<P: PollClient, T: 'static, E: From<RpcError> + 'static>(
        &self,
        client: &mut P,
        start: impl FnMut(&mut P) -> Result<PendingCall<Result<T, E>>, RpcError>,
    ) -> Result<T, E> {
        let pending = self.try_start(client, start)?;
        self.finish(client, pending)
    }

    /// Starts a call with a timeout of its own; it must start.
    #[track_caller]
    pub fn start_within<P: PollClient, R>(
        &self,
        client: &mut P,
        timeout: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> PendingCall<R> {
        match self.try_start_within(client, timeout, start) {
            Ok(pending) => pending,
            Err(error) => panic!("start a call: {error:?}"),
        }
    }

    /// Starts a call with a timeout of its own.
    #[track_caller]
    pub fn try_start_within<P: PollClient, R>(
        &self,
        client: &mut P,
        timeout: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<R>, RpcError>,
    ) -> Result<PendingCall<R>, RpcError> {
        client.connection().set_timeout(timeout);
        let started = self.try_start(client, start);
        client.connection().set_timeout(self.bound);
        started
    }

    /// Starts a call with a timeout of its own, and waits for its outcome.
    #[track_caller]
    pub fn call_within<P: PollClient, T: 'static, E: From<RpcError> + 'static>(
        &self,
        client: &mut P,
        timeout: Duration,
        start: impl FnMut(&mut P) -> Result<PendingCall<Result<T, E>>, RpcError>,
    ) -> Result<T, E> {
        let pending = self.try_start_within(client, timeout, start)?;
        self.finish(client, pending)
    }

    /// Waits until as many calls as that are held at a gate; the client that made them is polled.
    #[track_caller]
    pub fn wait_held(
        &self,
        client: &mut SuitePollClient,
        helper: &mut SuitePollClient,
        gate: u64,
        count: u64,
    ) {
        self.until(&format!("{count} calls are held at gate {gate}"), || {
            client.connection().poll();
            (self.call(helper, |c| c.start_held(gate)) == Ok(count)).then_some(())
        });
    }

    /// Fills the client's window with calls and drains it, twice: every slot and credit is available.
    #[track_caller]
    pub fn assert_full_window_works(
        &self,
        client: &mut SuitePollClient,
        helper: &mut SuitePollClient,
        window: u32,
    ) {
        // Gates that neither a case nor an earlier call of this uses.
        static GATES: AtomicU64 = AtomicU64::new(1 << 60);
        for _ in 0..2 {
            let gate = GATES.fetch_add(1, Ordering::Relaxed);
            let pending: Vec<_> = (0..u64::from(window))
                .map(|value| (value, self.start(client, |c| c.start_hold(gate, value))))
                .collect();
            self.wait_held(client, helper, gate, u64::from(window));
            assert_eq!(self.call(helper, |c| c.start_open(gate)), Ok(()));
            for (value, pending) in pending {
                assert_eq!(self.finish(client, pending), Ok(value));
            }
        }
    }
}

impl World<'_> {
    /// Makes large calls from several new clients at once, more than the server's memory holds at a time: they would never
    /// end if memory had leaked.
    #[track_caller]
    pub fn assert_large_calls_get_their_memory(&self, server: &Server, len: usize) {
        let mut clients: Vec<_> = (0..4).map(|_| self.client(server)).collect();
        for round in 0..3u64 {
            let mut pending = Vec::new();
            for (which, client) in clients.iter_mut().enumerate() {
                for i in 0..4 {
                    let seed = round * 16 + which as u64 * 4 + i;
                    let message = pattern::make(seed, len);
                    pending.push((which, seed, self.start(client, |c| c.start_echo(&message))));
                }
            }
            for (which, seed, pending) in pending {
                let echoed = self.finish_among(&mut clients, which, pending).expect("echo");
                pattern::assert_is(seed, len, &echoed);
            }
        }
    }
}

/// A method by its number, with raw bytes as arguments and result, unlike any generated client.
struct Raw<const ID: u32>;

impl<const ID: u32> Method for Raw<ID> {
    const NAME: &'static str = "raw";
    const ID: u32 = ID;
    type Output = Result<Vec<u8>, RpcError>;

    fn read(answer: Answer<'_>) -> Self::Output {
        match answer {
            Answer::Value(message) => Ok(message.to_vec()),
            Answer::Service(message) => panic!("a service's own error: {message:?}"),
            Answer::Failed(error) => Err(error),
        }
    }
}

impl World<'_> {
    /// Calls method number `ID` with these bytes as arguments.
    #[track_caller]
    pub fn call_raw<const ID: u32>(
        &self,
        client: &mut SuitePollClient,
        arguments: &[u8],
    ) -> Result<Vec<u8>, RpcError> {
        let arguments = As::<Whole, _>::new(arguments);
        self.call(client, |c| c.connection().start::<Raw<ID>, _>(&arguments))
    }
}

/// A call whose kind of outcome does not matter.
#[derive(Debug)]
pub enum AnyPending {
    /// It gives bytes.
    Bytes(PendingCall<Result<Vec<u8>, RpcError>>),
    /// It gives a number.
    Number(PendingCall<Result<u64, RpcError>>),
    /// It gives a number, or the service's own error.
    Checked(PendingCall<Result<u64, CallError<SuiteError>>>),
}

impl From<PendingCall<Result<Vec<u8>, RpcError>>> for AnyPending {
    fn from(pending: PendingCall<Result<Vec<u8>, RpcError>>) -> Self {
        AnyPending::Bytes(pending)
    }
}

impl From<PendingCall<Result<u64, RpcError>>> for AnyPending {
    fn from(pending: PendingCall<Result<u64, RpcError>>) -> Self {
        AnyPending::Number(pending)
    }
}

impl From<PendingCall<Result<u64, CallError<SuiteError>>>> for AnyPending {
    fn from(pending: PendingCall<Result<u64, CallError<SuiteError>>>) -> Self {
        AnyPending::Checked(pending)
    }
}

impl AnyPending {
    /// Cancels the call.
    pub fn cancel(self, client: &mut impl PollClient) {
        match self {
            AnyPending::Bytes(pending) => client.connection().cancel(pending),
            AnyPending::Number(pending) => client.connection().cancel(pending),
            AnyPending::Checked(pending) => client.connection().cancel(pending),
        }
    }
}

impl World<'_> {
    /// Waits for the end of a call, whatever it gives.
    #[track_caller]
    pub fn finish_any(
        &self,
        client: &mut impl PollClient,
        pending: AnyPending,
    ) -> Result<(), RpcError> {
        match pending {
            AnyPending::Bytes(pending) => self.finish(client, pending).map(drop),
            AnyPending::Number(pending) => self.finish(client, pending).map(drop),
            AnyPending::Checked(pending) => match self.finish(client, pending) {
                Ok(_) => Ok(()),
                Err(CallError::Rpc(error)) => Err(error),
                Err(CallError::Service(error)) => panic!("{error}"),
            },
        }
    }
}
