//! The options of an address whose connections move among backends: `backend=hybrid`.

use std::fmt;

use super::AddressError;
use super::options::{find_all, runs_on_stream};
use crate::contract::Backend;
use crate::registry;

/// The options that only such an address has.
pub const HYBRID_OPTIONS: &[&str] = &["pin", "exclude"];

/// Among which backends a connection moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    /// It stays on this one.
    pin: Option<&'static dyn Backend>,
    /// It never takes these.
    exclude: Vec<&'static dyn Backend>,
}

impl Moves {
    /// Reads the options, of an address that goes with the backends for which that is true. Gives the backends, that on which a connection
    /// begins first.
    pub(super) fn read(
        pairs: &[(&str, &str)],
        goes_with: impl Fn(&'static dyn Backend) -> bool,
    ) -> Result<(Vec<&'static dyn Backend>, Moves), AddressError> {
        let given = |key: &str| pairs.iter().find(|(seen, _)| *seen == key).map(|pair| pair.1);
        let names = given("exclude");
        let exclude = names.map_or(Ok(Vec::new()), |names| find_all("exclude", names))?;
        let is_way = |it: &&'static dyn Backend| goes_with(*it) && !exclude.contains(it);
        let mut ways: Vec<_> = registry::ALL.iter().copied().filter(is_way).collect();
        // Those that do without a device are for clients that have none.
        ways.sort_by_key(|way| runs_on_stream(*way));
        if ways.is_empty() {
            let expected = "at least one backend to be left".to_owned();
            return Err(AddressError::bad_value("exclude", names.unwrap_or(""), expected));
        }
        let pin = given("pin").map(|name| {
            let known = || {
                let names: Vec<_> = ways.iter().map(|way| way.name()).collect();
                AddressError::bad_value("pin", name, format!("one of {}", names.join(", ")))
            };
            ways.iter().position(|way| way.name() == name).ok_or_else(known)
        });
        let pin = pin.transpose()?.map(|at| {
            let pinned = ways.remove(at);
            ways.insert(0, pinned);
            pinned
        });
        Ok((ways, Moves { pin, exclude }))
    }

    /// It stays on its first backend.
    pub(super) fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }
}

/// As options of an address, each after a `&`.
impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pin) = self.pin {
            write!(f, "&pin={}", pin.name())?;
        }
        if let [first, rest @ ..] = &self.exclude[..] {
            write!(f, "&exclude={}", first.name())?;
            rest.iter().try_for_each(|backend| write!(f, ",{}", backend.name()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Address;

    fn names(text: &str) -> Vec<&'static str> {
        let address: Address = text.parse().unwrap();
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address, "{address}");
        address.ways().unwrap().iter().map(|way| way.backend().name()).collect()
    }

    #[test]
    fn connections_move_among_the_backends_that_go_with_the_address() {
        let all = ["write_imm", "datagram", "send_recv", "rfp", "scale"];
        assert_eq!(names("shm://kv?backend=hybrid"), all);
        let and_tcp = [&all[..], &["tcp"]].concat();
        assert_eq!(names("rdma://node:7?device=rxe0&backend=hybrid"), and_tcp);
        assert_eq!(names("rdma://node:7?backend=hybrid&exclude=tcp"), all);
        assert_eq!(names("tcp://node:7?backend=hybrid"), ["tcp"]);
        assert_eq!(
            names("shm://kv?backend=hybrid&exclude=scale,datagram&window=8"),
            ["write_imm", "send_recv", "rfp"]
        );
        assert_eq!(names("shm://kv?pin=scale&group=4&backend=hybrid"), ["scale"]);
    }

    #[test]
    fn the_way_without_a_device_names_none() {
        let address: Address = "rdma://node:7?device=rxe0&backend=hybrid".parse().unwrap();
        let ways: Vec<_> = address.ways().unwrap().iter().map(Address::to_string).collect();
        assert_eq!(ways[0], "rdma://node:7?device=rxe0&backend=write_imm");
        assert_eq!(ways[5], "tcp://node:7?backend=tcp");
    }

    #[test]
    fn a_server_offers_all_of_them_whatever_is_pinned() {
        let address: Address = "shm://kv?backend=hybrid&pin=rfp&slot=1m".parse().unwrap();
        let offered: Vec<_> =
            address.offered().map(|(it, config)| (it.name(), config.slot)).collect();
        assert_eq!(offered[0], ("rfp", 1 << 20));
        assert!(offered.contains(&("send_recv", 16 << 10)), "as much as it can: {offered:?}");
        assert_eq!((offered.len(), address.backend_name()), (5, "hybrid"));
    }

    #[test]
    fn errors_name_the_option_and_what_would_be_right() {
        for (text, wanted) in [
            ("shm://kv?backend=hybrid&pin=tcp", "one of write_imm, datagram"),
            ("shm://kv?backend=hybrid&pin=rfp&exclude=rfp", "one of write_imm, datagram"),
            ("shm://kv?backend=hybrid&exclude=rpf", "did you mean `rfp`?"),
            ("shm://kv?backend=hybrid&exclude=rfp,rfp", "each backend once"),
            ("tcp://kv:1?backend=hybrid&exclude=tcp", "at least one backend"),
            ("shm://kv?pin=rfp", "option `pin` belongs to backend=hybrid"),
            ("shm://kv?backend=hybird", "did you mean `hybrid`?"),
            ("shm://kv?backend=hybrid,rfp", "unknown backend `hybrid`"),
            ("shm://kv?backend=hybrid&window=1025", "from 1 to 1024"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
