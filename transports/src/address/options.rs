//! The options of an address: those of all addresses, those of one backend, those of one scheme.

use std::fmt;
use std::iter;
use std::time::Duration;

use super::AddressError;
use super::moves::{HYBRID_OPTIONS, Moves};
use crate::contract::{
    Backend, Config, Fabric, LEAST_MEMORY_BYTES, MAX_IDLE_TIMEOUT, MAX_MESSAGE_BYTES, MAX_SILENCE,
    MAX_SLOT_BYTES, MAX_WINDOW, MIN_IDLE_TIMEOUT, MIN_MESSAGE_BYTES, MIN_SILENCE, MIN_SLOT_BYTES,
    default_memory,
};
use crate::{hybrid, registry};

/// The options that an address of any scheme and backend may carry after its `?`.
pub const OPTIONS: &[&str] = &[
    "backend",
    "window",
    "slot",
    "max_message",
    "memory",
    "silence",
    "max_clients_per_source",
    "idle_timeout",
];

/// The options that only an `rdma://` address may carry.
pub const RDMA_OPTIONS: &[&str] = &["device", "gid_index", "ib_port"];

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

fn parse_in(key: &str, value: &str, least: u64, most: u64) -> Result<u64, AddressError> {
    parse_bytes(value).filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        let expected = format!("a number from {least} to {most} (k, m and g multiply by 1,024)");
        AddressError::bad_value(key, value, expected)
    })
}

fn parse_time_in(
    key: &str,
    value: &str,
    least: Duration,
    most: Duration,
) -> Result<Duration, AddressError> {
    parse_time(value).filter(|time| (least..=most).contains(time)).ok_or_else(|| {
        let (least, most) = (least.as_secs(), most.as_secs() / 60);
        let expected = format!("a time from {least}s to {most}m, or in ms");
        AddressError::bad_value(key, value, expected)
    })
}

/// What the addresses of a scheme give to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// A device.
    Device,
    /// A device in the machine's own memory: slots take none until they are used.
    Memory,
    /// A byte stream, and no device.
    Stream,
    /// Either, as the backend needs.
    Any,
}

impl Carrier {
    /// The backend of an address that names none.
    fn default_backend(self) -> &'static dyn Backend {
        let on_stream = || registry::ALL.iter().copied().find(|it| runs_on_stream(*it));
        let default = registry::default_backend();
        if self == Carrier::Stream { on_stream().unwrap_or(default) } else { default }
    }

    /// What an address without options is ready to give.
    fn usual(self, backend: &dyn Backend) -> Config {
        let slot = (self == Carrier::Memory).then(|| backend.slot_in_memory());
        let usual = Config::default();
        Config { slot: slot.unwrap_or(usual.slot), ..usual }
    }

    /// Whether a connection may move to this backend. One to a server in a network can do without a device.
    fn is_way(self, backend: &'static dyn Backend) -> bool {
        self == Carrier::Device || runs_on_stream(backend) == (self == Carrier::Stream)
    }

    fn check(self, backend: &'static dyn Backend) -> Result<(), AddressError> {
        let mend = match (self, runs_on_stream(backend)) {
            (Carrier::Device | Carrier::Memory, true) => "tcp://HOST:PORT",
            (Carrier::Stream, false) => "shm://NAME and rdma://HOST:PORT",
            _ => return Ok(()),
        };
        Err(AddressError::WrongScheme { backend: backend.name(), mend })
    }
}

/// Whether the backend needs a byte stream, and no device.
pub fn runs_on_stream(backend: &dyn Backend) -> bool {
    backend.check(&Fabric::Stream).is_ok()
}

/// The options that addresses of all schemes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressOptions {
    /// The backend that carries the calls.
    pub backend: &'static dyn Backend,
    /// What this end is ready to give.
    pub config: Config,
    /// The other backends that a server offers there.
    pub further: Vec<(&'static dyn Backend, Config)>,
    /// Connections move among those backends.
    pub moves: Option<Moves>,
}

