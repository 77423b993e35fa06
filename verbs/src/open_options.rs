//! Options for opening a device: its port and address.

use crate::OpenError;

/// Options for opening a device. Each has a default that fits most machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The index of the port's GID to use. By default, the first RoCEv2 IPv4 GID.
    pub gid_index: Option<u8>,
    /// The port. By default, the first.
    pub port: Option<u8>,
}

impl OpenOptions {
    /// Sets [`gid_index`](OpenOptions::gid_index).
    pub fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Sets [`port`](OpenOptions::port).
    pub fn port(mut self, port: u8) -> Self {
        self.port = Some(port);
        self
    }

    /// Refuses options that only exist for devices with ports.
    pub(crate) fn refuse_ports(&self, device: &str) -> Result<(), OpenError> {
        let option = match (self.gid_index, self.port) {
            (Some(_), _) => "gid_index",
            (None, Some(_)) => "port",
            (None, None) => return Ok(()),
        };
        Err(OpenError::NoSuchOption { device: device.to_owned(), option })
    }
}
