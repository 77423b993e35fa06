//! What survives a power cut on a server, as far as ways to write depend on it.

use std::fmt;

/// What survives a power cut: the persistence domain of the memory that is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Persistent memory and the queues of its controllers (ADR). The NIC writes into the last-level cache (DDIO, the default of Intel's
    /// servers), which loses its lines.
    AdrDdioOn,
    /// Persistent memory and the queues of its controllers (ADR). The NIC's writes go past the caches, as DDIO is off for it.
    AdrDdioOff,
    /// Caches, too, are written back on residual energy (eADR).
    Eadr,
    /// A battery keeps the whole machine running until NIC, PCIe and caches are empty.
    Battery,
    /// A file. What is in the system's page cache is lost; what `fdatasync` has ended for is kept.
    File,
}

impl Domain {
    /// All of them, in the order of the table.
    pub const ALL: [Domain; 5] =
        [Domain::AdrDdioOn, Domain::AdrDdioOff, Domain::Eadr, Domain::Battery, Domain::File];
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Domain::AdrDdioOn => "ADR, DDIO on",
            Domain::AdrDdioOff => "ADR, DDIO off",
            Domain::Eadr => "eADR",
            Domain::Battery => "battery incl. NIC",
            Domain::File => "file, fdatasync",
        })
    }
}

/// What the FLUSH of the server's NIC does (InfiniBand specification, volume 1 release 1.5, annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeFlush {
    /// The NIC has none.
    None,
    /// It empties NIC and PCIe. What DDIO put into a cache stays there.
    ToController,
    /// The owner of the machine declares that it reaches persistence through the caches, as librpma's peers declare "direct write to persistent
    /// memory". Nobody can find that out over the wire.
    ThroughCaches,
}

/// A server, as far as durability depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// What survives a power cut.
    pub domain: Domain,
    /// What the NIC's FLUSH does.
    pub flush: NativeFlush,
}
