//! What the code that is generated for a service implements.

use crate::channel::Channel;
use crate::client::Connection;
use crate::codec::{self, Decode, EncodeError, Malformed, Reader};
use crate::error::{CallError, ConnectError, RpcError};
use crate::server::Reply;
use crate::shape::{self, Signature};
use crate::transport::Message;

/// A service: its name, its methods, and a fingerprint of its signatures.
#[derive(Debug)]
pub struct ServiceDescription {
    /// The trait's name.
    pub name: &'static str,
    /// A hash of all methods: their ids, shapes and flags. Two ends with the same one need not compare the methods.
    pub fingerprint: u64,
    /// The methods, in the trait's order, and then their older versions. A method's index here is its index in
    /// [`Service::dispatch`].
    pub methods: &'static [MethodDescription],
}

impl ServiceDescription {
    /// A service with this name and these methods.
    pub const fn new(name: &'static str, methods: &'static [MethodDescription]) -> Self {
        ServiceDescription { name, fingerprint: shape::fingerprint(name, methods), methods }
    }
}

/// One method of a service.
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodDescription {
    /// The method's name. From the second version on, the version follows: `get@2`.
    pub name: &'static str,
    /// Its id on the wire: stable, and unique among the services of one server.
    pub id: u32,
    /// A hash of how its arguments and results are encoded, and of what their parts mean. Two ends can call each other's
    /// method if both its id and its shape are equal at both. [`idempotent`](Self::idempotent) is not part of it.
    pub shape: u64,
    /// What [`shape`](Self::shape) is the hash of, if the description was generated.
    pub signature: Option<&'static Signature>,
    /// One call of it may run more than once: see [`Method::IDEMPOTENT`].
    pub idempotent: bool,
    /// Its calls may run on any thread of the server, and in any order: see
    /// [`ServerBuilder::work_stealing`](crate::ServerBuilder::work_stealing).
    pub any_thread: bool,
    /// A client does not connect to a server that lacks the method or declares it with another shape.
    pub required: bool,
    /// It is an older version of another method here, which clients of this service call instead.
    pub superseded: bool,
    /// The older versions of the method, the newest first: a client calls them at a server that lacks this one.
    pub older: &'static [OlderVersion],
}

/// A version of a method without some of the arguments that the newest has.
#[derive(Debug)]
pub struct OlderVersion {
    /// Its id on the wire.
    pub id: u32,
    /// A hash of how its arguments and results are encoded.
    pub shape: u64,
    /// Its only argument is a byte string, which is the whole message.
    pub is_whole: bool,
    /// The arguments that it lacks, with their defaults, as the newest version encodes them.
    pub defaults: fn() -> Result<Vec<u8>, EncodeError>,
}

impl OlderVersion {
    /// The version with this id and signature.
    pub const fn of(
        id: u32,
        signature: &'static Signature,
        is_whole: bool,
        defaults: fn() -> Result<Vec<u8>, EncodeError>,
    ) -> Self {
        OlderVersion { id, shape: signature.hash(), is_whole, defaults }
    }
}

impl MethodDescription {
    /// A method whose handler runs at most once per call.
    pub const fn new(name: &'static str, id: u32, shape: u64) -> Self {
        let (idempotent, any_thread, required) = (false, false, false);
        MethodDescription {
            name,
            id,
            shape,
            signature: None,
            idempotent,
            any_thread,
            required,
            superseded: false,
            older: &[],
        }
    }

    /// A method with this signature.
    pub const fn of(name: &'static str, id: u32, signature: &'static Signature) -> Self {
        let signed = Some(signature);
        MethodDescription { signature: signed, ..Self::new(name, id, signature.hash()) }
    }

    /// The same method, declared idempotent.
    pub const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// The same method, without which a client does not connect.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The same method, as an older version of another one.
    pub const fn superseded(mut self) -> Self {
        self.superseded = true;
        self
    }

    /// The same method, with older versions.
    pub const fn with_older(mut self, older: &'static [OlderVersion]) -> Self {
        self.older = older;
        self
    }

    /// The same method, whose calls may run on any thread.
    pub const fn any_thread(mut self) -> Self {
        self.any_thread = true;
        self
    }
}

/// An id that no method of a service may have, because one that was removed had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The name of a method, and the id that it has by it.
    Name(&'static str, u32),
    /// An id.
    Id(u32),
}

/// One method, for its caller. Generated: each method has a type without values.
pub trait Method {
    /// The service's name and the method's: `Kv.get`.
    const NAME: &'static str;
    /// The method's id on the wire.
    const ID: u32;
    /// One call of it may run more than once, even after its caller has had the answer. Otherwise a call runs at most once.
    /// A backend on a reliable connection runs it once in any case; the others need not keep its answers.
    const IDEMPOTENT: bool = false;
    /// How many of the arguments each older version has, in the order of [`MethodDescription::older`].
    const OLDER: &'static [usize] = &[];
    /// The result of a call: `Result<T, CallError<E>>` if the method returns `Result<T, E>`, otherwise
    /// `Result<T, RpcError>`.
    type Output;

