//! A service as its generated code describes it.

use crate::error::RpcError;
use crate::transport::Message;

/// A service: its name, its methods, and a fingerprint of its signatures.
#[derive(Debug)]
pub struct ServiceDescription {
    /// The trait's name.
    pub name: &'static str,
    /// A hash of all signatures: client and server must agree on it.
    pub fingerprint: u64,
    /// The methods, in the trait's order.
    pub methods: &'static [MethodDescription],
}

/// One method of a service.
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodDescription {
    /// The method's name.
    pub name: &'static str,
    /// The id that names it on the wire: stable, and unique among the services of one server.
    pub id: u32,
    /// Is running it twice as good as once? Then a call that may have run can be repeated.
    pub idempotent: bool,
}

impl MethodDescription {
    /// A method that must not run twice.
    pub const fn new(name: &'static str, id: u32) -> Self {
        MethodDescription { name, id, idempotent: false }
    }

    /// The same method, declared idempotent.
    pub const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

/// One method as its caller sees it. Generated: one type without values for each method.
pub trait Method {
    /// The method's name, with its service's: `Kv.get`.
    const NAME: &'static str;
    /// The method's id on the wire.
    const ID: u32;
    /// What a call ends in: `Result<T, CallError<E>>` where the method returns `Result<T, E>`, otherwise
    /// `Result<T, RpcError>`.
    type Output;

    /// Makes that from the answer.
    fn read(answer: Answer<'_>) -> Self::Output;
}

/// How a call ended, its header taken off.
#[derive(Debug)]
pub enum Answer<'m> {
    /// The method's value, or the `Ok` of its `Result`.
    Value(Message<'m>),
    /// The `Err` of the method's `Result`.
    Service(Message<'m>),
    /// The call has no answer from the service.
    Failed(RpcError),
}
