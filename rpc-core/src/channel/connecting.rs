//! Connecting: a builder of the channel's options that dials when it is awaited, or waited for.

use super::endpoint::Endpoint;
use super::handle::Channel;
use super::io::DIALLING;
use super::options::{ChannelOptions, ReconnectPolicy};
use crate::error::{ConnectError, Source};
use crate::identity::Key;
use crate::idle::IdlePolicy;
use crate::panics::contain;
use crate::service::{ServiceClient, ServiceDescription};
use crate::transport::{DialTls, ParseAddress, ServerAddress, ToAddress};
use atomic_waker::AtomicWaker;
use core::fmt;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use std::io;
use std::sync::Arc;
use std::thread;

/// A client that is about to connect: await it on any executor, or [`wait`](Self::wait) for it.
///
/// Nothing is dialled before that; the other methods set the client's options.
#[must_use = "nothing is dialled until it is awaited or waited for"]
pub struct Connecting<C> {
    address: Result<Box<dyn ServerAddress>, Source>,
    options: ChannelOptions,
    client: PhantomData<fn() -> C>,
}

impl<C: ServiceClient> Connecting<C> {
    /// A client of the server at this address. Text is parsed by `parse`.
    #[doc(hidden)]
    pub fn to(address: impl ToAddress, parse: ParseAddress) -> Self {
        let (address, options) = (address.to_address(parse), ChannelOptions::default());
        Connecting { address, options, client: PhantomData }
    }

    /// How long a call without a timeout or deadline of its own may take. Default 10 s.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout(timeout))
    }

    /// The limit of calls at once: see [`ChannelOptions::max_calls`]. Default 4096.
    pub fn max_calls(self, calls: usize) -> Self {
        self.with(|options| options.max_calls(calls))
    }

    /// Puts the client on the thread of this endpoint. Default: a thread for this client alone.
    pub fn endpoint(self, endpoint: &Endpoint) -> Self {
        self.with(|options| options.endpoint(endpoint))
    }

    /// What callers that wait, and the client's own I/O thread, do while there is nothing to do: see [`ChannelOptions::idle`].
    pub fn idle(self, idle: IdlePolicy) -> Self {
        self.with(|options| options.idle(idle))
    }

    /// How long it may take to connect, from resolving the host's name to the end of the handshake. Default 5 s.
    pub fn dial_timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.dial_timeout(timeout))
    }

    /// Has the connection carry calls of this other service, too, for [`ServiceClient::on`]: see [`ChannelOptions::also`].
    pub fn also<S: ServiceClient>(self) -> Self {
        self.with(|options| options.also(S::DESCRIPTION))
    }

    /// Refuses servers that lack these methods: see [`ChannelOptions::require`].
    pub fn require(self, methods: &[&'static str]) -> Self {
        self.with(|options| options.require(methods))
    }

    /// Whether to share with the other clients of the endpoint what the backend can share: see [`ChannelOptions::share`].
    /// Default: no.
    pub fn share(self, share: bool) -> Self {
        self.with(|options| options.share(share))
    }

    /// Has this thread of the server serve the client, by its number from 0: see [`ChannelOptions::server_thread`]. Default: the server takes
    /// its threads in rotation.
    pub fn server_thread(self, thread: u16) -> Self {
        self.with(|options| options.server_thread(thread))
    }

    /// Proves to the server who this client is, also when it reconnects: see [`ChannelOptions::key`]. Default: no key.
    pub fn key(self, key: Key) -> Self {
        self.with(|options| options.key(key))
    }

    /// Shakes hands within TLS, also when it reconnects: see [`ChannelOptions::tls`]. Default: no TLS.
    pub fn tls(self, tls: impl Into<DialTls>) -> Self {
        self.with(|options| options.tls(tls))
    }

    /// Whether to reconnect when the server is gone. Default: yes, at the next call.
    pub fn reconnect(self, reconnect: ReconnectPolicy) -> Self {
        self.with(|options| options.reconnect(reconnect))
    }

    /// Replaces all options.
    pub fn options(self, options: ChannelOptions) -> Self {
        Connecting { options, ..self }
    }

    fn with(self, change: impl FnOnce(ChannelOptions) -> ChannelOptions) -> Self {
        Connecting { options: change(self.options), ..self }
    }

    /// Connects, and blocks this thread meanwhile, at most for [`dial_timeout`](Self::dial_timeout).
    ///
    /// # Errors
    /// [`ConnectError`]: the address is invalid, or the server cannot be reached or refuses.
    pub fn wait(self) -> Result<C, ConnectError> {
        let address = self.address.map_err(ConnectError::InvalidAddress)?;
        Channel::connect(address, C::DESCRIPTION, self.options).map(C::from_channel)
    }
}