impl AddressOptions {
    /// Splits an address of one of these schemes into scheme, place and options. `like` shows what is expected.
    ///
    /// # Errors
    /// [`AddressError::NoScheme`] and [`AddressError::UnknownScheme`].
    pub fn split<'a>(
        text: &'a str,
        schemes: &'static [&'static str],
        like: &'static str,
    ) -> Result<(&'a str, &'a str, &'a str), AddressError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(AddressError::NoScheme { text: text.to_owned(), like });
        };
        if !schemes.contains(&scheme) {
            return Err(AddressError::UnknownScheme { scheme: scheme.to_owned(), known: schemes });
        }
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        Ok((scheme, place, options))
    }

    /// The options in the part after `?`, in pairs of key and value.
    pub fn pairs(text: &str) -> Vec<(&str, &str)> {
        let options = text.split('&').filter(|option| !option.is_empty());
        options.map(|option| option.split_once('=').unwrap_or((option, ""))).collect()
    }

    /// Reads the options of an address whose scheme gives `carrier`. Those of the scheme's `own` go to `take_own`.
    ///
    /// # Errors
    /// [`AddressError`], which names the option and what would be right.
    pub fn read(
        pairs: &[(&str, &str)],
        carrier: Carrier,
        own: &[&'static str],
        mut take_own: impl FnMut(&str, &str) -> Result<(), AddressError>,
    ) -> Result<AddressOptions, AddressError> {
        let is_repeated = |at: usize| pairs[..at].iter().any(|(seen, _)| *seen == pairs[at].0);
        if let Some(at) = (0..pairs.len()).find(|&at| is_repeated(at)) {
            return Err(AddressError::Repeated { key: pairs[at].0.to_owned() });
        }
        let given = |key: &str| pairs.iter().find(|(seen, _)| *seen == key).map(|pair| pair.1);
        let (backends, moves) = match given("backend") {
            None => (vec![carrier.default_backend()], None),
            Some(hybrid::NAME) => {
                let (ways, moves) = Moves::read(pairs, |backend| carrier.is_way(backend))?;
                (ways, Some(moves))
            }
            Some(names) => (find_all("backend", names)?, None),
        };
        let is_own = |key: &str| moves.is_some() && HYBRID_OPTIONS.contains(&key);
        let pairs: Vec<_> = pairs.iter().filter(|(key, _)| !is_own(key)).copied().collect();
        let mut offered = Vec::new();
        for &backend in &backends {
            if moves.is_none() {
                carrier.check(backend)?;
            }
            let others = |key: &str| {
                let mut others = backends.iter().filter(|other| **other != backend);
                !has_option(backend, key) && others.any(|other| has_option(*other, key))
            };
            let own_pairs: Vec<_> = pairs.iter().filter(|(key, _)| !others(key)).copied().collect();
            // Once: what the scheme has of its own is not the backend's.
            let is_first = offered.is_empty();
            let take_own = |key: &str, value: &str| match is_first {
                true => take_own(key, value),
                false => Ok(()),
            };
            let what = (carrier, backend, moves.is_some());
            let config = AddressOptions::config(&own_pairs, what, own, take_own)?;
            offered.push((backend, config));
        }
        let (backend, config) = offered.remove(0);
        Ok(AddressOptions { backend, config, further: offered, moves })
    }

    /// What these options say of one backend, which may be one `of_several`: then it has as much of a number as it can.
    fn config(
        pairs: &[(&str, &str)],
        (carrier, backend, of_several): (Carrier, &'static dyn Backend, bool),
        own: &[&'static str],
        mut take_own: impl FnMut(&str, &str) -> Result<(), AddressError>,
    ) -> Result<Config, AddressError> {
        let given = |key: &str| pairs.iter().find(|(seen, _)| *seen == key).map(|pair| pair.1);
        let mut config = carrier.usual(backend);
        for &(key, value) in pairs {
            match key {
                // Read above, and below.
                "backend" | "memory" => {}
                "window" => {
                    let (most, least) = (backend.max_window(), 1);
                    let any = if of_several { MAX_WINDOW } else { most };
                    config.window =
                        parse_in(key, value, least, any.into())?.min(most.into()) as u32;
                }
                "slot" => {
                    let most = match carrier {
                        Carrier::Memory => backend.max_slot_in_memory(),
                        _ => MAX_SLOT_BYTES,
                    };
                    let any = if of_several { MAX_SLOT_BYTES } else { most };
                    let slot = parse_in(key, value, MIN_SLOT_BYTES.into(), any.into())?;
                    // Whole cache lines, so that two slots never share one.
                    config.slot = slot.min(most.into()).next_multiple_of(64) as u32;
                }
                "max_message" => {
                    config.max_message = parse_in(key, value, MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES)?
                }
                "silence" => {
                    config.silence = parse_time_in(key, value, MIN_SILENCE, MAX_SILENCE)?;
                }
                "max_clients_per_source" => {
                    config.max_clients_per_source =
                        parse_in(key, value, 1, u32::MAX.into())? as u32;
                }
                "idle_timeout" => {
                    config.idle_timeout =
                        parse_time_in(key, value, MIN_IDLE_TIMEOUT, MAX_IDLE_TIMEOUT)?;
                }
                _ if own.contains(&key) => take_own(key, value)?,
                _ => read_backend_option(&mut config, backend, own, key, value)?,
            }
        }
        config.memory = match given("memory") {
            None => default_memory(config.max_message),
            // Less would let the largest message wait for ever.
            Some(value) => {
                let least = 3 * config.max_message + LEAST_MEMORY_BYTES;
                parse_in("memory", value, least, 8 * MAX_MESSAGE_BYTES)?
            }
        };
        Ok(config)
    }

    /// The backends that a server offers there, each with what it is ready to give. The first is the one that a client uses.
    pub fn offered(&self) -> impl Iterator<Item = (&'static dyn Backend, &Config)> {
        let further = self.further.iter().map(|(backend, config)| (*backend, config));
        iter::once((self.backend, &self.config)).chain(further)
    }

    /// The name of the backend that a client uses, or `hybrid`.
    pub fn backend_name(&self) -> &'static str {
        if self.moves.is_some() { hybrid::NAME } else { self.backend.name() }
    }

    /// The options of the addresses that a connection moves among, each with one backend, if it does. The first is where it begins.
    pub fn ways(&self) -> Option<Vec<AddressOptions>> {
        let moves = self.moves.as_ref()?;
        let way = |(backend, config): (_, &Config)| AddressOptions {
            backend,
            config: config.clone(),
            further: Vec::new(),
            moves: None,
        };
        let ways = self.offered().map(way);
        Some(if moves.is_pinned() { ways.take(1).collect() } else { ways.collect() })
    }

    /// Writes the backends, and then the options of an address whose scheme gives `carrier`, each after a `&`, but not what is as usual.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn write(&self, carrier: Carrier, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.moves {
            Some(moves) => write!(f, "{}{moves}", hybrid::NAME)?,
            None => {
                f.write_str(self.backend.name())?;
                self.further
                    .iter()
                    .try_for_each(|(backend, _)| write!(f, ",{}", backend.name()))?;
            }
        }
        self.config.write_options(&carrier.usual(self.backend), f)?;
        // Those that several backends have stand there once.
        let mut written = vec![&self.config.options];
        for (_, config) in &self.further {
            config.options.write(f, &written)?;
            written.push(&config.options);
        }
        Ok(())
    }
}

