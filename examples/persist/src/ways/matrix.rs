//! Which way is durable where, and which is the quickest of those.

use std::fmt;

use super::machine::{Domain, Machine, NativeFlush};

/// A way to write to memory that another machine lends. Each has a module that tells its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// A WRITE, and nothing more: what the others are compared with. One round trip.
    Write,
    /// A WRITE, and when it has completed a READ. Two round trips.
    WriteThenRead,
    /// A WRITE and a READ behind it, under one doorbell. One round trip and a little.
    WriteAndRead,
    /// A WRITE, and then a small call that names the range, which the server's CPU flushes. Two round trips and the CPU.
    WriteAndCall,
    /// A call that carries the bytes, which the server's CPU copies and flushes. One round trip and the CPU.
    Call,
    /// A WRITE and a native FLUSH behind it, under one doorbell. One round trip and a little.
    Flush,
}

impl Way {
    /// All of them, in the order of the table.
    pub const ALL: [Way; 6] = [
        Way::Write,
        Way::WriteThenRead,
        Way::WriteAndRead,
        Way::WriteAndCall,
        Way::Call,
        Way::Flush,
    ];

    /// Whether a write is durable when this way has ended for it.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the reason.
    pub fn durability(self, machine: Machine) -> Result<(), Refused> {
        let refused = |reason| Err(Refused { way: self, machine, reason });
        match (self, machine.domain) {
            // What is there when the server's CPU has flushed, or synced, is durable everywhere.
            (Way::Call | Way::WriteAndCall, _) => Ok(()),
            (Way::Flush, _) if machine.flush == NativeFlush::None => refused(NO_FLUSH),
            (_, Domain::Battery) => Ok(()),
            (Way::Write, _) => refused(IN_NIC),
            (_, Domain::File) => refused(IN_PAGE_CACHE),
            (Way::WriteThenRead | Way::WriteAndRead, Domain::AdrDdioOn) => refused(IN_CACHE),
            (Way::Flush, Domain::AdrDdioOn) if machine.flush == NativeFlush::ToController => {
                refused(UNDECLARED)
            }
            (_, Domain::AdrDdioOn | Domain::AdrDdioOff | Domain::Eadr) => Ok(()),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Write => "WRITE alone",
            Way::WriteThenRead => "WRITE, wait, READ",
            Way::WriteAndRead => "WRITE + READ",
            Way::WriteAndCall => "WRITE, wait, call",
            Way::Call => "call with the data",
            Way::Flush => "WRITE + FLUSH",
        })
    }
}

/// A way is not durable on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{way} is not durable with {}: {reason}", machine.domain)]
pub struct Refused {
    /// The way.
    pub way: Way,
    /// The machine.
    pub machine: Machine,
    /// Where acknowledged bytes may be when the power fails.
    pub reason: &'static str,
}

const IN_NIC: &str = "its completion says that the server's NIC has the bytes, which may still be there or in a PCIe queue";
const IN_CACHE: &str = "it brings the bytes out of NIC and PCIe, and DDIO puts them into the last-level cache, which loses its lines; \
     turn DDIO off for the NIC, or have the CPU flush";
const IN_PAGE_CACHE: &str = "the bytes are in the system's page cache, and only fdatasync of the server brings them to the disk";
const NO_FLUSH: &str = "the NIC has no FLUSH";
const UNDECLARED: &str = "its FLUSH ends at the memory controller, and DDIO leaves the bytes in the last-level cache, which loses its lines; \
     turn DDIO off for the NIC, or declare that FLUSH goes through the caches if it does";

/// The quickest way that is durable on a machine, and why it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// Why this one.
    pub why: &'static str,
}

/// Up to so many bytes, a call that carries them is as quick as any other way, or quicker: Kalia et al. (SoCC 2020) found it, and so do
/// simulated servers (`farcall-bench sim durable-ways`).
const SMALL_BYTES: usize = 1024;

