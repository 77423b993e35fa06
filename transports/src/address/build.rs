//! An address put together from its parts.

use std::fmt::Display;

use farcall_core::error::Source;
use farcall_core::transport::{ParseAddress, ServerAddress, ToAddress};

use super::{Address, AddressError};

/// An address that is put together from its parts instead of parsed. It takes the same options as the text, with the same
/// checks: in [`build`](Self::build), or where the address is used.
///
/// ```
/// use farcall_transports::Address;
///
/// let address = Address::shm("kv").backend("datagram").option("window", 64).build()?;
/// assert_eq!(address, "shm://kv?backend=datagram&window=64".parse()?);
///
/// let address = Address::rdma("2001:db8::1", 7471).option("device", "rxe0").build()?;
/// assert_eq!(address, "rdma://[2001:db8::1]:7471?device=rxe0".parse()?);
///
/// let error = Address::shm("kv").option("window", 0).build().unwrap_err();
/// assert!(error.to_string().contains("from 1 to 1024"));
/// # Ok::<_, farcall_transports::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "it names nothing until it is used or built"]
pub struct AddressBuilder {
    scheme: &'static str,
    place: String,
    options: Vec<(String, String)>,
}

impl Address {
    /// The address of a server on this machine: `shm://NAME`.
    pub fn shm(name: impl Into<String>) -> AddressBuilder {
        AddressBuilder::new("shm", name.into())
    }

    /// The address of a server that RDMA reaches: `rdma://HOST:PORT`. The host is a name, or an IPv4 or IPv6 address.
    pub fn rdma(host: &str, port: u16) -> AddressBuilder {
        AddressBuilder::in_network("rdma", host, port)
    }

    /// The address of a server that TCP reaches, without RDMA: `tcp://HOST:PORT`. The host is a name, or an IPv4 or IPv6 address.
    pub fn tcp(host: &str, port: u16) -> AddressBuilder {
        AddressBuilder::in_network("tcp", host, port)
    }
}

impl AddressBuilder {
    fn new(scheme: &'static str, place: String) -> AddressBuilder {
        AddressBuilder { scheme, place, options: Vec::new() }
    }

    fn in_network(scheme: &'static str, host: &str, port: u16) -> AddressBuilder {
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        let place =
            if is_bare_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        AddressBuilder::new(scheme, place)
    }

    /// The backend that carries the calls, by its name.
    pub fn backend(self, name: &str) -> AddressBuilder {
        self.option("backend", name)
    }

    /// One more option, as it would stand after the `?` of the text.
    pub fn option(mut self, key: &str, value: impl Display) -> AddressBuilder {
        self.options.push((key.to_owned(), value.to_string()));
        self
    }

    /// The address.
    ///
    /// # Errors
    /// Those of parsing it as text.
    pub fn build(&self) -> Result<Address, AddressError> {
        let options = self.options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Address::read(self.scheme, &self.place, &options.collect::<Vec<_>>())
    }
}

/// Parses an address for [`ToAddress`].
///
/// # Errors
/// [`AddressError`].
pub fn parse_address(text: &str) -> Result<Box<dyn ServerAddress>, Source> {
    Ok(Box::new(text.parse::<Address>()?))
}

impl ToAddress for Address {
    fn to_address(&self, _: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        Ok(Box::new(self.clone()))
    }
}

impl ToAddress for AddressBuilder {
    fn to_address(&self, _: ParseAddress) -> Result<Box<dyn ServerAddress>, Source> {
        Ok(Box::new(self.build()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cannot_smuggle_in_other_parts() {
        for (builder, wanted) in [
            (Address::shm("kv?window=3"), "`kv?window=3`"),
            (Address::shm(""), "``"),
            (Address::shm("kv").option("window", "3&slot=64"), "`window=3&slot=64`"),
            (Address::shm("kv").option("window&slot", 64), "unknown option `window&slot`"),
            (Address::shm("kv").option("device", "rxe0"), "unknown option `device`"),
            (Address::shm("kv").backend("rfp").backend("write_imm"), "`backend` is given twice"),
            (Address::rdma("node/3", 7471), "not a host"),
            (Address::rdma("node:1", 7471), "not an IPv6 address"),
            (Address::rdma("[::1", 7471), "stands in brackets"),
        ] {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.contains(wanted), "{builder:?}: {error}");
        }
    }

    #[test]
    fn a_host_may_stand_in_brackets_or_not() {
        let text: Address = "rdma://[::1]:7".parse().unwrap();
        assert_eq!(Address::rdma("::1", 7).build(), Ok(text.clone()));
        assert_eq!(Address::rdma("[::1]", 7).build(), Ok(text));
    }
}