/// The backends of these names, which commas separate.
pub(super) fn find_all(key: &str, names: &str) -> Result<Vec<&'static dyn Backend>, AddressError> {
    let mut found: Vec<&dyn Backend> = Vec::new();
    for name in names.split(',') {
        let unknown = || AddressError::UnknownBackend { backend: name.to_owned() };
        let backend = registry::find(name).ok_or_else(unknown)?;
        if found.contains(&backend) {
            let expected = "each backend once".to_owned();
            return Err(AddressError::bad_value(key, names, expected));
        }
        found.push(backend);
    }
    Ok(found)
}

/// The backend has an option of this name.
fn has_option(backend: &dyn Backend, key: &str) -> bool {
    backend.options().iter().any(|spec| spec.name == key)
}

/// An option that is neither every address's nor the scheme's own.
fn read_backend_option(
    config: &mut Config,
    backend: &'static dyn Backend,
    own: &[&'static str],
    key: &str,
    value: &str,
) -> Result<(), AddressError> {
    if let Some(spec) = backend.options().iter().find(|spec| spec.name == key) {
        if !(spec.accepts)(value) {
            return Err(AddressError::bad_value(key, value, (spec.expected)()));
        }
        config.options.set(spec, value);
        return Ok(());
    }
    let has = |other: &&&dyn Backend| has_option(**other, key);
    let mut theirs: Vec<_> = registry::ALL.iter().filter(has).map(|other| other.name()).collect();
    if HYBRID_OPTIONS.contains(&key) {
        theirs.push(hybrid::NAME);
    }
    if !theirs.is_empty() {
        let (key, backend) = (key.to_owned(), backend.name());
        return Err(AddressError::OtherBackend { key, backend, theirs });
    }
    let specs = backend.options().iter().map(|spec| spec.name);
    let known = OPTIONS.iter().chain(own).copied().chain(specs).collect();
    Err(AddressError::UnknownOption { key: key.to_owned(), known })
}

impl Config {
    /// Writes what differs from the `usual` as options of an address, each after a `&`.
    fn write_options(&self, usual: &Config, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Config { memory: default_memory(self.max_message), ..usual.clone() };
        for (key, value, default) in [
            ("window", u64::from(self.window), u64::from(usual.window)),
            ("slot", u64::from(self.slot), u64::from(usual.slot)),
            ("max_message", self.max_message, usual.max_message),
            ("memory", self.memory, usual.memory),
            (
                "max_clients_per_source",
                u64::from(self.max_clients_per_source),
                u64::from(usual.max_clients_per_source),
            ),
        ] {
            if value != default {
                write!(f, "&{key}={value}")?;
            }
        }
        for (key, value, default) in [
            ("silence", self.silence, usual.silence),
            ("idle_timeout", self.idle_timeout, usual.idle_timeout),
        ] {
            if value != default {
                write!(f, "&{key}={}ms", value.as_millis())?;
            }
        }
        self.options.write(f, &[])
    }
}
