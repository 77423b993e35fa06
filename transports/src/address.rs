//! Where a service is, and how to talk to it: `shm://NAME?backend=write_imm&window=64`.

use std::fmt;
use std::str::FromStr;

use crate::backend::BackendKind;
use crate::handshake::Terms;

/// The schemes an address may have.
pub const SCHEMES: &[&str] = &["shm"];

/// The options an address may carry after its `?`.
pub const OPTIONS: &[&str] = &["backend", "window", "slot", "max_message", "memory"];

/// Longest name of a `shm://` address: an abstract Unix socket's name has 107 bytes, and the
/// user id and a prefix go in front of ours.
pub const MAX_NAME_BYTES: usize = 64;

/// Most calls one connection may have outstanding: the immediate has ten bits for the slot.
pub const MAX_WINDOW: u32 = 1024;

/// Smallest slot: one cache line, which holds both headers and a small message.
pub const MIN_SLOT_BYTES: u32 = 64;

/// Largest slot: above this, rendezvous is cheaper than a copy out of the slot.
pub const MAX_SLOT_BYTES: u32 = 1 << 20;

/// Largest `max_message`. No buffer is this large; the bound keeps sums far from overflow.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// What one end of a connection is ready to give; the smaller of the two ends' limits holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls outstanding on one connection.
    pub window: u32,
    /// Bytes of one slot, both headers included. A larger message goes by rendezvous.
    pub slot: u32,
    /// Largest message in bytes, in either direction.
    pub max_message: u64,
    /// Bytes that messages larger than a slot may hold at a time, per thread.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        let max_message = 1 << 30;
        Limits { window: 64, slot: 4096, max_message, memory: usual_memory(max_message) }
    }
}

impl Limits {
    /// What this end offers the other.
    pub fn terms(&self) -> Terms {
        Terms { window: self.window, slot: self.slot, max_message: self.max_message }
    }
}

/// Room for the largest message in four places at once: a client may hold at most half of it, so
/// two others can move even while one is stalled.
const fn usual_memory(max_message: u64) -> u64 {
    4 * max_message + LEAST_MEMORY_BYTES
}

/// Room for messages just above the slot.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// The address of a service: where it is, which backend reaches it, and the limits of this end.
///
/// ```
/// let address: farcall_transports::Address = "shm://kv?window=32".parse().unwrap();
/// assert_eq!(address.name(), "kv");
/// assert_eq!(address.limits().window, 32);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    name: String,
    backend: BackendKind,
    limits: Limits,
}

impl Address {
    /// The address `shm://NAME` with every option at its default.
    pub fn shm(name: &str) -> Result<Address, AddressError> {
        check_name(name)?;
        let backend = BackendKind::default();
        Ok(Address { name: name.to_owned(), backend, limits: Limits::default() })
    }

    /// The part between `://` and `?`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend that carries the calls.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// The limits of this end.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is no `://`.
    #[error("`{text}` has no scheme; write an address as shm://NAME")]
    NoScheme {
        /// The whole text.
        text: String,
    },
    /// The scheme is not one that this build knows.
    #[error("unknown scheme `{scheme}`; known are: {}", SCHEMES.join(", "))]
    UnknownScheme {
        /// The scheme given.
        scheme: String,
    },
    /// The name is empty, too long, or has a character that names may not have.
    #[error(
        "`{name}` cannot name a service: use 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`"
    )]
    BadName {
        /// The name given.
        name: String,
    },
    /// An option that no address has.
    #[error("unknown option `{key}`; known are: {}", OPTIONS.join(", "))]
    UnknownOption {
        /// The option's key.
        key: String,
    },
    /// The same option twice.
    #[error("option `{key}` is given twice")]
    Repeated {
        /// The option's key.
        key: String,
    },
    /// A backend that this build does not have.
    #[error("unknown backend `{backend}`; known are: {}", BackendKind::names().join(", "))]
    UnknownBackend {
        /// The backend given.
        backend: String,
    },
    /// A value that is not a number, or outside its range.
    #[error("option `{key}={value}`: expected {expected}")]
    BadValue {
        /// The option's key.
        key: String,
        /// The value given.
        value: String,
        /// What would be right.
        expected: String,
    },
}

fn check_name(name: &str) -> Result<(), AddressError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(allowed) {
        return Err(AddressError::BadName { name: name.to_owned() });
    }
    Ok(())
}

