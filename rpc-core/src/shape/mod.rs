//! Shapes: how the values of a type are encoded, and what their parts are called.
//!
//! The bytes of a message do not say what they are. Two fields of one type that are swapped at one end of a connection
//! would be read without an error, as each other. Each type of a service therefore has a [`Shape`], which the attribute
//! `#[derive(farcall::Shape)]` makes of its fields or variants. A hash of the shapes of its arguments and results belongs
//! to each method; client and server compare these hashes, and a call is sent only where they are equal.
//!
//! Types that are encoded in the same way have the same shape: `&str` and `String`, `Vec<u8>` and `Bytes`, `Box<T>` and
//! `T`, a tuple struct of one field and that field. The name of a type is not part of its shape. The names of its fields
//! and variants are, because only they can tell that two of one type were swapped.

mod hash;
mod node;
mod signature;
mod standard;
#[cfg(test)]
mod tests;

pub use self::node::{Field, Kind, Named, Node, Variant};
pub use self::signature::Signature;
pub(crate) use self::signature::fingerprint;

/// A type whose values client and server can exchange, because both know how they are encoded.
///
/// `#[derive(farcall::Shape)]` implements it; farcall implements it for the types of the standard library that serde knows.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no shape, by which client and server compare what they send",
    label = "has no `Shape`",
    note = "if the type is yours, add `#[derive(farcall::Shape)]` to it, next to serde's derives",
    note = "if it is another crate's, give its encoding a name: `#[rpc(opaque = \"crate::Type 1\")]` on the argument or the \
            field, or `opaque(Type = \"crate::Type 1\")` in `#[farcall::service(..)]`"
)]
pub trait Shape {
    /// The shape.
    const SHAPE: &'static Node;
}
