//! What one device is and can do.

use anyhow::{Result, bail};
use farcall_transports::BackendKind;
use farcall_verbs::{Capabilities, DeviceInfo, Operation, QpType, Visibility, WriteOrder};
use serde::Serialize;

/// A device, opened if that is possible.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) description: String,
    /// Why it cannot be opened.
    pub(super) problem: Option<String>,
    pub(super) can: Option<Abilities>,
    pub(super) backends: Vec<Backend>,
}

/// What a device can do.
#[derive(Debug, Serialize)]
pub(super) struct Abilities {
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
    pub(super) wait: bool,
    /// Lower addresses of a WRITE land first.
    pub(super) writes_in_order: bool,
    /// A completion says that the peer's CPUs see the data.
    pub(super) completion_means_visible: bool,
}

/// Whether a backend runs on a device.
#[derive(Debug, Serialize)]
pub(super) struct Backend {
    pub(super) name: &'static str,
    pub(super) runs: bool,
    /// Why it does not.
    pub(super) why_not: Option<String>,
}

/// All devices, or the one of that name.
pub(super) fn all(only: Option<&str>) -> Result<Vec<Device>> {
    let infos = farcall_verbs::Device::list();
    let Some(only) = only else { return Ok(infos.into_iter().map(look).collect()) };
    if let Some(info) = infos.into_iter().find(|info| info.name == only) {
        return Ok(vec![look(info)]);
    }
    // The device's own words tell which there are.
    match farcall_verbs::Device::open(only) {
        Ok(device) => Ok(vec![opened(only.to_owned(), String::new(), &device)]),
        Err(error) => bail!(error),
    }
}

fn look(info: DeviceInfo) -> Device {
    let DeviceInfo { name, description, .. } = info;
    match farcall_verbs::Device::open(&name) {
        Ok(device) => opened(name, description, &device),
        Err(error) => {
            let (problem, backends) = (Some(error.to_string()), Vec::new());
            Device { name, description, problem, can: None, backends }
        }
    }
}

fn opened(name: String, description: String, device: &farcall_verbs::Device) -> Device {
    let backends = BackendKind::ALL.iter().map(|backend| {
        let why_not = backend.check(device).err().map(|error| error.to_string());
        Backend { name: backend.name(), runs: why_not.is_none(), why_not }
    });
    Device {
        name,
        description,
        problem: None,
        can: Some(abilities(device.caps())),
        backends: backends.collect(),
    }
}

fn abilities(caps: &Capabilities) -> Abilities {
    let operations = |ty| {
        let carried = Operation::ALL.into_iter().filter(move |op| caps.supports(ty, *op));
        carried.map(name).collect()
    };
    Abilities {
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
        wait: caps.wait,
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
        _ => "another",
    }
}
