//! Which port and address of a device to use.

use crate::OpenError;

/// Choices when a device is opened; each has a default that fits most machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The index of the port's GID to use; by default its first RoCEv2 IPv4 one.
    pub gid_index: Option<u8>,
    /// The port; by default the first.
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

    /// For devices that have neither ports nor GIDs.
    pub(crate) fn refuse_ports(&self, device: &str) -> Result<(), OpenError> {
        let option = match (self.gid_index, self.port) {
            (Some(_), _) => "gid_index",
            (None, Some(_)) => "port",
            (None, None) => return Ok(()),
        };
        Err(OpenError::NoSuchOption { device: device.to_owned(), option })
    }
}
