//! Ports and their GIDs, and the choice of which to use.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::status;
use super::sys::{Handle, LINK_LAYER_ETHERNET, Library, Zeroed, ibv_context, ibv_port_attr};
use super::sys::{ibv_port_state, ibv_port_state::Type as RawState};
use crate::{GidInfo, GidType, OpenError, OpenOptions, PortInfo, PortState};

/// The port and the address that a context uses.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// RoCE finds peers by GID, InfiniBand by LID.
    pub(super) ethernet: bool,
    pub(super) lid: u16,
    /// The MTU, as libibverbs encodes it.
    pub(super) mtu: u8,
}

/// The bytes of an MTU code of libibverbs (`IBV_MTU_256` is 1).
pub(super) fn mtu_bytes(code: u8) -> usize {
    128 << code.clamp(1, 5)
}

/// The code of an MTU.
fn mtu_code(bytes: usize) -> u8 {
    (1..=5).rev().find(|code| mtu_bytes(*code) <= bytes).unwrap_or(1)
}

/// A GID in the usual notation of an IP address.
pub(super) fn gid_text(gid: &[u8; 16]) -> String {
    let address = Ipv6Addr::from(*gid);
    match address.to_ipv4_mapped() {
        Some(address) => address.to_string(),
        None => address.to_string(),
    }
}

/// The IPv4 address of a GID that is derived from one.
pub(super) fn ipv4(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    Ipv6Addr::from(*gid).to_ipv4_mapped()
}

/// Parses `gid_attrs/types`; `None` for an unknown type.
fn gid_type(text: &str) -> Option<GidType> {
    match text.trim() {
        "RoCE v2" => Some(GidType::RoceV2),
        "IB/RoCE v1" => Some(GidType::InfinibandOrRoceV1),
        _ => None,
    }
}

/// Parses `gids`: eight groups of four digits.
fn gid_of(text: &str) -> Option<[u8; 16]> {
    let gid = text.trim().parse::<Ipv6Addr>().ok()?.octets();
    (gid != [0; 16]).then_some(gid)
}

/// The GIDs of a port. Some libibverbs versions in use do not return their types; the kernel's files have
/// both. An index without a GID cannot be read there.
fn gids(device: &str, port: u8, count: usize) -> Vec<GidInfo> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
    (0..count.min(256))
        .filter_map(|index| {
            let gid = gid_of(&fs::read_to_string(format!("{folder}/gids/{index}")).ok()?)?;
            let text = fs::read_to_string(format!("{folder}/gid_attrs/types/{index}")).ok()?;
            Some(GidInfo { index: index as u8, gid, ty: gid_type(&text)? })
        })
        .collect()
}

