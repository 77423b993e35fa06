//! What can be wrong with a value, or with the bytes that should hold one.

/// A value that cannot be written.
///
/// The cause is in the program's own types, never in what a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type's `Serialize` asked for something that the format does not have.
    #[error(
        "the value needs a format that describes itself, or holds a sequence of unknown length: \
         serde attributes such as `flatten`, `untagged` and `tag` cannot travel"
    )]
    Unsupported,
    /// The type's `Serialize` failed.
    #[error("the type's own `Serialize` refused the value")]
    Refused,
    /// The type's `Serialize` gave a different number of bytes when it was asked again.
    #[error(
        "the value took {found} bytes after it had promised {promised}: its `Serialize` is not deterministic"
    )]
    Unstable {
        /// The size that was reserved.
        promised: usize,
        /// The size that was written, where it was less; otherwise more than `promised`.
        found: usize,
    },
}

/// Bytes that are not an encoding of the type that they should hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before the value does.
    #[error("the message ends {missing} or more bytes early")]
    Truncated {
        /// How many bytes are missing at least.
        missing: usize,
    },
    /// Bytes are left over after the last value.
    #[error("{left} bytes are left over after the last value")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// An array of bytes has another length than its type.
    #[error("an array of {expected} bytes came as {found} bytes")]
    ArrayLength {
        /// The length in the type.
        expected: usize,
        /// The length in the message.
        found: usize,
    },
    /// The value is nested deeper than a thread's stack can be trusted to follow.
    #[error("the value is nested deeper than {limit} levels")]
    TooDeep {
        /// The deepest that is allowed.
        limit: u32,
    },
    /// The bytes break a rule of the format.
    #[error("{0}")]
    Format(&'static str),
    /// The type's own `Deserialize` refused what it found.
    #[error("{0}")]
    Refused(Box<str>),
}

impl DecodeError {
    pub(super) const SELF_DESCRIBING: Self = Self::Format(
        "the type needs a format that describes itself: serde attributes such as `flatten`, `untagged` and `tag` cannot travel",
    );
}
