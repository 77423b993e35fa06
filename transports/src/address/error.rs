//! Why a text is not an address.

use super::MAX_NAME_BYTES;
use super::user_text::{meant, shown};
use crate::{hybrid, registry};

/// What may stand for the backend of an address.
fn backends() -> Vec<&'static str> {
    let mut names = registry::names();
    names.push(hybrid::NAME);
    names
}

/// What else to say of an unknown scheme.
fn hint(scheme: &str, known: &[&'static str]) -> String {
    match scheme {
        "sim" => {
            ". A simulated rack has addresses of its own: `farcall::rack` serves and dials them"
                .into()
        }
        _ => meant(scheme, known.iter().copied()),
    }
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no `://`.
    #[error("`{}` has no scheme; write an address as {like}", shown(text))]
    NoScheme {
        /// The whole text.
        text: String,
        /// What would be right.
        like: &'static str,
    },
    /// The scheme is not one that is known here.
    #[error("unknown scheme `{}`; known are: {}{}", shown(scheme), known.join(", "), hint(scheme, known))]
    UnknownScheme {
        /// The scheme given.
        scheme: String,
        /// Those that are known.
        known: &'static [&'static str],
    },
    /// The name is empty, too long, or has a character that names may not have.
    #[error(
        "`{}` cannot name a service: use 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`",
        shown(name)
    )]
    BadName {
        /// The name given.
        name: String,
    },
    /// The part between `://` and `?` is not a host and a port.
    #[error("`{}` is no place in a network: {what}; write HOST:PORT or [IPv6]:PORT", shown(place))]
    BadPlace {
        /// The part given.
        place: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The part between `://` and `?` is not a node and a name.
    #[error("`{}` is no place on a simulated rack: {what}; write sim://NODE/NAME", shown(place))]
    BadNode {
        /// The part given.
        place: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// An option that no address of this scheme has.
    #[error("unknown option `{}`; known are: {}{}", shown(key), known.join(", "), meant(key, known.iter().copied()))]
    UnknownOption {
        /// The option's key.
        key: String,
        /// The options of the scheme.
        known: Vec<&'static str>,
    },
    /// The same option twice.
    #[error("option `{}` is given twice", shown(key))]
    Repeated {
        /// The option's key.
        key: String,
    },
    /// A backend that this build does not have.
    #[error("unknown backend `{}`; known are: {}{}", shown(backend), backends().join(", "), meant(backend, backends()))]
    UnknownBackend {
        /// The backend given.
        backend: String,
    },
    /// A backend that does not go with the scheme.
    #[error("backend `{backend}` goes with {mend}")]
    WrongScheme {
        /// The backend.
        backend: &'static str,
        /// Addresses that it goes with.
        mend: &'static str,
    },
    /// An option of another backend than the address names.
    #[error("option `{key}` belongs to backend={}, and this address has backend={backend}", theirs.join(" or "))]
    OtherBackend {
        /// The option's key.
        key: String,
        /// The backend of the address.
        backend: &'static str,
        /// The backends that have the option.
        theirs: Vec<&'static str>,
    },
    /// A value that is not what the option takes, or outside its range.
    #[error("option `{key}={}`: expected {expected}", shown(value))]
    BadValue {
        /// The option's key.
        key: String,
        /// The value given.
        value: String,
        /// What would be right.
        expected: String,
    },
}

impl AddressError {
    pub(super) fn bad_value(key: &str, value: &str, expected: String) -> AddressError {
        AddressError::BadValue { key: key.to_owned(), value: value.to_owned(), expected }
    }
}
