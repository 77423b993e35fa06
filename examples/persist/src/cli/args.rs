//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farcall_persist::Level;

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
    /// Serve a log until SIGINT or SIGTERM.
    Serve(ServeArgs),
    /// Append a record, and print its lsn and the level that was reached.
    Append(AppendArgs),
    /// Write the payload of a record to standard output.
    Read(ReadArgs),
    /// Check a log that is not open: what is whole, torn, damaged.
    Verify(DirArgs),
    /// Write all records of a log to standard output: lsn, kind, transaction, epoch, length, payload.
    Dump(DirArgs),
    /// Give up records that are damaged, so that a log can be opened again.
    Repair(DirArgs),
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
    /// Where the record is, as `append` prints it.
    pub(crate) lsn: u64,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
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