const ALONE: Choice = Choice {
    way: Way::Write,
    why: "nothing that the NIC has acknowledged is lost here, so nothing needs to follow the WRITE",
};
const FLUSH: Choice = Choice {
    way: Way::Flush,
    why: "the NIC makes the bytes durable itself, under the WRITE's doorbell and without the server's CPU",
};
const READ: Choice = Choice {
    way: Way::WriteAndRead,
    why: "a READ brings the bytes into the persistence domain, under the WRITE's doorbell and without the server's CPU",
};
const CPU_FLUSHES: Choice = Choice {
    way: Way::WriteAndCall,
    why: "only the server's CPU can make bytes durable here, and a WRITE saves it copying so many",
};
const SMALL_CALL: Choice = Choice {
    way: Way::Call,
    why: "so few bytes travel in a call as quickly as in a WRITE, and the server's CPU makes them durable in the same round trip",
};
const SYNCING_CALL: Choice = Choice {
    way: Way::Call,
    why: "the server has to sync the file in any case, and a call that carries the bytes takes one round trip",
};

/// The quickest way that is durable on a machine, for writes of so many bytes.
#[must_use]
pub fn auto(machine: Machine, bytes: usize) -> Choice {
    if machine.domain == Domain::File {
        return SYNCING_CALL;
    }
    // From the quickest to the slowest. The last one is durable everywhere.
    let order: &[Choice] = if bytes <= SMALL_BYTES {
        &[ALONE, SMALL_CALL]
    } else {
        &[ALONE, FLUSH, READ, CPU_FLUSHES]
    };
    let durable = order.iter().find(|choice| choice.way.durability(machine).is_ok());
    *durable.unwrap_or(&SMALL_CALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the module's documentation.
    #[test]
    fn the_matrix_is_the_documented_one() {
        let cell = |way: Way, domain, flush| way.durability(Machine { domain, flush }).is_ok();
        for (way, row) in [
            (Way::Write, [false, false, false, true, false]),
            (Way::WriteThenRead, [false, true, true, true, false]),
            (Way::WriteAndRead, [false, true, true, true, false]),
            (Way::WriteAndCall, [true; 5]),
            (Way::Call, [true; 5]),
            (Way::Flush, [false, true, true, true, false]),
        ] {
            for (domain, is_durable) in Domain::ALL.into_iter().zip(row) {
                assert_eq!(
                    cell(way, domain, NativeFlush::ToController),
                    is_durable,
                    "{way}, {domain}"
                );
            }
        }
        assert!(cell(Way::Flush, Domain::AdrDdioOn, NativeFlush::ThroughCaches));
        for domain in Domain::ALL {
            assert!(!cell(Way::Flush, domain, NativeFlush::None), "{domain}");
        }
    }

    #[test]
    fn auto_takes_a_durable_way_everywhere() {
        for domain in Domain::ALL {
            for flush in [NativeFlush::None, NativeFlush::ToController, NativeFlush::ThroughCaches]
            {
                for bytes in [1, 64, 1024, 1025, 64 << 10, 1 << 20] {
                    let machine = Machine { domain, flush };
                    assert_eq!(auto(machine, bytes).way.durability(machine), Ok(()), "{machine:?}");
                }
            }
        }
    }

    #[test]
    fn auto_takes_the_quickest() {
        let way = |domain, flush, bytes| auto(Machine { domain, flush }, bytes).way;
        let none = NativeFlush::None;
        assert_eq!(way(Domain::Battery, none, 64), Way::Write);
        assert_eq!(way(Domain::AdrDdioOff, NativeFlush::ToController, 64), Way::Call);
        assert_eq!(way(Domain::AdrDdioOff, NativeFlush::ToController, 8192), Way::Flush);
        assert_eq!(way(Domain::AdrDdioOff, none, 8192), Way::WriteAndRead);
        assert_eq!(way(Domain::AdrDdioOn, none, 8192), Way::WriteAndCall);
        assert_eq!(way(Domain::AdrDdioOn, NativeFlush::ToController, 8192), Way::WriteAndCall);
        assert_eq!(way(Domain::AdrDdioOn, NativeFlush::ThroughCaches, 8192), Way::Flush);
        assert_eq!(way(Domain::File, NativeFlush::ThroughCaches, 8192), Way::Call);
    }
}
