//! The system limits that matter to RDMA, and possible problems.

use std::fs;
use std::path::Path;
use std::thread;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::device::Device;

/// Locked memory for a few connections with default windows; a server needs more.
const FEW_LOCKED_BYTES: u64 = 64 << 20;

/// Descriptors for a server of some hundred clients.
const FEW_DESCRIPTORS: u64 = 4096;

#[derive(Debug, Serialize)]
pub(super) struct System {
    /// Bytes that this process may lock; `None` if unlimited.
    pub(super) memlock: Option<u64>,
    pub(super) memlock_hard: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) open_files_hard: Option<u64>,
    /// Cores that this process may use.
    pub(super) cores: usize,
    pub(super) huge_pages: Vec<HugePages>,
    /// The kernel's policy for transparent huge pages: always, madvise, never.
    pub(super) transparent_huge_pages: Option<String>,
    /// RDMA devices that the kernel has.
    pub(super) kernel_devices: Vec<String>,
    /// The device files for programs, and whether this user may open them.
    pub(super) device_files: Vec<DeviceFile>,
}

/// Huge pages of one size.
#[derive(Debug, Serialize)]
pub(super) struct HugePages {
    pub(super) kib: u64,
    pub(super) reserved: u64,
    pub(super) free: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceFile {
    pub(super) path: String,
    /// Why this user may not open it, if so.
    pub(super) problem: Option<String>,
}

impl System {
    pub(super) fn look() -> System {
        let (memlock, files) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        System {
            memlock: memlock.current,
            memlock_hard: memlock.maximum,
            open_files: files.current,
            open_files_hard: files.maximum,
            cores: thread::available_parallelism().map_or(1, usize::from),
            huge_pages: huge_pages(),
            transparent_huge_pages: transparent_huge_pages(),
            kernel_devices: names_in("/sys/class/infiniband"),
            device_files: device_files(),
        }
    }

    /// Possible problems and how to fix them. Shared memory needs none of this.
    pub(super) fn hints(&self, lacking: Option<String>, devices: &[Device]) -> Vec<String> {
        let mut hints: Vec<_> =
            lacking.into_iter().map(|why| format!("RDMA devices: {why}")).collect();
        if self.kernel_devices.is_empty() {
            hints.push(
                "the kernel has no RDMA device; `rdma link add rxe0 type rxe netdev eth0` makes a Soft-RoCE one where the module rdma_rxe is there".to_owned(),
            );
            return hints;
        }
        if self.device_files.is_empty() {
            hints.push(
                "there is no /dev/infiniband/uverbs*; load the kernel module ib_uverbs".to_owned(),
            );
        }
        for file in &self.device_files {
            if let Some(problem) = &file.problem {
                hints.push(format!(
                    "{}: {problem}; give this user access to it, by its group or a udev rule",
                    file.path
                ));
            }
        }
        if let Some(bytes) = self.memlock.filter(|bytes| *bytes < FEW_LOCKED_BYTES) {
            hints.push(format!(
                "this process may lock {bytes} bytes, and an RDMA device locks all that it may touch; raise it with `ulimit -l unlimited`, or memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity in a systemd unit"
            ));
        }
        if let Some(files) = self.open_files_hard.filter(|files| *files < FEW_DESCRIPTORS) {
            hints.push(format!(
                "this process may open {files} files, and each connection takes some; raise it with nofile in /etc/security/limits.conf"
            ));
        }
        for device in devices {
            if let Some(problem) = &device.problem {
                hints.push(format!("{}: {problem}", device.name));
            }
        }
        hints
    }
}

/// The sorted names in a folder; empty if it does not exist.
fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn huge_pages() -> Vec<HugePages> {
    let folder = Path::new("/sys/kernel/mm/hugepages");
    let mut sizes: Vec<_> = names_in("/sys/kernel/mm/hugepages")
        .iter()
        .filter_map(|name| {
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number =
                |file| fs::read_to_string(folder.join(name).join(file)).ok()?.trim().parse().ok();
            Some(HugePages {
                kib,
                reserved: number("nr_hugepages")?,
                free: number("free_hugepages")?,
            })
        })
        .collect();
    sizes.sort_by_key(|size| size.kib);
    sizes
}

/// The kernel marks the active policy with brackets: `always [madvise] never`.
fn transparent_huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.map(str::to_owned)
}

fn device_files() -> Vec<DeviceFile> {
    let folder = "/dev/infiniband";
    let names = names_in(folder).into_iter().filter(|name| name.starts_with("uverbs"));
    names
        .map(|name| {
            let path = format!("{folder}/{name}");
            let opened = fs::File::options().read(true).write(true).open(&path);
            DeviceFile { problem: opened.err().map(|error| error.to_string()), path }
        })
        .collect()
}
