//! The devices of libibverbs.

use std::ffi::{CStr, c_int};
use std::fs::{self, OpenOptions as OpenFile};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::port;
use super::status;
use super::sys::{Handle, Library, Zeroed, ibv_context, ibv_device, ibv_device_attr};
use crate::{DeviceInfo, OpenError, OpenOptions, PortInfo};

/// Checks whether libibverbs can be used; the error says why not, and how to fix it.
pub(crate) fn support() -> Result<(), String> {
    Library::get().map(|_| ()).map_err(|missing| missing.to_string())
}

/// Lists the devices, including those that cannot be opened; empty without the library.
pub(crate) fn list() -> Vec<DeviceInfo> {
    let mut devices = Vec::new();
    let Ok(library) = Library::get() else { return devices };
    with_devices(library, |name, device| {
        let (ports, problem) = match Opened::open(library, device) {
            Ok(opened) => {
                let ports = ports(library, opened.raw(), name);
                let first =
                    ports.first().map(|first| port::choose(name, &OpenOptions::default(), first));
                (ports, first.and_then(Result::err).map(|error| error.to_string()))
            }
            Err(errno) => (Vec::new(), Some(not_opened(name, errno).to_string())),
        };
        devices.push(DeviceInfo {
            name: name.to_owned(),
            description: "RDMA device of libibverbs".to_owned(),
            ports,
            problem,
        });
        None::<()>
    });
    devices
}

/// Opens the device with that name; `None` if there is none.
pub(super) fn open(name: &str) -> Option<Result<Opened, Errno>> {
    let library = Library::get().ok()?;
    with_devices(library, |found, device| (found == name).then(|| Opened::open(library, device)))
}

/// Finds out why a device could not be opened. libibverbs tries several paths and returns the last errno;
/// the device file itself tells more.
pub(super) fn not_opened(name: &str, errno: Errno) -> OpenError {
    let file = device_file(name);
    let opened = file.as_ref().map(|file| OpenFile::new().read(true).write(true).open(file));
    let errno = match opened {
        Some(Err(error)) => Errno::from_io_error(&error).unwrap_or(errno),
        _ => errno,
    };
    status::opening(name, &file.map_or_else(String::new, |file| file.display().to_string()), errno)
}

/// The file of a device in `/dev/infiniband`.
fn device_file(name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/class/infiniband_verbs").ok()?;
    let found = entries.flatten().find(|entry| {
        fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|device| device.trim() == name)
    });
    Some(Path::new("/dev/infiniband").join(found?.file_name()))
}

/// Calls `look` for each device until it returns `Some`.
fn with_devices<T>(
    library: &Library,
    mut look: impl FnMut(&str, *mut ibv_device) -> Option<T>,
) -> Option<T> {
    let mut count: c_int = 0;
    // SAFETY: `count` is ours. Null means that the kernel has no RDMA: no devices.
    let devices = unsafe { (library.get_device_list)(&mut count) };
    if devices.is_null() {
        return None;
    }
    let mut found = None;
    for index in 0..count.max(0) as usize {
        // SAFETY: the list has `count` devices, which live until it is freed below; names are C strings
        // inside them.
        let (device, name) = unsafe {
            let device = *devices.add(index);
            (device, CStr::from_ptr((library.get_device_name)(device)))
        };
        found = look(&name.to_string_lossy(), device);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list is ours and not used any more; opened devices outlive it.
    unsafe { (library.free_device_list)(devices) };
    found
}

/// An opened device, closed when dropped unless kept.
pub(super) struct Opened {
    library: &'static Library,
    raw: Handle<ibv_context>,
}

impl Opened {
    /// Opens a device of the list.
    fn open(library: &'static Library, device: *mut ibv_device) -> Result<Opened, Errno> {
        // SAFETY: the device is in the list, which is still there.
        let raw = Handle::new(unsafe { (library.open_device)(device) });
        Ok(Opened { library, raw: raw.ok_or_else(status::last)? })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn raw(&self) -> &Handle<ibv_context> {
        &self.raw
    }

    /// Returns the handle to a caller that will close it.
    pub(super) fn keep(self) -> Handle<ibv_context> {
        let kept = ManuallyDrop::new(self);
        // SAFETY: read once, from what is never dropped or used again.
        unsafe { std::ptr::read(&kept.raw) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by us, and no other owner exists.
        unsafe { (self.library.close_device)(self.raw.raw()) };
    }
}

/// Queries a device's attributes.
pub(super) fn query(
    library: &Library,
    raw: &Handle<ibv_context>,
) -> Result<ibv_device_attr, Errno> {
    let mut attributes = ibv_device_attr::zeroed();
    // SAFETY: the context is open and the structure ours.
    match unsafe { (library.query_device)(raw.raw(), &mut attributes) } {
        0 => Ok(attributes),
        code => Err(status::returned(code)),
    }
}

/// The current state of all ports of a device.
pub(super) fn ports(library: &Library, raw: &Handle<ibv_context>, name: &str) -> Vec<PortInfo> {
    let count = query(library, raw).map_or(0, |device| device.phys_port_cnt);
    (1..=count)
        .filter_map(|number| {
            let attributes = port::query(library, raw, number).ok()?;
            Some(port::describe(name, number, &attributes))
        })
        .collect()
}
