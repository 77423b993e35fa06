//! Where a server is: by a name on this machine, or by a port in a network.

use std::net::{IpAddr, Ipv6Addr};

use super::AddressError;

/// Longest name of a `shm://` address: an abstract Unix socket's name has 107 bytes, and the user id and a prefix go in
/// front of ours.
pub const MAX_NAME_BYTES: usize = 64;

/// Longest host name, as the domain name system has it.
const MAX_HOST_BYTES: usize = 253;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A server of this machine and this user, over shared memory.
    Shm {
        /// Its name.
        name: String,
    },
    /// A server in a network, which a TCP connection finds.
    Rdma(NetworkPlace),
    /// A server in a network, over TCP alone. No device is chosen.
    Tcp(NetworkPlace),
}

/// A server in a network, and the device that goes there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkPlace {
    /// A host's name, or its IPv4 or IPv6 address (without brackets).
    pub host: String,
    /// The TCP port of the handshake. At a listener, 0 lets the system choose.
    pub port: u16,
    /// Which RDMA device; if none is named, the only one there is.
    pub device: DeviceChoice,
}

/// Which device, and what of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct DeviceChoice {
    /// The device's name.
    pub name: Option<String>,
    /// Which of the port's GIDs; the device knows a good one.
    pub gid_index: Option<u8>,
    /// Which of the device's ports; the device knows a good one.
    pub ib_port: Option<u8>,
}

/// Whether this can name a service.
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

impl Place {
    /// The scheme of its addresses.
    pub(super) fn scheme(&self) -> &'static str {
        match self {
            Place::Shm { .. } => "shm",
            Place::Rdma(_) => "rdma",
            Place::Tcp(_) => "tcp",
        }
    }

    pub(super) fn shm(name: &str) -> Result<Place, AddressError> {
        if !is_name(name) {
            return Err(AddressError::BadName { name: name.to_owned() });
        }
        Ok(Place::Shm { name: name.to_owned() })
    }

    pub(super) fn rdma(place: &str, device: DeviceChoice) -> Result<Place, AddressError> {
        NetworkPlace::parse(place, device).map(Place::Rdma)
    }

    pub(super) fn tcp(place: &str) -> Result<Place, AddressError> {
        NetworkPlace::parse(place, DeviceChoice::default()).map(Place::Tcp)
    }

    /// The host and the port, if it is in a network.
    pub fn in_network(&self) -> Option<&NetworkPlace> {
        match self {
            Place::Shm { .. } => None,
            Place::Rdma(place) | Place::Tcp(place) => Some(place),
        }
    }

    /// As it stands in an address, between `://` and `?`.
    pub(super) fn to_text(&self) -> String {
        match self {
            Place::Shm { name } => name.clone(),
            Place::Rdma(place) | Place::Tcp(place) => place.to_text(),
        }
    }
}

impl NetworkPlace {
    fn parse(place: &str, device: DeviceChoice) -> Result<NetworkPlace, AddressError> {
        let bad = |what| AddressError::BadPlace { place: place.to_owned(), what };
        let Some((host, port)) = place.rsplit_once(':') else {
            return Err(bad("it has no port"));
        };
        // `parse` alone would take a sign.
        let port = Some(port)
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| bad("a port is a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(literal) => {
                let address: Ipv6Addr = literal
                    .parse()
                    .map_err(|_| bad("what is in the brackets is not an IPv6 address"))?;
                if address.is_unicast_link_local() {
                    return Err(bad(
                        "a link-local address (fe80::) means nothing without an interface, for which there is no place here; use \
                         another address of the host",
                    ));
                }
                address.to_string()
            }
            None if host.contains(':') => return Err(bad("an IPv6 address stands in brackets")),
            None => host.to_owned(),
        };
        check_host(&host).map_err(bad)?;
        Ok(NetworkPlace { host, port, device })
    }

    fn to_text(&self) -> String {
        let NetworkPlace { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Longest part of a host name between two dots.
const MAX_LABEL_BYTES: usize = 63;

/// Refuses what no host can be called, and no resolver needs to be asked for.
fn check_host(host: &str) -> Result<(), &'static str> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if host.is_empty() || !host.bytes().all(allowed) {
        return Err("that is not a host");
    }
    if host.len() > MAX_HOST_BYTES {
        return Err("the name of a host has at most 253 bytes");
    }
    // The last dot may be that of the root.
    let labels = || host.strip_suffix('.').unwrap_or(host).split('.');
    if labels().any(|label| !(1..=MAX_LABEL_BYTES).contains(&label.len())) {
        return Err("each part of a host's name between dots has 1 to 63 bytes");
    }
    if labels().any(|label| label.starts_with('-') || label.ends_with('-')) {
        return Err("no part of a host's name begins or ends with `-`");
    }
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    if host.contains('.') && labels().all(is_number) {
        return Err("an IPv4 address is four numbers from 0 to 255");
    }
    Ok(())
}
