//! What the suite knows of each backend, in one entry per backend: a further backend adds a folder and a line to [`ALL`].

pub mod datagram;
mod hybrid;
pub mod rfp;
pub mod scale;
pub mod send_recv;
mod slots;
pub mod tcp;
pub mod write_imm;

use farcall_transports::contract::Terms;
use farcall_transports::{registry, runs_on_stream};
use farcall_verbs::Device;

use crate::case::Case;

/// One backend, as the suite sees it.
pub struct Backend {
    /// Its name in addresses and in the handshake.
    pub name: &'static str,
    /// Which of the suite's address options it has; the others are left out of its addresses.
    pub options: &'static [&'static str],
    /// Cases of its own: clients and servers that break the rules of its protocol.
    pub cases: &'static [Case],
    /// Cases that do not apply to it, each with the reason.
    pub exceptions: &'static [(&'static str, &'static str)],
    /// Makes an end by hand that is not connected yet, for handshakes by hand.
    pub open_end: fn(&Device, &Terms) -> Box<dyn UnconnectedEnd>,
    /// Setups that either end must refuse, besides bytes that are no setup at all.
    pub broken_setups: fn(&Device) -> Vec<Vec<u8>>,
    /// The simulated racks on which it is tested.
    #[cfg(feature = "sim")]
    pub racks: &'static [RackVariant],
}

/// An end made by hand that no peer is connected to yet.
pub trait UnconnectedEnd: Send {
    /// What it says of itself in the handshake, as the rules are.
    fn setup(&self) -> Vec<u8>;
}

/// A kind of simulated rack that a backend is tested on.
#[cfg(feature = "sim")]
pub struct RackVariant {
    /// In the names of the tests.
    pub name: &'static str,
    /// Address options besides the backend's name.
    pub options: &'static str,
    /// The rack's NICs and faults.
    pub config: fn() -> farcall_verbs::sim::SimConfig,
    /// Whether the connections of one thread share what their backend lets them share.
    pub shared: bool,
}

/// Every backend, and the connection that moves among them.
pub const ALL: &[&Backend] = &[
    &write_imm::BACKEND,
    &datagram::BACKEND,
    &send_recv::BACKEND,
    &tcp::BACKEND,
    &rfp::BACKEND,
    &scale::BACKEND,
    &hybrid::BACKEND,
];

impl Backend {
    /// Whether it runs on a byte stream, and not on a device.
    pub fn runs_on_stream(&self) -> bool {
        registry::find(self.name).is_some_and(runs_on_stream)
    }

    /// An address of it on this machine, whose name or port stands for any.
    pub fn local_template(&self) -> String {
        match self.runs_on_stream() {
            true => format!("tcp://127.0.0.1:0?backend={}", self.name),
            false => format!("shm://conformance?backend={}", self.name),
        }
    }
}

/// The backend of that name.
pub fn find(name: &str) -> Option<&'static Backend> {
    ALL.iter().find(|backend| backend.name == name).copied()
}
