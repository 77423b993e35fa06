//! Comparison of backends: the same calls, alternating on the same two cores, or each on its own simulated rack.

mod by_turns;
#[cfg(feature = "sim")]
mod on_rack;
mod picture;
pub mod report;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farcall_transports::{Backend, registry};
use farcall_verbs::Device;

use self::report::{Cell, CompareReport};
use crate::echo::Mode;
use crate::progress::Progress;

pub use self::picture::svg;

/// The name of the simulated device.
pub const SIMULATED: &str = "sim";

/// The most bytes of outstanding calls in a cell: twice that must fit the memory of a small machine, as both
/// client and server hold them.
const MOST_OUTSTANDING_BYTES: usize = 256 << 20;

/// Slots of all clients of a cell together, unless their windows need more.
const SLOTS: usize = 1024;

/// What to compare.
#[derive(Debug, Clone)]
pub struct Options {
    /// `shm`, an RDMA device, or [`SIMULATED`].
    pub device: String,
    /// The configurations to compare; ratios are relative to the first.
    pub contenders: Vec<Contender>,
    /// Connections.
    pub clients: Vec<usize>,
    /// Bytes of the argument, and of the result.
    pub sizes: Vec<usize>,
    /// Calls that each client keeps outstanding.
    pub window: usize,
    /// Where the servers run. Not for racks.
    pub mode: Mode,
    /// The time of each backend in each cell. Not for racks.
    pub time: Duration,
    /// The server's core, then the clients'. Not for racks.
    pub cores: [usize; 2],
    /// Only for racks.
    pub rack: RackOptions,
}

/// A backend, possibly without some optimizations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// The name in tables.
    pub name: String,
    /// The backend.
    pub backend: &'static dyn Backend,
    /// Options of its addresses, each after a `&`.
    pub options: String,
}

impl From<&'static dyn Backend> for Contender {
    fn from(backend: &'static dyn Backend) -> Contender {
        Contender { name: backend.name().to_owned(), backend, options: String::new() }
    }
}

impl Contender {
    /// The address options for messages of that size, apart from the backend and the window.
    fn address_options(&self, size: usize) -> String {
        let max_message = (2 * size).max(64 << 10);
        format!("max_message={max_message}{}", self.options)
    }
}

/// The configuration of the simulated rack.
#[derive(Debug, Clone, Default)]
pub struct RackOptions {
    /// The generation of the NICs: `connectx5` by default.
    pub nic: Option<String>,
    /// Threads of the server: 1 by default, as on the other devices.
    pub server_threads: Option<usize>,
}

/// Parses a list of backends: `all`, or names such as `write_imm,datagram`.
pub fn backends(list: &str) -> Result<Vec<Contender>, String> {
    if list == "all" {
        return Ok(registry::ALL.iter().copied().map(Contender::from).collect());
    }
    let of_name = |name: &str| {
        registry::find(name.trim()).map(Contender::from).ok_or_else(|| {
            let known = registry::names().join(", ");
            format!("no backend is called `{name}`; known are: {known}, and `all` for each of them")
        })
    };
    list.split(',').map(of_name).collect()
}

/// Runs the comparison. The calling thread runs the clients, on their core.
pub fn run(options: &Options) -> Result<CompareReport> {
    ensure!(!options.contenders.is_empty(), "nothing to compare; `--backends all` is each of them");
    let mut cells = Cells::of(options)?;
    let mut report = CompareReport::new(options);
    let steps = options.sizes.len() * options.clients.len();
    let mut progress = Progress::new("compare", steps as u64);
    for (size, clients) in points(options) {
        progress.set(report.cells.len() as u64, || format!("{clients} clients, {size} B"));
        let cell = match too_much(clients, size, options.window) {
            Some(why) => Cell::refused(clients, size, &options.contenders, &why),
            None => cells.measure(options, clients, size)?,
        };
        report.cells.push(cell);
    }
    progress.finish();
    Ok(report)
}

/// All combinations: each number of clients at the first size, and so on.
fn points(options: &Options) -> impl Iterator<Item = (usize, usize)> + '_ {
    let at_size = |size| options.clients.iter().map(move |clients| (size, *clients));
    options.sizes.iter().copied().flat_map(at_size)
}

fn too_much(clients: usize, size: usize, window: usize) -> Option<String> {
    let bytes = clients.saturating_mul(size).saturating_mul(window);
    (bytes > MOST_OUTSTANDING_BYTES).then(|| {
        format!(
            "{clients} clients with {window} calls of {size} B each have {} MiB in flight, of which {} are allowed: \
             take fewer clients, a smaller size or a smaller window",
            bytes >> 20,
            MOST_OUTSTANDING_BYTES >> 20
        )
    })
}

/// Slots of each connection: for the window, and more if there are few clients.
fn slots(window: usize, clients: usize) -> usize {
    window.max((SLOTS / clients).min(64))
}

/// The measurement of cells.
enum Cells {
    ByTurns,
    #[cfg(feature = "sim")]
    OnRack(Box<on_rack::OnRack>),
}

impl Cells {
    fn of(options: &Options) -> Result<Cells> {
        let device = options.device.as_str();
        if device == SIMULATED {
            ensure!(options.mode == Mode::Threads, "on a simulated rack there are no processes");
            #[cfg(feature = "sim")]
            return Ok(Cells::OnRack(Box::new(on_rack::OnRack::new(&options.rack)?)));
            #[cfg(not(feature = "sim"))]
            bail!("this program has no simulated rack; build it with `--features sim`");
        }
        let RackOptions { nic, server_threads } = &options.rack;
        ensure!(
            nic.is_none() && server_threads.is_none(),
            "`--nic` and `--server-threads` are of a simulated rack: `--device {SIMULATED}`"
        );
        if device != "shm" && Device::list().iter().all(|known| known.name != device) {
            let known: Vec<_> = Device::list().into_iter().map(|known| known.name).collect();
            let known = known.join(", ");
            let why = match Device::rdma_support() {
                Ok(()) => String::new(),
                Err(why) => format!("; for RDMA devices: {why}"),
            };
            bail!("no device is called `{device}`; there are: {known}, {SIMULATED}{why}");
        }
        Ok(Cells::ByTurns)
    }

    fn measure(&mut self, options: &Options, clients: usize, size: usize) -> Result<Cell> {
        match self {
            Cells::ByTurns => by_turns::measure(options, clients, size)
                .with_context(|| format!("{clients} clients, {size} B")),
            #[cfg(feature = "sim")]
            Cells::OnRack(rack) => Ok(rack.measure(options, clients, size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_backends_are_parsed_and_unknown_names_are_reported() {
        let all = backends("all").unwrap();
        assert!(all.iter().map(|one| one.backend).eq(registry::ALL.iter().copied()));
        assert_eq!(backends("datagram, write_imm").unwrap()[1].name, "write_imm");
        let error = backends("datagram,pigeon").unwrap_err();
        assert!(error.contains("`pigeon`") && error.contains("write_imm, datagram"), "{error}");
    }

    #[test]
    fn more_memory_than_a_machine_has_is_refused() {
        assert_eq!(too_much(256, 65_536, 1), None);
        let why = too_much(256, 65_536, 64).unwrap();
        assert!(why.contains("1024 MiB"), "{why}");
        assert!(too_much(usize::MAX, 2, 1).is_some());
    }

    #[test]
    fn many_clients_get_few_slots_each_but_at_least_a_window() {
        assert_eq!(slots(1, 1), 64);
        assert_eq!((slots(1, 256), slots(8, 256)), (4, 8));
        assert_eq!(slots(1, 5000), 1);
    }
}
