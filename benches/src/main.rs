//! `farcall-bench`: compares calls with the limit of the machine.
#![forbid(unsafe_code)]

#[cfg(feature = "sim")]
mod hybrid_day;
#[cfg(feature = "peers")]
mod side_by_side;
#[cfg(feature = "sim")]
mod simulate;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
#[cfg(feature = "ablation")]
use farcall_bench::ablate;
use farcall_bench::compare::Contender;
use farcall_bench::echo::{self, Mode};
use farcall_bench::instructions::{self, Case, Client};
#[cfg(feature = "peers")]
use farcall_bench::peers;
use farcall_bench::{compare, idle, limit, memory, scaling, stealing};

#[derive(Parser)]
#[command(version, about = "Compares farcall's calls with the limit of the machine")]
struct Options {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Echo calls, alternating with the limit of the same two cores
    Echo(EchoOptions),
    /// The machine's own limit: a cache line bounced between two cores, and memcpy
    Limit(LimitOptions),
    /// Backends compared: the same calls, alternating with each other and with the limit
    Compare(CompareOptions),
    /// The value of each optimization of `backend=datagram`: each one disabled, and all added one after the other
    #[cfg(feature = "ablation")]
    Ablate(AblateOptions),
    /// Idle clients of one endpoint: their threads, and what they use of the processor
    Idle(IdleOptions),
    /// Calls per second and processor time per call, by threads of the server, threads that call, and their connections
    Scaling(ScalingOptions),
    /// Remote memory: its operations next to the bare verb and memcpy, alternating, and the revoke of a lend with many holders
    Memory(MemoryOptions),
    /// Short calls beside long ones on one server thread, with work stealing and without, alternating
    Stealing(StealingOptions),
    /// farcall's clients next to UCX, iceoryx2, tarpc and tonic, alternating: see `cargo xtask peers`
    #[cfg(feature = "peers")]
    Peers(side_by_side::Options),
    /// Published figures, simulated
    #[cfg(feature = "sim")]
    Sim(simulate::Options),
    /// A day on a simulated rack, over each backend and over connections that move among them
    #[cfg(feature = "sim")]
    Hybrid(hybrid_day::Options),
    /// Calls with both ends in one thread, for `cargo xtask instructions`
    #[command(hide = true)]
    Instructions(InstructionsOptions),
    /// The servers of `peers`
    #[cfg(feature = "peers")]
    #[command(hide = true)]
    ServePeer {
        #[arg(long)]
        peer: String,
        #[arg(long)]
        at: String,
        #[arg(long)]
        core: usize,
    },
    /// The server of `idle --processes`
    #[command(hide = true)]
    ServeIdle {
        #[arg(long)]
        address: String,
        #[arg(long)]
        clients: usize,
    },
    /// The server of `echo --processes`
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        address: String,
        #[arg(long)]
        core: usize,
    },
}

#[derive(Args)]
struct EchoOptions {
    /// The device under the backend: `shm`, or an RDMA device such as `rxe0`
    #[arg(long, default_value = "shm")]
    device: String,
    /// The backend under the stubs
    #[arg(long, default_value = "write_imm")]
    backend: String,
    /// Bytes of the argument, and of the result
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Calls that each client keeps outstanding
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Connections, all driven by one thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// The server is a thread of this process (the default)
    #[arg(long)]
    threads: bool,
    /// The server is a separate process
    #[arg(long, conflicts_with = "threads")]
    processes: bool,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Args)]