/// The network interface of a RoCE port: that of its first GID.
fn netdev(device: &str, port: u8) -> Option<String> {
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/0");
    let name = fs::read_to_string(file).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

fn port_state(state: RawState) -> PortState {
    match state {
        ibv_port_state::IBV_PORT_ACTIVE | ibv_port_state::IBV_PORT_ACTIVE_DEFER => {
            PortState::Active
        }
        ibv_port_state::IBV_PORT_INIT | ibv_port_state::IBV_PORT_ARMED => PortState::Starting,
        _ => PortState::Down,
    }
}

/// Queries a port's attributes.
pub(super) fn query(
    library: &Library,
    context: &Handle<ibv_context>,
    number: u8,
) -> Result<ibv_port_attr, rustix::io::Errno> {
    let mut attributes = ibv_port_attr::zeroed();
    // SAFETY: the context is open; the structure is ours and large enough for any version of the call.
    match unsafe { (library.query_port)(context.raw(), number, &mut attributes) } {
        0 => Ok(attributes),
        code => Err(status::returned(code)),
    }
}

/// Converts a port's raw attributes.
pub(super) fn describe(device: &str, number: u8, attributes: &ibv_port_attr) -> PortInfo {
    PortInfo {
        number,
        state: port_state(attributes.state),
        ethernet: attributes.link_layer == LINK_LAYER_ETHERNET,
        mtu: mtu_bytes(attributes.active_mtu as u8),
        lid: attributes.lid,
        netdev: netdev(device, number),
        gids: gids(device, number, attributes.gid_tbl_len.max(0) as usize),
    }
}

/// Chooses the port and GID that the options name, or the defaults.
pub(super) fn choose(
    device: &str,
    options: &OpenOptions,
    port: &PortInfo,
) -> Result<Port, OpenError> {
    let gid = choose_gid(device, options.gid_index, port)?;
    Ok(Port {
        number: port.number,
        gid_index: gid.index,
        gid: gid.gid,
        ethernet: port.ethernet,
        lid: port.lid,
        mtu: mtu_code(port.mtu),
    })
}

fn choose_gid(device: &str, index: Option<u8>, port: &PortInfo) -> Result<GidInfo, OpenError> {
    let known = || {
        let all: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let device = || device.to_owned();
    if let Some(index) = index {
        let found = port.gids.iter().find(|gid| gid.index == index);
        return found.cloned().ok_or_else(|| OpenError::GidIndex {
            device: device(),
            port: port.number,
            index,
            known: known(),
        });
    }
    let fits =
        |gid: &&GidInfo| !port.ethernet || (gid.ty == GidType::RoceV2 && ipv4(&gid.gid).is_some());
    port.gids.iter().find(fits).cloned().ok_or_else(|| OpenError::NoGid {
        device: device(),
        port: port.number,
        known: known(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_LOCAL: &str = "fe80:0000:0000:0000:10ad:dbff:fe97:9419\n";
    const MAPPED: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001\n";

    fn port(gids: Vec<GidInfo>) -> PortInfo {
        let state = PortState::Active;
        PortInfo { number: 1, state, ethernet: true, mtu: 4096, lid: 0, netdev: None, gids }
    }

    fn gid(index: u8, text: &str, ty: GidType) -> GidInfo {
        GidInfo { index, gid: gid_of(text).unwrap(), ty }
    }

    #[test]
    fn the_kernels_gid_types_are_parsed() {
        assert_eq!(gid_type("RoCE v2\n"), Some(GidType::RoceV2));
        assert_eq!(gid_type("IB/RoCE v1\n"), Some(GidType::InfinibandOrRoceV1));
        assert_eq!(gid_type("RoCE v3\n"), None);
        let mapped = gid_of(MAPPED).unwrap();
        assert_eq!(ipv4(&mapped), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(gid_text(&mapped), "10.0.0.1");
        assert_eq!(gid_text(&gid_of(LINK_LOCAL).unwrap()), "fe80::10ad:dbff:fe97:9419");
        assert_eq!(gid_of("0000:0000:0000:0000:0000:0000:0000:0000\n"), None);
        assert_eq!(gid_of("garbage"), None);
    }

    #[test]
    fn the_first_ipv4_gid_of_roce_v2_is_the_default() {
        let port = port(vec![
            gid(0, LINK_LOCAL, GidType::RoceV2),
            gid(2, MAPPED, GidType::InfinibandOrRoceV1),
            gid(3, MAPPED, GidType::RoceV2),
        ]);
        assert_eq!(choose_gid("rxe0", None, &port).unwrap().index, 3);
        assert_eq!(choose_gid("rxe0", Some(0), &port).unwrap().index, 0);
        let text = choose_gid("rxe0", Some(9), &port).unwrap_err().to_string();
        assert!(text.contains("GID index 9") && text.contains("3 (10.0.0.1, RoCEv2)"), "{text}");
    }

    #[test]
    fn a_port_without_an_ipv4_gid_says_what_to_do() {
        let port = port(vec![gid(0, LINK_LOCAL, GidType::RoceV2)]);
        let text = choose_gid("rxe0", None, &port).unwrap_err().to_string();
        assert!(text.contains("rxe0") && text.contains("gid_index"), "{text}");
    }

    #[test]
    fn mtus_are_encoded_as_in_libibverbs() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(mtu_bytes(0), 256);
        assert_eq!(mtu_bytes(200), 4096);
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_code), [1, 2, 3, 4, 5]);
    }
}