impl<C: ServiceClient> IntoFuture for Connecting<C> {
    type Output = Result<C, ConnectError>;
    type IntoFuture = Dialling<C>;

    fn into_future(self) -> Dialling<C> {
        let state = match self.address {
            Ok(address) => State::Prepared(Prepared {
                address,
                service: C::DESCRIPTION,
                options: self.options,
            }),
            Err(why) => State::Failed(ConnectError::InvalidAddress(why)),
        };
        Dialling { state, client: PhantomData }
    }
}

impl<C> fmt::Debug for Connecting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A client that connects while it is awaited: see [`Connecting`].
///
/// Dialling blocks, so a thread of its own does it, from the first poll until the connection is made or the dial's timeout
/// is over. If the future is dropped before, the connection is closed as soon as it is made.
#[must_use = "nothing is dialled until it is polled"]
pub struct Dialling<C> {
    state: State,
    client: PhantomData<fn() -> C>,
}

/// What the dialling thread needs.
struct Prepared {
    address: Box<dyn ServerAddress>,
    service: &'static ServiceDescription,
    options: ChannelOptions,
}

enum State {
    Prepared(Prepared),
    Dialling { dialled: Receiver<Result<Channel, ConnectError>>, waker: Arc<AtomicWaker> },
    Failed(ConnectError),
    Over,
}

impl Prepared {
    /// Starts the thread that dials.
    fn dial(self) -> State {
        let service = self.service.name;
        let waker = Arc::new(AtomicWaker::new());
        let (answer, dialled) = bounded(1);
        let wake_last = WakeOnDrop(waker.clone());
        let dial = move || {
            let _wake_last = wake_last;
            // If the future was dropped meanwhile, this drops the channel. The sender goes before the caller is woken, also
            // if dialling panics.
            let connect =
                || answer.send(Channel::connect(self.address, self.service, self.options));
            let _ = contain(DIALLING, connect);
        };
        match thread::Builder::new().name("farcall-dial".into()).spawn(dial) {
            Ok(_) => State::Dialling { dialled, waker },
            Err(cause) => State::Failed(failed(service, "starting a thread that dials", cause)),
        }
    }
}

/// Wakes the caller when the dialling thread ends.
struct WakeOnDrop(Arc<AtomicWaker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        contain("a waker", || self.0.wake());
    }
}

#[cold]
fn failed(service: &str, doing: &'static str, cause: io::Error) -> ConnectError {
    ConnectError::Io { address: service.into(), doing, cause }
}

impl<C: ServiceClient> Future for Dialling<C> {
    type Output = Result<C, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Prepared(_) = self.state
            && let State::Prepared(prepared) = core::mem::replace(&mut self.state, State::Over)
        {
            self.state = prepared.dial();
        }
        let ended = match core::mem::replace(&mut self.state, State::Over) {
            State::Dialling { dialled, waker } => {
                waker.register(cx.waker());
                match dialled.try_recv() {
                    Ok(result) => result,
                    Err(TryRecvError::Empty) => {
                        self.state = State::Dialling { dialled, waker };
                        return Poll::Pending;
                    }
                    Err(TryRecvError::Disconnected) => {
                        let cause = io::Error::other("the thread that dialled has panicked");
                        Err(failed(C::DESCRIPTION.name, "dialling", cause))
                    }
                }
            }
            State::Failed(error) => Err(error),
            State::Prepared(_) | State::Over => {
                let cause = io::Error::other("it was polled after it had ended");
                Err(failed(C::DESCRIPTION.name, "connecting", cause))
            }
        };
        Poll::Ready(ended.map(C::from_channel))
    }
}

impl<C> fmt::Debug for Dialling<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Prepared(_) => "prepared",
            State::Dialling { .. } => "dialling",
            State::Failed(_) => "failed",
            State::Over => "over",
        };
        write!(f, "Dialling({state})")
    }
}
