//! An address in text: read, and written back.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::place::{DeviceChoice, NetworkPlace, Place};
use super::{
    Address, AddressError, LEAST_MEMORY_BYTES, Limits, MAX_MESSAGE_BYTES, MAX_NAME_BYTES,
    MAX_SILENCE, MAX_SLOT_BYTES, MAX_WINDOW, MIN_SILENCE, MIN_SLOT_BYTES, OPTIONS, Optimization,
    RDMA_OPTIONS, SCHEMES, Without, usual_memory,
};
use crate::backend::BackendKind;

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

/// A time: a number of `ms`, `s` or `m`.
fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_millis = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit_millis).map(Duration::from_millis)
}

fn bad_value(key: &str, value: &str, expected: String) -> AddressError {
    AddressError::BadValue { key: key.to_owned(), value: value.to_owned(), expected }
}

fn parse_in(key: &str, value: &str, least: u64, most: u64) -> Result<u64, AddressError> {
    parse_bytes(value).filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        let expected = format!("a number from {least} to {most} (k, m and g multiply by 1,024)");
        bad_value(key, value, expected)
    })
}

fn parse_device(value: &str) -> Result<String, AddressError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if value.is_empty() || value.len() > MAX_NAME_BYTES || !value.bytes().all(allowed) {
        return Err(bad_value("device", value, "a device's name, as `farcall info` lists".into()));
    }
    Ok(value.to_owned())
}

fn parse_index(key: &str, value: &str, least: u8) -> Result<u8, AddressError> {
    value
        .parse()
        .ok()
        .filter(|number| *number >= least)
        .ok_or_else(|| bad_value(key, value, format!("a number from {least} to {}", u8::MAX)))
}

/// What the addresses of all schemes have.
pub(crate) struct Parts<'a> {
    pub(crate) scheme: &'a str,
    /// Between `://` and `?`.
    pub(crate) place: &'a str,
    pub(crate) backend: BackendKind,
    pub(crate) limits: Limits,
    device: DeviceChoice,
}

impl<'a> Parts<'a> {
    /// Takes an address of one of these schemes apart; it should be like that.
    pub(crate) fn read(
        text: &'a str,
        schemes: &'static [&'static str],
        like: &'static str,
    ) -> Result<Parts<'a>, AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(AddressError::NoScheme { text: text.to_owned(), like });
        };
        if !schemes.contains(&scheme) {
            return Err(AddressError::UnknownScheme { scheme: scheme.to_owned(), known: schemes });
        }
        let in_network = scheme == "rdma";
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let mut backend = BackendKind::default();
        let mut limits = Limits::default();
        let mut device = DeviceChoice::default();
        let mut seen: Vec<&str> = Vec::new();
        let mut memory = None;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if seen.contains(&key) {
                return Err(AddressError::Repeated { key: key.to_owned() });
            }
            seen.push(key);
            match key {
                "backend" => {
                    backend = BackendKind::from_name(value).ok_or_else(|| {
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
                "silence" => {
                    let silence = parse_time(value);
                    limits.silence = silence
                        .filter(|time| (MIN_SILENCE..=MAX_SILENCE).contains(time))
                        .ok_or_else(|| {
                            bad_value(key, value, "a time from 1s to 60m, or in ms".into())
                        })?;
                }
                "without" => {
                    limits.without = Without::parse(value).ok_or_else(|| {
                        let names = Optimization::names();
                        bad_value(key, value, format!("some of these, with commas: {names}"))
                    })?;
                }
                "device" if in_network => device.name = Some(parse_device(value)?),
                "gid_index" if in_network => device.gid_index = Some(parse_index(key, value, 0)?),
                "ib_port" if in_network => device.ib_port = Some(parse_index(key, value, 1)?),
                _ => {
                    let mut known = OPTIONS.to_vec();
                    known.extend(RDMA_OPTIONS.iter().filter(|_| in_network));
                    return Err(AddressError::UnknownOption { key: key.to_owned(), known });
                }
            }
        }
        if !limits.without.is_empty() && backend != BackendKind::Datagram {
            let expected =
                format!("backend=datagram with it; {} has no such switches", backend.name());
            return Err(bad_value("without", &limits.without.to_string(), expected));
        }
        limits.memory = match memory {
            None => usual_memory(limits.max_message),
            // Less would let the largest message wait for ever.
            Some(value) => {
                let least = 3 * limits.max_message + LEAST_MEMORY_BYTES;
                parse_in("memory", value, least, 8 * MAX_MESSAGE_BYTES)?
            }
        };
        Ok(Parts { scheme, place, backend, limits, device })
    }
}

