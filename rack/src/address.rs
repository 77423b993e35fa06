//! An address on a rack.

use std::fmt;
use std::str::FromStr;

use farcall_transports::{AddressError, AddressOptions, Backend, Carrier, Config, is_name};

/// The schemes of addresses on a rack.
const SCHEMES: &[&str] = &["sim"];

/// The address of a service on a simulated rack: `sim://NODE/NAME`, where NODE is the number of a node, and the options
/// of any [`Address`](farcall_transports::Address).
///
/// ```
/// use farcall_rack::RackAddress;
///
/// let address: RackAddress = "sim://3/kv?window=32".parse().unwrap();
/// assert_eq!((address.node(), address.name()), (3, "kv"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackAddress {
    node: u16,
    name: String,
    options: AddressOptions,
}

impl RackAddress {
    /// The number of the server's node.
    pub fn node(&self) -> u16 {
        self.node
    }

    /// Which server of that node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend that carries the calls.
    pub fn backend(&self) -> &'static dyn Backend {
        self.options.backend
    }

    /// The name of that backend, or `hybrid`: a connection that moves among several.
    pub fn backend_name(&self) -> &'static str {
        self.options.backend_name()
    }

    /// The addresses that a connection moves among, each with one backend, if it does.
    pub fn ways(&self) -> Option<Vec<RackAddress>> {
        let ways = self.options.ways()?;
        Some(ways.into_iter().map(|options| RackAddress { options, ..self.clone() }).collect())
    }

    /// What this end is ready to give.
    pub fn config(&self) -> &Config {
        &self.options.config
    }

    /// The backends that a server offers there, each with what it is ready to give.
    pub fn offered(&self) -> impl Iterator<Item = (&'static dyn Backend, &Config)> {
        self.options.offered()
    }
}

impl FromStr for RackAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<RackAddress, AddressError> {
        let (_, place, options) = AddressOptions::split(text, SCHEMES, "sim://NODE/NAME")?;
        let pairs = AddressOptions::pairs(options);
        let options = AddressOptions::read(&pairs, Carrier::Any, &[], |_, _| Ok(()))?;
        let bad = |what| AddressError::BadNode { place: place.to_owned(), what };
        let Some((node, name)) = place.split_once('/') else {
            return Err(bad("it has no name"));
        };
        // `parse` alone would take a sign.
        let node = Some(node)
            .filter(|node| node.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|node| node.parse().ok())
            .ok_or_else(|| bad("a node is a number from 0 to 65535"))?;
        if !is_name(name) {
            return Err(AddressError::BadName { name: name.to_owned() });
        }
        Ok(RackAddress { node, name: name.to_owned(), options })
    }
}

impl fmt::Display for RackAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sim://{}/{}?backend=", self.node, self.name)?;
        self.options.write(Carrier::Any, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written_back() {
        let address: RackAddress = "sim://12/kv-1?slot=1k&window=8".parse().unwrap();
        assert_eq!((address.node(), address.name()), (12, "kv-1"));
        assert_eq!((address.config().slot, address.config().window), (1024, 8));
        assert_eq!(address.to_string().parse::<RackAddress>().unwrap(), address);
    }

    #[test]
    fn errors_name_the_thing_and_the_alternatives() {
        for (text, wanted) in [
            ("kv", "sim://NODE/NAME"),
            ("shm://kv", "`shm`; known are: sim"),
            ("sim://", "`` is no place on a simulated rack"),
            ("sim://kv", "it has no name"),
            ("sim://kv/1", "a number from 0 to 65535"),
            ("sim://+1/kv", "a number from 0 to 65535"),
            ("sim://65536/kv", "a number from 0 to 65535"),
            ("sim://1/", "``"),
            (
                "sim://1/k?backend=nosuch",
                "`nosuch`; known are: write_imm, datagram, send_recv, tcp, rfp, scale, hybrid",
            ),
            ("sim://1/k?device=rxe0", "`device`; known are: backend, window"),
        ] {
            let error = text.parse::<RackAddress>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