struct CompareOptions {
    /// The device under the backends: `shm`, an RDMA device such as `rxe0`, or `sim`, a simulated rack
    #[arg(long, default_value = "shm")]
    device: String,
    /// Some, such as `write_imm,datagram`, `all`, or `all,hybrid` for connections that move among them; ratios are to the first
    #[arg(long, default_value = "all", value_parser = parse_backends)]
    backends: Backends,
    /// Connections: one thread each on a rack, otherwise all driven by one thread
    #[arg(long, value_delimiter = ',', default_value = "1,16,256", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: Vec<u16>,
    /// Bytes of the argument, and of the result
    #[arg(long, value_delimiter = ',', default_value = "32,1024,65536", value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    sizes: Vec<u32>,
    /// Calls that each client keeps outstanding
    #[arg(long, alias = "window", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    windows: Vec<u16>,
    /// Varies clients, sizes and windows one at a time, with the first of the others, instead of measuring each combination;
    /// then also prints the ratios as Markdown
    #[arg(long, conflicts_with = "svg")]
    one_at_a_time: bool,
    #[command(flatten)]
    side: SideOptions,
}

#[derive(Args)]
struct IdleOptions {
    /// The device under the backend: `shm`, or an RDMA device such as `rxe0`
    #[arg(long, default_value = "shm")]
    device: String,
    /// The backend under the stubs
    #[arg(long, default_value = "write_imm")]
    backend: String,
    /// Clients of one endpoint
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// Further options of the address, as in window=64&slot=4096; the defaults without them
    #[arg(long, default_value = "")]
    options: String,
    /// The server is a separate process
    #[arg(long)]
    processes: bool,
    /// Seconds that they are idle
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ScalingOptions {
    /// The device under the backend: `shm`, or an RDMA device such as `rxe0`
    #[arg(long, default_value = "shm")]
    device: String,
    /// The backend under the stubs
    #[arg(long, default_value = "write_imm")]
    backend: String,
    /// Threads of the server, each with a core. By default 1, 2, 4 and so on, as far as there are cores
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Threads that call, each with a core: each of these with each of `--threads`. By default as many as the server has
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    callers: Vec<u16>,
    /// Connections of each thread that calls
    #[arg(long, value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(1..))]
    connections: Vec<u16>,
    /// Lets threads share cores if there are more of them; such rows are marked, and say little about a larger machine
    #[arg(long)]
    share_cores: bool,
    /// Bytes of the argument, and of the result
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Calls that each connection keeps outstanding
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Seconds for each row
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    seconds: Duration,
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct MemoryOptions {
    /// Seconds of each contender in each cell
    #[arg(long, default_value = "0.5", value_parser = parse_seconds)]
    seconds: Duration,
    /// The server's core and the client's
    #[arg(long, value_name = "SERVER,CLIENT", default_value = "0,1", value_parser = parse_cores)]
    cores: [usize; 2],
    /// Clients with access to the lend that is revoked
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=1000))]
    holders: u16,
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct StealingOptions {
    /// The backend under the stubs
    #[arg(long, default_value = "write_imm")]
    backend: String,
    /// Server threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=1024))]
    threads: u16,
    /// Microseconds that a long call blocks its thread
    #[arg(long, default_value_t = 1000)]
    long_us: u32,
    /// Long calls outstanding
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    long_calls: u16,
    /// Seconds of both servers together
    #[arg(long, default_value = "4", value_parser = parse_seconds)]
    seconds: Duration,
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "ablation")]
#[derive(Args)]
struct AblateOptions {
    /// The device under the backend: `shm`, an RDMA device such as `rxe0`, or `sim`, a simulated rack
    #[arg(long, default_value = "shm")]
    device: String,
    /// Connections: one thread each on a rack, otherwise all driven by one thread
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: u16,
    /// Bytes of the argument, and of the result
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    size: u32,
    /// Calls that each client keeps outstanding
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    #[command(flatten)]
    side: SideOptions,
}