/// A number of bytes, with an optional suffix: `k`, `m` or `g`, in powers of 1,024.
fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn parse_in(key: &str, value: &str, least: u64, most: u64) -> Result<u64, AddressError> {
    parse_bytes(value).filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        AddressError::BadValue {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: format!("a number from {least} to {most} (k, m and g multiply by 1,024)"),
        }
    })
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(AddressError::NoScheme { text: text.to_owned() });
        };
        if !SCHEMES.contains(&scheme) {
            return Err(AddressError::UnknownScheme { scheme: scheme.to_owned() });
        }
        let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Address::shm(name)?;
        let mut seen: Vec<&str> = Vec::new();
        let mut memory = None;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&key) {
                return Err(AddressError::Repeated { key: key.to_owned() });
            }
            seen.push(key);
            let limits = &mut address.limits;
            match key {
                "backend" => {
                    address.backend = BackendKind::from_name(value).ok_or_else(|| {
                        AddressError::UnknownBackend { backend: value.to_owned() }
                    })?;
                }
                "window" => limits.window = parse_in(key, value, 1, MAX_WINDOW.into())? as u32,
                "slot" => {
                    let (least, most) = (MIN_SLOT_BYTES.into(), MAX_SLOT_BYTES.into());
                    let slot = parse_in(key, value, least, most)?;
                    // Whole cache lines, so that two slots never share one.
                    limits.slot = slot.next_multiple_of(64) as u32;
                }
                "max_message" => {
                    limits.max_message = parse_in(key, value, 1, MAX_MESSAGE_BYTES)?;
                }
                "memory" => memory = Some(value),
                _ => return Err(AddressError::UnknownOption { key: key.to_owned() }),
            }
        }
        let limits = &mut address.limits;
        limits.memory = match memory {
            None => usual_memory(limits.max_message),
            // Less would let the largest message wait for ever.
            Some(value) => {
                let least = 3 * limits.max_message + LEAST_MEMORY_BYTES;
                parse_in("memory", value, least, 8 * MAX_MESSAGE_BYTES)?
            }
        };
        Ok(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shm://{}?backend={}", self.name, self.backend.name())?;
        let (ours, mut usual) = (self.limits, Limits::default());
        usual.memory = usual_memory(ours.max_message);
        for (key, value, default) in [
            ("window", u64::from(ours.window), u64::from(usual.window)),
            ("slot", u64::from(ours.slot), u64::from(usual.slot)),
            ("max_message", ours.max_message, usual.max_message),
            ("memory", ours.memory, usual.memory),
        ] {
            if value != default {
                write!(f, "&{key}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    #[test]
    fn options_are_read_and_written_back() {
        let address =
            parse("shm://kv-1.a_b?backend=write_imm&memory=9g&window=8&slot=1k&max_message=2g");
        let address = address.unwrap();
        assert_eq!(address.name(), "kv-1.a_b");
        assert_eq!(address.backend(), BackendKind::WriteImm);
        let limits = address.limits();
        assert_eq!((limits.window, limits.slot, limits.max_message), (8, 1024, 2 << 30));
        assert_eq!(parse(&address.to_string()).unwrap(), address);
    }

    #[test]
    fn a_slot_is_made_of_whole_cache_lines() {
        assert_eq!(parse("shm://a?slot=65").unwrap().limits().slot, 128);
    }

    #[test]
    fn errors_name_the_thing_and_the_alternatives() {
        for (text, wanted) in [
            ("kv", "shm://NAME"),
            ("rdma2://kv", "`rdma2`; known are: shm"),
            ("shm://", "``"),
            ("shm://a/b", "`a/b`"),
            ("shm://kv?backend=tcp2", "`tcp2`; known are: write_imm"),
            ("shm://kv?widow=3", "`widow`; known are: backend, window"),
            ("shm://kv?window=0", "from 1 to 1024"),
            ("shm://kv?window=x", "`window=x`"),
            ("shm://kv?window", "`window=`"),
            ("shm://kv?slot=99999999999999999999g", "slot="),
            ("shm://kv?window=1&window=2", "twice"),
            ("shm://kv?slot=é", "slot=é"),
            ("shm://kv?max_message=1g&memory=1g", "a number from 3238002688"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "(shm://)?\\PC{0,40}") {
            if let Ok(address) = parse(&text) {
                proptest::prop_assert_eq!(parse(&address.to_string()).unwrap(), address);
            }
        }
    }
}
