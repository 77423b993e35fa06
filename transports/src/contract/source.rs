//! Where a client comes from.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Where a client comes from, as far as its server can tell. What one source may hold while others wait is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A process of this machine.
    Process(u32),
    /// A process of this machine in a pid namespace that the server cannot see into. All such processes count as one source.
    HiddenProcess,
    /// A machine, or on IPv6 a network of 64 bits: a machine can take any number of addresses in it.
    Machine(IpAddr),
    /// A node of a simulated rack.
    Node(u16),
    /// It cannot be told. All such clients count as one source.
    Unknown,
}

impl Source {
    /// A program of the user that the server runs as, which has been checked.
    pub fn is_of_same_user(self) -> bool {
        matches!(self, Source::Process(_) | Source::HiddenProcess)
    }
}

/// The bits of an IPv6 address that name its network (RFC 4291, section 2.5.4).
const NETWORK_BITS: u32 = 64;

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Source {
        Source::Machine(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> NETWORK_BITS << NETWORK_BITS;
                Ipv6Addr::from_bits(network).into()
            }
            address => address,
        })
    }
}

/// How many clients there are from each source.
#[derive(Debug)]
pub(crate) struct CountsBySource(HashMap<Source, usize>);

impl FromIterator<Source> for CountsBySource {
    fn from_iter<I: IntoIterator<Item = Source>>(sources: I) -> CountsBySource {
        let mut counts = HashMap::new();
        for source in sources {
            *counts.entry(source).or_default() += 1;
        }
        CountsBySource(counts)
    }
}

impl CountsBySource {
    /// Those from one source.
    pub(crate) fn of(&self, source: Source) -> usize {
        self.0.get(&source).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        address.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn a_machine_is_one_source_with_whatever_address_of_its_network() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