#[derive(Args)]
struct SideOptions {
    /// The servers are separate processes instead of threads
    #[arg(long)]
    processes: bool,
    /// Seconds of each backend in each cell
    #[arg(long, default_value = "0.5", value_parser = parse_seconds)]
    seconds: Duration,
    /// The server's core and the client's
    #[arg(long, value_name = "SERVER,CLIENT", default_value = "0,1", value_parser = parse_cores)]
    cores: [usize; 2],
    /// The NICs of a rack: `connectx5` (the default), `connectx3` or `connect_ib`
    #[arg(long)]
    nic: Option<String>,
    /// Threads of a rack's server; 1 if not given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    server_threads: Option<u16>,
    /// Writes the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the report to this file as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Backends that were named.
#[derive(Clone)]
struct Backends(Vec<Contender>);

fn parse_backends(list: &str) -> Result<Backends, String> {
    compare::backends(list).map(Backends)
}

#[derive(Args)]
struct LimitOptions {
    /// Bytes of each buffer that memcpy copies
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Args)]
struct InstructionsOptions {
    /// Tells which cases there are: the client, the backend and the window
    #[arg(long, exclusive = true)]
    list: bool,
    /// How calls are made
    #[arg(long, default_value = "poll")]
    client: Client,
    /// The backend under the stubs
    #[arg(long, default_value = "write_imm")]
    backend: String,
    /// Calls that the client keeps outstanding
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Calls that are counted
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
}

