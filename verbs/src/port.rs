//! Ports of a device and their addresses.

use std::fmt;
use std::net::Ipv6Addr;

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub state: PortState,
    /// Whether it is Ethernet (RoCE); otherwise it is InfiniBand.
    pub ethernet: bool,
    /// The current MTU in payload bytes.
    pub mtu: usize,
    /// Its local identifier in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The network interface of an Ethernet port.
    pub netdev: Option<String>,
    /// Its addresses.
    pub gids: Vec<GidInfo>,
}

impl PortInfo {
    /// The address that is used by default: on Ethernet, the first RoCEv2 GID of an IPv4 address.
    pub fn default_gid(&self) -> Option<&GidInfo> {
        self.gids.iter().find(|gid| {
            let ipv4 = Ipv6Addr::from(gid.gid).to_ipv4_mapped().is_some();
            !self.ethernet || (gid.ty == GidType::RoceV2 && ipv4)
        })
    }
}

/// Whether a port can carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// It can.
    Active,
    /// Its link is up but not configured yet.
    Starting,
    /// It has no link, or is disabled.
    Down,
}

/// An address of a port: a global identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidInfo {
    /// Its index in the port's table.
    pub index: u8,
    /// The identifier.
    pub gid: [u8; 16],
    /// The packet format that it selects.
    pub ty: GidType,
}

/// The packet format of messages to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// UDP over IP.
    RoceV2,
    /// RoCE version 1 on Ethernet, which routers do not forward; InfiniBand otherwise.
    InfinibandOrRoceV1,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortState::Active => "active",
            PortState::Starting => "starting",
            PortState::Down => "down",
        })
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidType::RoceV2 => "RoCEv2",
            GidType::InfinibandOrRoceV1 => "InfiniBand or RoCEv1",
        })
    }
}

impl fmt::Display for GidInfo {
    /// Prints index, address and type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.gid);
        match address.to_ipv4_mapped() {
            Some(address) => write!(f, "{} ({address}, {})", self.index, self.ty),
            None => write!(f, "{} ({address}, {})", self.index, self.ty),
        }
    }
}
