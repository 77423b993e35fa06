//! The day: phases of load.

/// Clients that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Bytes of each request, and of its answer.
    pub bytes: usize,
    /// Calls that each client has under way at a time.
    pub outstanding: usize,
    /// How long the handler of each call runs.
    pub handler_ns: u64,
}

/// A load that does not change.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What is particular about it.
    pub name: &'static str,
    /// Clients that call; the others are connected.
    pub clients: usize,
    /// The kinds of clients, which those are in turn.
    pub kinds: Vec<Kind>,
    /// The part of packets that the network loses.
    pub loss: f64,
}

/// Phases one after the other.
#[derive(Clone, Debug)]
pub struct Day {
    /// In their order.
    pub phases: Vec<Phase>,
    /// How long each takes.
    pub phase_ns: u64,
}

impl Day {
    /// Clients of the phase that has most.
    pub fn most_clients(&self) -> usize {
        self.phases.iter().map(|phase| phase.clients).max().unwrap_or(0)
    }

    /// Most calls that a client has under way.
    pub fn most_outstanding(&self) -> usize {
        let kinds = self.phases.iter().flat_map(|phase| &phase.kinds);
        kinds.map(|kind| kind.outstanding).max().unwrap_or(1)
    }
}

/// From few clients to many and back, short messages and long, handlers that are quick and slow, with and without loss, and five kinds of clients at
/// once. `crowd`: clients of the fullest phase.
pub fn day(phase_ns: u64, crowd: usize) -> Day {
    let kind = |bytes, outstanding, handler_ns| Kind { bytes, outstanding, handler_ns };
    let phase =
        |name, clients, kinds: &[Kind]| Phase { name, clients, kinds: kinds.to_vec(), loss: 0.0 };
    let small = kind(32, 8, 100);
    let mixed = [
        small,
        kind(32, 1, 500),
        kind(2 << 10, 4, 1_000),
        kind(16 << 10, 2, 2_000),
        kind(64 << 10, 1, 10_000),
    ];
    let phases = vec![
        phase("few clients", 4, &[small]),
        phase("40 clients", 40, &[small]),
        phase("many clients", 400, &[small]),
        phase("2 KiB", 40, &[kind(2 << 10, 8, 100)]),
        phase("64 KiB", 8, &[kind(64 << 10, 2, 1_000)]),
        phase("a crowd", crowd, &[kind(32, 2, 100)]),
        phase("handlers of 5 us", 100, &[kind(32, 4, 5_000)]),
        phase("handlers of 500 us", 16, &[kind(32, 1, 500_000)]),
        Phase { loss: 0.001, ..phase("0.1 % of packets lost", 40, &[small]) },
        phase("five kinds", 100, &mixed),
        phase("few clients again", 4, &[small]),
    ];
    Day { phases, phase_ns }
}
