//! What names a server: text, or an address that was parsed before.

use super::{Binding, Dial};
use crate::error::Source;

/// An address that can be dialled and listened at.
pub trait ServerAddress: Dial + Binding + 'static {}

impl<A: Dial + Binding + 'static> ServerAddress for A {}

/// Parses an address, such as `shm://kv`. The crate with the transports provides it.
pub type ParseAddress = fn(&str) -> Result<Box<dyn ServerAddress>, Source>;

/// What names a server: `&str` and `String`, or an address that was parsed or built before.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a server",
    label = "no address",
    note = "an address is text, such as \"shm://kv\", an `Address`, or one that `Address::shm(..)`, `Address::rdma(..)` or `Address::tcp(..)` builds"
)]
pub trait ToAddress {
    /// The address; text is parsed by `parse`.
    ///
    /// # Errors
    /// What is wrong with the address.
    fn to_address(&self, parse: ParseAddress) -> Result<Box<dyn ServerAddress>, Source>;
}

impl ToAddress for str {
    fn to_address(&self, parse: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        parse(self)
    }
}

impl ToAddress for String {
    fn to_address(&self, parse: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        parse(self)
    }
}

impl<A: ToAddress + ?Sized> ToAddress for &A {
    fn to_address(&self, parse: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        (**self).to_address(parse)
    }
}