impl Limits {
    /// Writes the options of an address with these limits, those that are not the usual ones.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Limits { memory: usual_memory(self.max_message), ..Limits::default() };
        for (key, value, default) in [
            ("window", u64::from(self.window), u64::from(usual.window)),
            ("slot", u64::from(self.slot), u64::from(usual.slot)),
            ("max_message", self.max_message, usual.max_message),
            ("memory", self.memory, usual.memory),
        ] {
            if value != default {
                write!(f, "&{key}={value}")?;
            }
        }
        if self.silence != usual.silence {
            write!(f, "&silence={}ms", self.silence.as_millis())?;
        }
        if !self.without.is_empty() {
            write!(f, "&without={}", self.without)?;
        }
        Ok(())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let Parts { scheme, place, backend, limits, device } =
            Parts::read(text, SCHEMES, "shm://NAME or rdma://HOST:PORT")?;
        let place = match scheme {
            "rdma" => Place::rdma(place, device)?,
            _ => Place::shm(place)?,
        };
        Ok(Address { name: place.to_text(), place, backend, limits })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}?backend={}", self.place.scheme(), self.name, self.backend.name())?;
        if let Place::Rdma(NetworkPlace { device, .. }) = &self.place {
            if let Some(name) = &device.name {
                write!(f, "&device={name}")?;
            }
            if let Some(index) = device.gid_index {
                write!(f, "&gid_index={index}")?;
            }
            if let Some(port) = device.ib_port {
                write!(f, "&ib_port={port}")?;
            }
        }
        self.limits.write(f)
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
        let address = parse(
            "shm://kv-1.a_b?backend=write_imm&memory=9g&window=8&slot=1k&max_message=2g&silence=90s",
        );
        let address = address.unwrap();
        assert_eq!(address.name(), "kv-1.a_b");
        assert_eq!(address.backend(), BackendKind::WriteImm);
        let limits = address.limits();
        assert_eq!((limits.window, limits.slot, limits.max_message), (8, 1024, 2 << 30));
        assert_eq!(limits.silence, Duration::from_secs(90));
        assert_eq!(parse(&address.to_string()).unwrap(), address);
    }

    #[test]
    fn an_end_can_do_without_some_optimizations() {
        let address = parse("shm://a?without=bulk,inline&backend=datagram").unwrap();
        let without = address.limits().without;
        assert!(without.has(Optimization::Inline) && without.has(Optimization::Bulk));
        assert!(!without.has(Optimization::Coalescing));
        assert_eq!(parse(&address.to_string()).unwrap(), address);
    }

    #[test]
    fn a_slot_is_made_of_whole_cache_lines() {
        assert_eq!(parse("shm://a?slot=65").unwrap().limits().slot, 128);
    }

    #[test]
    fn a_place_in_a_network_is_a_host_and_a_port() {
        for (text, host, port, name) in [
            ("rdma://10.0.0.1:7471", "10.0.0.1", 7471, "10.0.0.1:7471"),
            ("rdma://node-3.rack:0", "node-3.rack", 0, "node-3.rack:0"),
            ("rdma://[fe80::0:1]:65535", "fe80::1", 65535, "[fe80::1]:65535"),
        ] {
            let address = parse(&format!("{text}?device=rxe0&gid_index=3&ib_port=2")).unwrap();
            let Place::Rdma(place) = address.place() else { panic!("{address}") };
            assert_eq!((place.host.as_str(), place.port), (host, port));
            assert_eq!(place.device.name.as_deref(), Some("rxe0"));
            assert_eq!((place.device.gid_index, place.device.ib_port), (Some(3), Some(2)));
            assert_eq!(address.name(), name);
            assert_eq!(parse(&address.to_string()).unwrap(), address);
        }
    }

    #[test]
    fn errors_name_the_thing_and_the_alternatives() {
        for (text, wanted) in [
            ("kv", "shm://NAME"),
            ("rdma2://kv", "`rdma2`; known are: shm"),
            ("shm://", "``"),
            ("shm://a/b", "`a/b`"),
            ("shm://kv?backend=tcp2", "`tcp2`; known are: write_imm, datagram"),
            ("shm://kv?widow=3", "`widow`; known are: backend, window"),
            ("shm://kv?device=rxe0", "`device`; known are: backend, window"),
            ("shm://kv?window=0", "from 1 to 1024"),
            ("shm://kv?window=x", "`window=x`"),
            ("shm://kv?window", "`window=`"),
            ("shm://kv?slot=99999999999999999999g", "slot="),
            ("shm://kv?window=1&window=2", "twice"),
            ("shm://kv?slot=é", "slot=é"),
            ("shm://kv?silence=5", "from 1s to 60m"),
            ("shm://kv?silence=999ms", "`silence=999ms`"),
            ("shm://kv?silence=61m", "from 1s to 60m"),
            ("shm://kv?silence=+5s", "silence=+5s"),
            ("shm://kv?silence=99999999999999999999m", "silence="),
            (
                "shm://kv?backend=datagram&without=inline,spin",
                "doorbells, polls, selective, inline",
            ),
            ("shm://kv?without=inline", "backend=datagram with it; write_imm has no such switches"),
            ("shm://kv?max_message=1g&memory=1g", "a number from 3238002688"),
            ("rdma://", "`` is no place in a network: it has no port"),
            ("rdma://node", "`node` is no place in a network: it has no port"),
            ("rdma://:7471", "not a host"),
            ("rdma://node:", "0 to 65535"),
            ("rdma://node:65536", "0 to 65535"),
            ("rdma://node:+7", "0 to 65535"),
            ("rdma://::1:7471", "in brackets"),
            ("rdma://[node]:7471", "not an IPv6 address"),
            ("rdma://user@node:7471", "not a host"),
            ("rdma://node:7?colour=red", "`colour`; known are: backend, window, slot"),
            ("rdma://node:7?colour=red", "device, gid_index, ib_port"),
            ("rdma://node:7?device=", "a device's name"),
            ("rdma://node:7?gid_index=256", "from 0 to 255"),
            ("rdma://node:7?ib_port=0", "from 1 to 255"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_address_or_an_error(text in "((shm|rdma)://)?\\PC{0,40}") {
            if let Ok(address) = parse(&text) {
                proptest::prop_assert_eq!(parse(&address.to_string()).unwrap(), address);
            }
        }

        #[test]
        fn any_place_is_an_address_or_an_error(place in "[a-z0-9.:\\[\\]]{0,12}:[0-9]{1,5}") {
            if let Ok(address) = parse(&format!("rdma://{place}")) {
                proptest::prop_assert_eq!(parse(&address.to_string()).unwrap(), address);
            }
        }
    }
}
