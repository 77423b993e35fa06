//! The completion channel that all transports of a site over one device share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use farcall_core::site::{EventChannel, Site, SiteResource};
use farcall_verbs::{CompletionChannel, Device, VerbsError};

/// One device's completion channel at one site.
#[derive(Debug)]
pub(crate) struct DeviceChannel {
    channel: CompletionChannel,
    device: Device,
}

impl DeviceChannel {
    /// The channel of this device at this site, made with its first transport and dropped with its last.
    pub(crate) fn at(site: &Site, device: &Device) -> Result<Arc<DeviceChannel>, VerbsError> {
        let fits = |known: &DeviceChannel| known.device.is_same(device);
        site.share(fits, || {
            Ok(DeviceChannel {
                channel: device.create_completion_channel()?,
                device: device.clone(),
            })
        })
    }

    /// The devices of the transports of this site.
    pub(crate) fn devices_at(site: &Site) -> Vec<Device> {
        site.shared::<DeviceChannel>().iter().map(|it| it.device.clone()).collect()
    }

    /// For completion queues.
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }
}

impl SiteResource for DeviceChannel {
    fn events(&self) -> Option<&dyn EventChannel> {
        Some(self)
    }
}

impl EventChannel for DeviceChannel {
    fn wait(&self, timeout: Duration) {
        // A failure to sleep is a spurious wake-up: the driver polls and comes back.
        let _ = self.channel.wait(timeout);
    }

    fn wake(&self) {
        self.channel.wake();
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