    /// Makes the result from the answer.
    fn read(answer: Answer<'_>) -> Self::Output;

    /// Makes the result from a short value. Generated code inlines all of it: a value that small functions pass through
    /// memory is loaded while it is still in the store buffer, which costs more than the call.
    #[inline(always)]
    fn read_short(value: &[u8]) -> Self::Output {
        Self::read(Answer::Value(Message::Borrowed(value)))
    }
}

/// How a call ended, without the message's header.
#[derive(Debug)]
pub enum Answer<'m> {
    /// The method's value, or the `Ok` of its `Result`.
    Value(Message<'m>),
    /// The `Err` of the method's `Result`.
    Service(Message<'m>),
    /// The call has no answer from the service.
    Failed(RpcError),
}

/// Makes the result of a method that does not return a `Result`; `value` is [`side`].
#[inline(always)]
pub fn read_value<T>(
    method: &'static str,
    answer: Answer<'_>,
    value: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, RpcError> {
    match answer {
        Answer::Value(message) => {
            let mut reader = Reader::of(&message);
            match value(&mut reader) {
                Ok(value) => Ok(value),
                Err(_) => Err(malformed_answer(method, "value", reader)),
            }
        }
        Answer::Service(_) => Err(RpcError::PeerMisbehaved {
            may_have_run: true,
            what: "a method that cannot fail was answered with an error of the service",
        }),
        Answer::Failed(why) => Err(why),
    }
}

/// Makes the result of a method that returns `Result<T, E>`; `value` and `error` are [`side`].
#[inline(always)]
pub fn read_result<T, E>(
    method: &'static str,
    answer: Answer<'_>,
    value: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    error: impl FnOnce(&mut Reader<'_>) -> Result<E, Malformed>,
) -> Result<T, CallError<E>> {
    match answer {
        Answer::Value(message) => {
            let mut reader = Reader::of(&message);
            match value(&mut reader) {
                Ok(value) => Ok(value),
                Err(_) => Err(CallError::Rpc(malformed_answer(method, "value", reader))),
            }
        }
        Answer::Service(message) => {
            let mut reader = Reader::of(&message);
            Err(match error(&mut reader) {
                Ok(error) => CallError::Service(error),
                Err(_) => CallError::Rpc(malformed_answer(method, "error", reader)),
            })
        }
        Answer::Failed(why) => Err(CallError::Rpc(why)),
    }
}

/// Decodes one side of an answer: a `T` in form `F`, and nothing after it.
#[inline(always)]
pub fn side<F, T>(message: &mut Reader<'_>) -> Result<T, Malformed>
where
    F: for<'m> Decode<'m, T>,
{
    codec::whole::<F, T>(message)
}

#[cold]
fn malformed_answer(method: &'static str, part: &'static str, reader: Reader<'_>) -> RpcError {
    let why = reader.into_error();
    let what = format!("the {part} that {method} answered: {why}").into();
    RpcError::Malformed { may_have_run: true, what }
}

/// A service that a server can serve. Generated for each service trait.
///
/// Each server thread has an instance of its own.
pub trait Service: Send + 'static {
    /// The service's name, methods and fingerprint.
    fn description(&self) -> &'static ServiceDescription;

    /// Handles one call of the method with this index in [`ServiceDescription::methods`]: decodes the arguments, runs the
    /// handler, answers. If the reply is dropped, the call ends in [`HandlerPanicked`](RpcError::HandlerPanicked).
    ///
    /// # Panics
    /// May panic if the handler does, or if there is no method with this index; the caller catches it.
    fn dispatch(&self, method: usize, arguments: Message<'_>, reply: Reply<'_>);
}

/// The client of a service for any executor and for blocking callers. Generated for each service trait.
pub trait ServiceClient: Sized {
    /// The service that it calls.
    const DESCRIPTION: &'static ServiceDescription;

    /// The ids of methods that were removed.
    const RESERVED: &'static [Reserved] = &[];

    /// A client that calls through this channel, which must carry its service: [`on`](Self::on) checks that.
    fn from_channel(channel: Channel) -> Self;

    /// A client that calls over the connection of another one, whose [`channel`](Self::channel) this is.
    ///
    /// # Errors
    /// [`ConnectError::NotCarried`]: the connection was made without this service. [`Connecting::also`](crate::Connecting::also) adds it.
    fn on(channel: &Channel) -> Result<Self, ConnectError> {
        channel.check_carries(Self::DESCRIPTION)?;
        Ok(Self::from_channel(channel.clone()))
    }

    /// The channel, for its metrics, to close it, or for a client with another timeout.
    fn channel(&self) -> &Channel;
}

/// The client of a service for a thread that polls its own connection. Generated for each service trait.
pub trait PollClient: Sized {
    /// The service that it calls.
    const DESCRIPTION: &'static ServiceDescription;

    /// A client that calls over this connection.
    fn from_connection(connection: Connection) -> Self;

    /// The connection alone, for a client of another service that it carries.
    fn into_connection(self) -> Connection;

    /// The connection, to poll it and to set the timeout of its calls.
    fn connection(&mut self) -> &mut Connection;
}
