//! Comparison of backends: the same calls, alternating on the same two cores, or each on its own simulated rack.

mod by_turns;
#[cfg(feature = "sim")]
mod on_rack;
mod picture;
mod ratios;
pub mod report;

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farcall_transports::hybrid::NAME as HYBRID;
use farcall_transports::registry;
use farcall_verbs::Device;

use self::report::{Cell, CompareReport};
use crate::echo::Mode;
use crate::progress::Progress;

#[cfg(feature = "sim")]
pub use self::on_rack::costs as nic;
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
    pub windows: Vec<usize>,
    /// Varies clients, sizes and windows one at a time, with the first of the others; otherwise measures each combination.
    pub one_at_a_time: bool,
    /// Where the servers run. Not for racks.
    pub mode: Mode,
    /// The time of each backend in each cell. Not for racks.
    pub time: Duration,
    /// The server's core, then the clients'. Not for racks.
    pub cores: [usize; 2],
    /// Only for racks.
    pub rack: RackOptions,
}

/// A backend, possibly without some optimizations, or connections that move among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// The name in tables.
    pub name: String,
    /// What its addresses call the backend.
    pub backend: &'static str,
    /// Options of its addresses, each after a `&`.
    pub options: String,
}

impl From<&'static str> for Contender {
    fn from(backend: &'static str) -> Contender {
        Contender { name: backend.to_owned(), backend, options: String::new() }
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

/// Parses a list of backends, such as `write_imm,datagram` or `all,hybrid`.
pub fn backends(list: &str) -> Result<Vec<Contender>, String> {
    let mut contenders: Vec<Contender> = Vec::new();
    for name in list.split(',').map(str::trim) {
        match registry::find(name) {
            Some(backend) => contenders.push(backend.name().into()),
            None if name == HYBRID => contenders.push(HYBRID.into()),
            None if name == "all" => {
                contenders.extend(registry::ALL.iter().map(|backend| backend.name().into()));
            }
            None => {
                let known = registry::names().join(", ");
                return Err(format!(
                    "no backend is called `{name}`; known are: {known}, `all` for each of them, and `{HYBRID}`"
                ));
            }
        }
    }
    Ok(contenders)
}

/// Runs the comparison. The calling thread runs the clients, on their core.
pub fn run(options: &Options) -> Result<CompareReport> {
    ensure!(!options.contenders.is_empty(), "nothing to compare; `--backends all` is each of them");
    let mut cells = Cells::of(options)?;
    let mut report = CompareReport::new(options);
    let workloads = workloads(options);
    let mut progress = Progress::new("compare", workloads.len() as u64);
    for workload in workloads {
        progress.set(report.cells.len() as u64, || workload.to_string());
        let cell = match workload.too_much() {
            Some(why) => Cell::refused(workload, &options.contenders, &why),
            None => cells.measure(options, workload)?,
        };
        report.cells.push(cell);
    }
    progress.finish();
    Ok(report)
}

/// What all backends do in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Workload {
    clients: usize,
    size: usize,
    window: usize,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { clients, size, window } = self;
        write!(f, "{clients} clients, {size} B, window {window}")
    }
}

/// The workloads of all cells: all combinations, each number of clients at the first size and window, and so on; or the first,
/// and then what differs from it in one respect.
fn workloads(options: &Options) -> Vec<Workload> {
    let Options { clients, sizes, windows, .. } = options;
    let (Some(&first_size), Some(&first_window)) = (sizes.first(), windows.first()) else {
        return Vec::new();
    };
    let at = |size, window| clients.iter().map(move |&clients| Workload { clients, size, window });
    if !options.one_at_a_time {
        let at_size = |&size| windows.iter().flat_map(move |&window| at(size, window));
        return sizes.iter().flat_map(at_size).collect();
    }
    let mut all: Vec<_> = at(first_size, first_window).collect();
    let Some(&first) = all.first() else { return all };
    all.extend(sizes.iter().skip(1).map(|&size| Workload { size, ..first }));
    all.extend(windows.iter().skip(1).map(|&window| Workload { window, ..first }));
    all
}

impl Workload {
    fn too_much(&self) -> Option<String> {
        let Workload { clients, size, window } = *self;
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
    fn slots(&self) -> usize {
        self.window.max((SLOTS / self.clients).min(64))
    }
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

    fn measure(&mut self, options: &Options, workload: Workload) -> Result<Cell> {
        match self {
            Cells::ByTurns => {
                by_turns::measure(options, workload).with_context(|| workload.to_string())
            }
            #[cfg(feature = "sim")]
            Cells::OnRack(rack) => Ok(rack.measure(options, workload)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_backends_are_parsed_and_unknown_names_are_reported() {
        let all = backends("all").unwrap();
        assert!(all.iter().map(|one| one.backend).eq(registry::names()));
        assert_eq!(backends("datagram, write_imm").unwrap()[1].name, "write_imm");
        let and_hybrid = backends("all,hybrid").unwrap();
        assert_eq!(and_hybrid.len(), all.len() + 1);
        assert_eq!(and_hybrid[all.len()].name, "hybrid");
        let error = backends("datagram,pigeon").unwrap_err();
        assert!(error.contains("`pigeon`") && error.contains("write_imm, datagram"), "{error}");
    }

    fn workload(clients: usize, size: usize, window: usize) -> Workload {
        Workload { clients, size, window }
    }

    #[test]
    fn more_memory_than_a_machine_has_is_refused() {
        assert_eq!(workload(256, 65_536, 1).too_much(), None);
        let why = workload(256, 65_536, 64).too_much().unwrap();
        assert!(why.contains("1024 MiB"), "{why}");
        assert!(workload(usize::MAX, 2, 1).too_much().is_some());
    }

    #[test]
    fn many_clients_get_few_slots_each_but_at_least_a_window() {
        let slots = |window, clients| workload(clients, 32, window).slots();
        assert_eq!(slots(1, 1), 64);
        assert_eq!((slots(1, 256), slots(8, 256)), (4, 8));
        assert_eq!(slots(1, 5000), 1);
    }

    #[test]
    fn workloads_are_all_combinations_or_differ_from_the_first_in_one_respect() {
        let options = |one_at_a_time| Options {
            device: "shm".into(),
            contenders: Vec::new(),
            clients: vec![1, 4],
            sizes: vec![32, 64],
            windows: vec![1, 8],
            one_at_a_time,
            mode: Mode::Threads,
            time: Duration::ZERO,
            cores: [0, 1],
            rack: RackOptions::default(),
        };
        let all = workloads(&options(false));
        assert_eq!(all.len(), 8);
        assert_eq!(all[..3], [workload(1, 32, 1), workload(4, 32, 1), workload(1, 32, 8)]);
        assert_eq!(
            workloads(&options(true)),
            [workload(1, 32, 1), workload(4, 32, 1), workload(1, 64, 1), workload(1, 32, 8)]
        );
    }
}
