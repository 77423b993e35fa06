//! The description and capabilities of one device.

use std::net::Ipv6Addr;

use anyhow::{Result, bail};
use farcall_transports::contract::Fabric;
use farcall_transports::{registry, runs_on_stream};
use farcall_verbs::{
    Capabilities, DeviceInfo, GidInfo, Operation, PortInfo, QpType, Visibility, WriteOrder,
};
use serde::Serialize;

/// A device, opened if that is possible.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) description: String,
    /// Why it cannot be opened, if so.
    pub(super) problem: Option<String>,
    pub(super) ports: Vec<Port>,
    pub(super) can: Option<CapabilitySummary>,
    pub(super) backends: Vec<Backend>,
}

/// A port of a device.
#[derive(Debug, Serialize)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) state: String,
    pub(super) link: &'static str,
    pub(super) netdev: Option<String>,
    pub(super) mtu: usize,
    pub(super) gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Debug, Serialize)]
pub(super) struct Gid {
    pub(super) index: u8,
    pub(super) address: String,
    #[serde(rename = "type")]
    pub(super) ty: String,
    /// Used unless `gid_index` selects another.
    pub(super) usual: bool,
}

impl From<&PortInfo> for Port {
    fn from(port: &PortInfo) -> Port {
        let usual = port.default_gid();
        let gid = |gid: &GidInfo| {
            let address = Ipv6Addr::from(gid.gid);
            Gid {
                index: gid.index,
                address: address
                    .to_ipv4_mapped()
                    .map_or_else(|| address.to_string(), |address| address.to_string()),
                ty: gid.ty.to_string(),
                usual: usual.is_some_and(|usual| usual.index == gid.index),
            }
        };
        Port {
            number: port.number,
            state: port.state.to_string(),
            link: if port.ethernet { "Ethernet (RoCE)" } else { "InfiniBand" },
            netdev: port.netdev.clone(),
            mtu: port.mtu,
            gids: port.gids.iter().map(gid).collect(),
        }
    }
}

/// The capabilities of a device.
#[derive(Debug, Serialize)]
pub(super) struct CapabilitySummary {
    pub(super) rc: Vec<&'static str>,
    pub(super) uc: Vec<&'static str>,
    pub(super) ud: Vec<&'static str>,
    pub(super) max_inline: usize,
    pub(super) max_message: u64,
    pub(super) mtu: usize,
    pub(super) max_sge: usize,
    pub(super) max_send_wr: usize,
    pub(super) max_recv_wr: usize,
    pub(super) max_cqe: usize,
    pub(super) max_rd_atomic: usize,
    pub(super) completion_payload: usize,
    pub(super) srq: bool,
    pub(super) flush: bool,
    pub(super) persistent_memory: bool,
    pub(super) wait: bool,
    /// One queue pair reaches any target.
    pub(super) dynamic_connections: bool,
    /// Lower addresses of a WRITE land first.
    pub(super) writes_in_order: bool,
    /// A completion means that the peer's CPUs see the data.
    pub(super) completion_means_visible: bool,
}

/// Whether a backend runs on a device.
#[derive(Debug, Serialize)]
pub(super) struct Backend {
    pub(super) name: &'static str,
    pub(super) runs: bool,
    /// Why it does not run there, if so.
    pub(super) why_not: Option<String>,
}

/// All devices, or the one with that name.
pub(super) fn all(only: Option<&str>) -> Result<Vec<Device>> {
    let infos = farcall_verbs::Device::list();
    let Some(only) = only else { return Ok(infos.into_iter().map(look).collect()) };
    if let Some(info) = infos.into_iter().find(|info| info.name == only) {
        return Ok(vec![look(info)]);
    }
    // The error of the open lists the existing devices.
    match farcall_verbs::Device::open(only) {
        Ok(device) => {
            let ports = device.ports().iter().map(Port::from).collect();
            Ok(vec![described(only.to_owned(), String::new(), ports, Ok(&device))])
        }
        Err(error) => bail!(error),
    }
}

fn look(info: DeviceInfo) -> Device {
    let DeviceInfo { name, description, ports, problem, .. } = info;
    let ports = ports.iter().map(Port::from).collect();
    if let Some(problem) = problem {
        return described(name, description, ports, Err(problem));
    }
    match farcall_verbs::Device::open(&name) {
        Ok(device) => described(name, description, ports, Ok(&device)),
        Err(error) => described(name, description, ports, Err(error.to_string())),
    }
}

/// The backends that need no device.
pub(super) fn backends_without_device() -> Vec<Backend> {
    let on_stream = registry::ALL.iter().filter(|backend| runs_on_stream(**backend));
    on_stream.map(|backend| Backend { name: backend.name(), runs: true, why_not: None }).collect()
}

fn described(
    name: String,
    description: String,
    ports: Vec<Port>,
    opened: Result<&farcall_verbs::Device, String>,
) -> Device {
    let device = match opened {
        Ok(device) => device,
        Err(problem) => {
            let (problem, backends) = (Some(problem), Vec::new());
            return Device { name, description, problem, ports, can: None, backends };
        }
    };
    let on_device = registry::ALL.iter().filter(|backend| !runs_on_stream(**backend));
    let backends = on_device.map(|backend| {
        let why_not = backend.check(&Fabric::Verbs(device)).err().map(|error| error.to_string());
        Backend { name: backend.name(), runs: why_not.is_none(), why_not }
    });
    let backends = backends.collect();
    Device {
        name,
        description,
        problem: None,
        ports,
        can: Some(abilities(device.caps())),
        backends,
    }
}

fn abilities(caps: &Capabilities) -> CapabilitySummary {
    let operations = |ty| {
        let carried = Operation::ALL.into_iter().filter(move |op| caps.supports(ty, *op));
        carried.map(name).collect()
    };
    CapabilitySummary {
        rc: operations(QpType::Rc),
        uc: operations(QpType::Uc),
        ud: operations(QpType::Ud),
        max_inline: caps.max_inline,
        max_message: caps.max_message,
        mtu: caps.mtu,
        max_sge: caps.max_sge,
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_cqe: caps.max_cqe,
        max_rd_atomic: caps.max_rd_atomic,
        completion_payload: caps.completion_payload,
        srq: caps.srq,
        flush: caps.flush,
        persistent_memory: caps.persistent_memory,
        wait: caps.wait,
        dynamic_connections: caps.dynamic_connections,
        writes_in_order: caps.write_order == WriteOrder::LeftToRight,
        completion_means_visible: caps.visibility == Visibility::CompletionMeansVisible,
    }
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Send => "SEND",
        Operation::SendWithImm => "SEND_WITH_IMM",
        Operation::Write => "WRITE",
        Operation::WriteWithImm => "WRITE_WITH_IMM",
        Operation::Read => "READ",
        Operation::CompareAndSwap => "COMPARE_AND_SWAP",
        Operation::FetchAdd => "FETCH_ADD",
        Operation::Flush => "FLUSH",
        Operation::BindWindow => "BIND_MW",
        Operation::InvalidateWindow => "LOCAL_INV",
        _ => "another",
    }
}
