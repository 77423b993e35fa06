//! Devices that cannot be opened, or not be used fully.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use farcall_verbs::{Access, Device, OpenError, OpenOptions, VerbsError};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::site::Site;
use crate::verdict::{CaseResult, Halt, ensure};

/// A user without any rights.
const NOBODY: u32 = 65_534;

/// What may be locked by the child that tries to register more.
const MEMLOCK_BYTES: u64 = 64 << 10;

pub(super) fn no_port(site: &Site) -> CaseResult {
    match Device::open_with(&site.device, &OpenOptions::default().port(77)) {
        Err(OpenError::NoPort { port: 77, ports: 1.., .. }) => Ok(()),
        other => Err(Halt::failed(format!("port 77: {:?}", other.err()))),
    }
}

pub(super) fn no_gid(site: &Site) -> CaseResult {
    match Device::open_with(&site.device, &OpenOptions::default().gid_index(200)) {
        Err(error @ OpenError::GidIndex { index: 200, .. }) => {
            ensure!(error.to_string().contains("RoCEv2"), "it names no other: {error}");
            Ok(())
        }
        other => Err(Halt::failed(format!("GID index 200: {:?}", other.err()))),
    }
}

pub(super) fn no_address(site: &Site) -> CaseResult {
    let device = site.open()?;
    let ports = device.ports();
    let Some(address) = ports
        .iter()
        .flat_map(|port| port.default_gid())
        .find_map(|gid| std::net::Ipv6Addr::from(gid.gid).to_ipv4_mapped())
    else {
        return Err(Halt::failed("the device has no IPv4 address to begin with"));
    };
    let with_prefix = format!("{address}/24");
    site.ip(&["addr", "del", &with_prefix, "dev", &site.netdev])?;
    site.then_ip(&["addr", "add", &with_prefix, "dev", &site.netdev], || {
        // The kernel takes the address off the device's table a moment later.
        site.wait(&device, "the refusal of a device without an address", || {
            match Device::open(&site.device) {
                Err(error @ OpenError::NoGid { .. }) => {
                    ensure!(error.to_string().contains("gid_index"), "no mend: {error}");
                    Ok(Some(()))
                }
                Err(error) => Err(error.into()),
                Ok(_) => Ok(None),
            }
        })
    })?;
    site.wait(&device, "the device with its address", || Ok(Device::open(&site.device).ok()))?;
    Ok(())
}

pub(super) fn no_permission(site: &Site) -> CaseResult {
    let folder = "/dev/infiniband";
    let mut changed = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        changed.push((path.clone(), fs::metadata(&path)?.permissions()));
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    }
    let said = child(site, &[]);
    for (path, before) in changed {
        fs::set_permissions(path, before)?;
    }
    let said = said?;
    ensure!(said.contains("no permission") && said.contains(folder), "it said: {said}");
    Ok(())
}

pub(super) fn little_memlock(site: &Site) -> CaseResult {
    let (limit, bytes) = (MEMLOCK_BYTES.to_string(), (1 << 20).to_string());
    let said = child(site, &[&limit, &bytes])?;
    let named = said.contains(&limit) && said.contains(&bytes) && said.contains("ulimit -l");
    ensure!(named, "it said: {said}");
    Ok(())
}

/// What this program says as a user without any rights that opens the device.
fn child(site: &Site, words: &[&str]) -> CaseResult<String> {
    let program = std::env::current_exe()?;
    let output = Command::new(program)
        .args(["open", &site.device])
        .args(words)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Opens a device, and registers so many bytes where only so many may be locked. Gives what went wrong.
pub fn open_as_child(device: &str, limits: Option<(u64, usize)>) -> Result<(), String> {
    let opened = Device::open(device).map_err(|error| error.to_string())?;
    let Some((limit, bytes)) = limits else { return Ok(()) };
    let both = Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Memlock, both).map_err(|error| error.to_string())?;
    let registered = opened.alloc_pd().and_then(|pd| pd.alloc_shared(bytes, Access::all()));
    match registered {
        Ok(_) => Ok(()),
        Err(error @ VerbsError::LockedMemory { .. }) => Err(error.to_string()),
        Err(other) => Err(format!("another error: {other}")),
    }
}