#[derive(Args)]
struct RunOptions {
    /// Seconds in all
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    seconds: Duration,
    /// The server's core and the client's
    #[arg(long, value_name = "SERVER,CLIENT", default_value = "0,1", value_parser = parse_cores)]
    cores: [usize; 2],
    /// One line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let outcome = match Options::parse().bench {
        Bench::Echo(options) => run_echo(options),
        Bench::Limit(options) => run_limit(&options),
        Bench::Compare(options) => run_compare(options),
        Bench::Idle(options) => run_idle(options),
        Bench::Scaling(options) => run_scaling(options),
        Bench::Memory(options) => run_memory(&options),
        Bench::Stealing(options) => run_stealing(options),
        #[cfg(feature = "peers")]
        Bench::Peers(options) => side_by_side::run(options),
        #[cfg(feature = "peers")]
        Bench::ServePeer { peer, at, core } => {
            peers::serve(&peers::ServeOptions { peer, core, at })
        }
        #[cfg(feature = "ablation")]
        Bench::Ablate(options) => run_ablate(options),
        #[cfg(feature = "sim")]
        Bench::Sim(options) => simulate::run(&options),
        #[cfg(feature = "sim")]
        Bench::Hybrid(options) => hybrid_day::run(&options),
        Bench::Instructions(options) => run_instructions(options),
        Bench::Serve { address, core } => echo::serve(&address, core),
        Bench::ServeIdle { address, clients } => idle::serve(&address, clients),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("farcall-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_echo(options: EchoOptions) -> Result<()> {
    let report = echo::run(&echo::Options {
        device: options.device,
        backend: options.backend,
        size: options.size,
        window: options.window.into(),
        clients: options.clients.into(),
        mode: if options.processes { Mode::Processes } else { Mode::Threads },
        time: options.run.seconds,
        cores: options.run.cores,
    })?;
    print(&report, &report.table(), options.run.json)
}

fn run_limit(options: &LimitOptions) -> Result<()> {
    let report = limit::run(options.size, options.run.seconds, options.run.cores)?;
    print(&report, &report.table(), options.run.json)
}

fn run_compare(options: CompareOptions) -> Result<()> {
    let CompareOptions { device, backends, clients, sizes, windows, one_at_a_time, side } = options;
    side.try_files()?;
    let report = compare::run(&compare::Options {
        device,
        contenders: backends.0,
        clients: clients.into_iter().map(usize::from).collect(),
        sizes: sizes.into_iter().map(|size| size as usize).collect(),
        windows: windows.into_iter().map(usize::from).collect(),
        one_at_a_time,
        ..side.options()
    })?;
    let table = match one_at_a_time {
        true => format!("{}\n{}", report.table(), report.ratios()),
        false => report.table(),
    };
    side.write(&report, &table, || compare::svg(&report))?;
    ends_well(report.failures())
}

fn run_idle(options: IdleOptions) -> Result<()> {
    let (clients, time) = (options.clients.into(), options.seconds);
    let report = idle::run(&idle::Options {
        device: options.device,
        backend: options.backend,
        address_options: options.options,
        clients,
        time,
        processes: options.processes,
    })?;
    print(&report, &report.table(), options.json)
}

fn run_scaling(options: ScalingOptions) -> Result<()> {
    let numbers = |given: Vec<u16>| given.into_iter().map(usize::from).collect();
    let threads = match options.threads {
        none if none.is_empty() => scaling::default_threads(),
        threads => numbers(threads),
    };
    let report = scaling::run(&scaling::Options {
        device: options.device,
        backend: options.backend,
        threads,
        callers: numbers(options.callers),
        connections: numbers(options.connections),
        share_cores: options.share_cores,
        size: options.size,
        window: options.window.into(),
        time: options.seconds,
    })?;
    print(&report, &report.table(), options.json)
}

fn run_memory(options: &MemoryOptions) -> Result<()> {
    let MemoryOptions { seconds: time, cores, holders, json } = *options;
    let report = memory::run(&memory::Options { time, cores, holders: holders.into() })?;
    print(&report, &report.table(), json)
}

fn run_stealing(options: StealingOptions) -> Result<()> {
    let report = stealing::run(&stealing::Options {
        backend: options.backend,
        threads: options.threads.into(),
        long: Duration::from_micros(options.long_us.into()),
        long_calls: options.long_calls.into(),
        time: options.seconds,
    })?;
    print(&report, &report.table(), options.json)
}

#[cfg(feature = "ablation")]
fn run_ablate(options: AblateOptions) -> Result<()> {
    let AblateOptions { device, clients, size, window, side } = options;
    side.try_files()?;
    let report = ablate::run(compare::Options {
        device,
        clients: vec![clients.into()],
        sizes: vec![size as usize],
        windows: vec![window.into()],
        ..side.options()
    })?;
    side.write(&report, &report.table(), || report.svg())?;
    ends_well(report.failures())
}

fn run_instructions(options: InstructionsOptions) -> Result<()> {
    let InstructionsOptions { list, client, backend, window, calls } = options;
    if list {
        for Case { client, backend, window } in instructions::cases() {
            println!("{} {backend} {window}", client.name());
        }
        return Ok(());
    }
    instructions::run(&Case { client, backend, window: window.into() }, calls)
}

fn ends_well(failures: usize) -> Result<()> {
    match failures {
        0 => Ok(()),
        failures => bail!("{failures} of the runs failed; the table says why"),
    }
}

impl SideOptions {
    /// Before the measurement, which takes its time.
    fn try_files(&self) -> Result<()> {
        [&self.json, &self.svg].into_iter().flatten().try_for_each(|file| write(file, ""))
    }

    fn options(&self) -> compare::Options {
        compare::Options {
            device: String::new(),
            contenders: Vec::new(),
            clients: Vec::new(),
            sizes: Vec::new(),
            windows: Vec::new(),
            one_at_a_time: false,
            mode: if self.processes { Mode::Processes } else { Mode::Threads },
            time: self.seconds,
            cores: self.cores,
            rack: compare::RackOptions {
                nic: self.nic.clone(),
                server_threads: self.server_threads.map(usize::from),
            },
        }
    }

    fn write(
        &self,
        report: &impl serde::Serialize,
        table: &str,
        svg: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        print!("{table}");
        if let Some(file) = &self.json {
            write(file, &serde_json::to_string_pretty(report)?)?;
        }
        if let Some(file) = &self.svg {
            write(file, &svg()?)?;
        }
        Ok(())
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn print(report: &impl serde::Serialize, table: &str, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{table}");
    }
    Ok(())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn parse_cores(text: &str) -> Result<[usize; 2], String> {
    let cores: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    match cores.as_deref() {
        Ok(&[server, client]) if server != client => Ok([server, client]),
        Ok(&[_, _]) => Err("the server and the client need a core each".into()),
        _ => Err("expected two core numbers, such as 0,1".into()),
    }
}
