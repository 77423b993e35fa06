//! The shape of a method: of its arguments and of its results.

use super::hash::Hasher;
use super::node::{Field, Node, add_fields};
use crate::service::MethodDescription;

/// The arguments and the results of a method.
#[derive(Debug)]
pub struct Signature {
    hash: u64,
    /// The arguments.
    pub arguments: &'static [Field],
    /// The result, or the `Ok` of a `Result`.
    pub value: &'static Node,
    /// The `Err` of a `Result`.
    pub error: Option<&'static Node>,
}

impl Signature {
    /// The signature of a method that returns `value`, or a `Result` of `value` and `error`.
    ///
    /// The name of an argument counts if there are others, with which it could be swapped.
    pub const fn new(
        arguments: &'static [Field],
        value: &'static Node,
        error: Option<&'static Node>,
    ) -> Self {
        let hasher = match arguments {
            [only] => Hasher::new("method of one").number(only.node.hash()),
            arguments => add_fields(Hasher::new("method"), arguments),
        };
        let hasher = hasher.number(value.hash());
        let hasher = match error {
            None => hasher.text("value"),
            Some(error) => hasher.text("result").number(error.hash()),
        };
        Signature { hash: hasher.finish(), arguments, value, error }
    }

    /// The hash that client and server compare.
    pub const fn hash(&self) -> u64 {
        self.hash
    }
}

/// A hash of everything in which client and server must agree: if both have the same, every method can be called. The order
/// of the methods does not count.
pub(crate) const fn fingerprint(service: &str, methods: &[MethodDescription]) -> u64 {
    // Raised when the encoding of arguments or results changes.
    const ENCODING: &str = "farcall encoding 2";
    let mut sum: u64 = 0;
    let mut at = 0;
    while at < methods.len() {
        let MethodDescription { id, shape, idempotent, .. } = methods[at];
        // Not a part of the shape: the methods fit, but a client must know how often a call may run.
        let kind = if idempotent { "idempotent" } else { "once" };
        sum = sum.wrapping_add(Hasher::new(kind).number(id as u64).number(shape).finish());
        at += 1;
    }
    Hasher::new(ENCODING).text(service).number(methods.len() as u64).number(sum).finish()
}
