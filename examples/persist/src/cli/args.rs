//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farcall_persist::Level;
use farcall_persist::ways::{Domain, NativeFlush};

/// The default address of servers and clients.
const DEFAULT_ADDRESS: &str = "shm://farcall-persist";

/// A log whose acknowledged writes survive a killed process, a power cut and a torn disk.
///
/// Exit status: 0 nothing is lost or damaged, 1 something is, 2 an error.
#[derive(Debug, Parser)]
#[command(version, name = "farcall-persist")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Kill writers again and again, tear and damage their log, check every acknowledged write, print what each way costs here.
    Demo(DemoArgs),
    /// Serve a log, and ranges that are written together or not at all, until SIGINT or SIGTERM.
    Serve(ServeArgs),
    /// Append a record, and print its lsn and the level that was reached.
    Append(AppendArgs),
    /// Write the payload of a record, or bytes of the ranges, to standard output.
    Read(ReadArgs),
    /// Write bytes of the ranges, and print the level that was reached.
    Write(WriteArgs),
    /// Write bytes at several places of the ranges, all or none, and print the level that was reached.
    Commit(CommitArgs),
    /// Make a checkpoint of the ranges: recovery begins there, and the log before it is freed.
    Checkpoint(ServerArgs),
    /// Check a log that is not open: what is whole, torn, damaged.
    Verify(DirArgs),
    /// Write all records of a log to standard output: lsn, kind, transaction, epoch, length, payload.
    Dump(DirArgs),
    /// Give up records that are damaged, so that a log can be opened again.
    Repair(DirArgs),
    /// Say which ways over the network to write to memory here are durable, why the others are not, and which one is the quickest.
    Check(CheckArgs),
    /// Measure what appending costs, next to the disk's own limit.
    Bench(BenchArgs),
    /// A writer process of `demo`.
    #[command(hide = true)]
    DemoWriter(WriterArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    pub(crate) listen: String,

    /// The directory of the log, which is made if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// The length of the ranges, in bytes, when they are made. They are in the directory `ranges` there.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) ranges_bytes: usize,

    /// How many threads serve clients.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where the server is.
    #[arg(long, visible_alias = "connect", value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    pub(crate) address: String,

    /// The timeout of one answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct AppendArgs {
    /// The payload, or - for standard input.
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: String,

    /// How safe the record must be before the answer.
    #[arg(long, value_enum, default_value = "persistent")]
    pub(crate) level: LevelArg,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Where the record is, as `append` prints it; or, with `--length`, where the bytes are.
    pub(crate) at: u64,

    /// Read so many bytes of the ranges.
    #[arg(long, value_name = "BYTES")]
    pub(crate) length: Option<u64>,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    /// Where, in bytes from the begin of the ranges.
    pub(crate) at: u64,

    /// What, or - for standard input.
    #[arg(allow_hyphen_values = true)]
    pub(crate) payload: String,

    /// How safe it must be before the answer.
    #[arg(long, value_enum, default_value = "persistent")]
    pub(crate) level: LevelArg,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// Where and what, such as 0=90 8=10.
    #[arg(required = true, value_name = "AT=PAYLOAD", value_parser = parse_range_write)]
    pub(crate) writes: Vec<(u64, String)>,

    /// How safe it must be before the answer.
    #[arg(long, value_enum, default_value = "persistent")]
    pub(crate) level: LevelArg,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

fn parse_range_write(text: &str) -> Result<(u64, String), String> {
    let (at, payload) = text.split_once('=').ok_or("AT=PAYLOAD, such as 0=90")?;
    let at =
        at.parse().map_err(|_| format!("`{at}` is no position; say AT=PAYLOAD, such as 0=90"))?;
    Ok((at, payload.to_owned()))
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Where the data are.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    /// What survives a power cut, if you know better than the system says.
    #[arg(long, value_enum)]
    pub(crate) domain: Option<DomainArg>,

    /// What the FLUSH of the NIC does, if it has one.
    #[arg(long, value_enum, default_value = "none")]
    pub(crate) flush: FlushArg,

    /// The bytes of a write, for the choice of the quickest way.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) size: usize,
}

/// A persistence domain on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DomainArg {
    /// Persistent memory and its controllers; the NIC writes into caches that lose their lines.
    AdrDdioOn,
    /// Persistent memory and its controllers; the NIC writes past the caches.
    AdrDdioOff,
    /// Caches, too, are written back.
    Eadr,
    /// A battery keeps the NIC running, too.
    Battery,
    /// What fdatasync has ended for.
    File,
}

impl From<DomainArg> for Domain {
    fn from(domain: DomainArg) -> Self {
        match domain {
            DomainArg::AdrDdioOn => Self::AdrDdioOn,
            DomainArg::AdrDdioOff => Self::AdrDdioOff,
            DomainArg::Eadr => Self::Eadr,
            DomainArg::Battery => Self::Battery,
            DomainArg::File => Self::File,
        }
    }
}

/// What a NIC's FLUSH does, on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FlushArg {
    /// There is none.
    None,
    /// It empties NIC and PCIe, and not the caches.
    ToController,
    /// It reaches persistence through the caches.
    ThroughCaches,
}

impl From<FlushArg> for NativeFlush {
    fn from(flush: FlushArg) -> Self {
        match flush {
            FlushArg::None => Self::None,
            FlushArg::ToController => Self::ToController,
            FlushArg::ThroughCaches => Self::ThroughCaches,
        }
    }
}

/// A level on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LevelArg {
    /// In the server's memory.
    Received,
    /// With the operating system: survives a killed server.
    Visible,
    /// Synced: survives a power cut.
    Persistent,
}

impl From<LevelArg> for Level {
    fn from(level: LevelArg) -> Self {
        match level {
            LevelArg::Received => Self::Received,
            LevelArg::Visible => Self::Visible,
            LevelArg::Persistent => Self::Persistent,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DirArgs {
    /// The directory of the log.
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to make a directory for the log, on the disk to test [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// How long writers are killed, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,

    /// Do not measure what each way costs, which takes some 12 s more.
    #[arg(long)]
    pub(crate) no_table: bool,

    /// Where the random numbers begin [default: another each time].
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where to make a directory for the log, on the disk to measure [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// How long each way is measured, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,

    /// The length of each payload, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) size: usize,

    /// How many writers there are, each waiting for its record: one row for each number.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    pub(crate) writers: Vec<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct WriterArgs {
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) round: u32,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "a number of seconds, such as 20 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero() && *duration < Duration::from_secs(86_400))
        .ok_or_else(|| "between 0 and a day".to_owned())
}
