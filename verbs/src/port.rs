//! Ports of a device, and the addresses they have.

use std::fmt;
use std::net::Ipv6Addr;

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can carry anything.
    pub state: PortState,
    /// Ethernet, so RoCE; otherwise InfiniBand.
    pub ethernet: bool,
    /// Payload bytes of its largest packet now.
    pub mtu: usize,
    /// Its local identifier in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The network interface under it, on Ethernet.
    pub netdev: Option<String>,
    /// Its addresses.
    pub gids: Vec<GidInfo>,
}

impl PortInfo {
    /// The address that is used unless another is asked for: on Ethernet the first RoCEv2 one that stands
    /// for an IPv4 address.
    pub fn default_gid(&self) -> Option<&GidInfo> {
        self.gids.iter().find(|gid| {
            let ipv4 = Ipv6Addr::from(gid.gid).to_ipv4_mapped().is_some();
            !self.ethernet || (gid.ty == GidType::RoceV2 && ipv4)
        })
    }
}

/// Whether a port can carry anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// It can.
    Active,
    /// Its link is there, but not set up.
    Starting,
    /// It has no link, or is switched off.
    Down,
}

/// An address of a port: a global identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidInfo {
    /// Its place in the port's table.
    pub index: u8,
    /// The identifier.
    pub gid: [u8; 16],
    /// The packets that it stands for.
    pub ty: GidType,
}

/// The packets that carry messages to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// UDP over IP.
    RoceV2,
    /// On Ethernet RoCE version 1, which no router forwards; else InfiniBand.
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
    /// Index, address and type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.gid);
        match address.to_ipv4_mapped() {
            Some(address) => write!(f, "{} ({address}, {})", self.index, self.ty),
            None => write!(f, "{} ({address}, {})", self.index, self.ty),
        }
    }
}
