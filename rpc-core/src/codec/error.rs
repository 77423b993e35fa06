//! The errors of encoding and decoding.

use std::fmt::Display;

/// Why a value cannot be encoded. The cause is in the program's own types, never in a peer's bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type's `Serialize` uses something that the format does not have.
    #[error(
        "the value needs a format that describes itself, or holds a sequence of unknown length: \
         serde attributes such as `flatten`, `untagged` and `tag` cannot travel"
    )]
    Unsupported,
    /// The type's `Serialize` failed, with this error; long ones are shortened.
    #[error("the type's own `Serialize` refused the value: {0}")]
    Refused(Box<str>),
    /// The value is nested too deep: its reader would refuse it, and encoding it could overflow the stack.
    #[error("the value is nested deeper than {limit} levels: send it as a sequence of its parts")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// The type's `Serialize` wrote another number of bytes the second time.
    #[error(
        "the value took {found} bytes after it had promised {promised}: its `Serialize` is not deterministic"
    )]
    Unstable {
        /// The size that was reserved.
        promised: usize,
        /// The size that was written, or a larger number than `promised` if it did not fit.
        found: usize,
    },
}

/// Why bytes are not an encoding of the expected type.
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
    /// The value is nested too deep: decoding it could overflow the stack.
    #[error("the value is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// The values would take much more memory than the message has bytes.
    #[error(
        "the values of the message take more than {limit} bytes of memory, the limit for a message of its length"
    )]
    TooMuchMemory {
        /// The limit: 64 bytes for each byte of the message, and 4 MiB.
        limit: usize,
    },
    /// The bytes break a rule of the format.
    #[error("{0}")]
    Format(&'static str),
    /// The type's own `Deserialize` refused the value.
    #[error("{0}")]
    Refused(Box<str>),
}

/// What a type's `Serialize` or `Deserialize` says. The text may quote the value, at any length.
pub(super) fn shortened(message: &dyn Display) -> Box<str> {
    const MAX_CHARS: usize = 200;
    message.to_string().chars().take(MAX_CHARS).collect()
}

impl DecodeError {
    pub(super) const SELF_DESCRIBING: Self = Self::Format(
        "the type needs a format that describes itself: serde attributes such as `flatten`, `untagged` and `tag` cannot travel",
    );
}
