//! The command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use farcall_replication::client::Client;
use farcall_replication::level::Level;
use farcall_replication::membership::{Membership, RemoteMembership};

/// Where the membership service is, if nothing else is said.
const MEMBERSHIP: &str = "shm://farcall-replication";

/// A replicated log and a key-value store on it, over one-sided writes into the logs of backups.
///
/// Exit status: 0 nothing is lost, 1 something is lost or was applied twice, 2 an error.
#[derive(Debug, Parser)]
#[command(version, name = "farcall-replication")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start three replicas as processes, kill and stop them one after the other, and check every acknowledged write.
    Demo(DemoArgs),
    /// Serve the membership of a group until SIGINT or SIGTERM.
    Configuration(ConfigurationArgs),
    /// Run a replica until SIGINT or SIGTERM. The first one founds the group; others join.
    Serve(ServeArgs),
    /// Show the members, who leads, and how far each is.
    Status(GroupArgs),
    /// Give a key a value.
    Put(PutArgs),
    /// Write the value of a key to standard output.
    Get(GetArgs),
    /// Append an entry to the log, and print its index.
    Append(AppendArgs),
    /// Print the entries of the log from an index on.
    Tail(TailArgs),
    /// Show what is in the directory of a replica that has ended.
    Inspect(InspectArgs),
    /// Measure writes at each level, on replicas of this machine.
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to make a directory for the replicas' logs [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// How long it runs between one fault and the next, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = parse_seconds)]
    pub(crate) pause: Duration,

    #[command(flatten)]
    pub(crate) timing: TimingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigurationArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = MEMBERSHIP)]
    pub(crate) listen: String,

    /// Where to keep the configurations, so that they survive a crash.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TimingArgs {
    /// A member that is silent for so long is excluded, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = parse_seconds)]
    pub(crate) detect: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where peers and clients reach this replica.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: String,

    #[command(flatten)]
    pub(crate) group: GroupArgs,

    /// Sync all records below this directory. A replica that founds a group begins with the state that is there.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Lend memory of this RDMA device, for addresses that begin with rdma://.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,

    #[command(flatten)]
    pub(crate) timing: TimingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// Where the membership service is.
    #[arg(long, value_name = "ADDRESS", default_value = MEMBERSHIP)]
    pub(crate) membership: String,

    /// How long an operation may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,
}

impl GroupArgs {
    pub(crate) fn membership(&self) -> Arc<dyn Membership> {
        let timeout = self.timeout.min(Duration::from_secs(2));
        Arc::new(RemoteMembership::at(&self.membership, timeout))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.membership()).timeout(self.timeout)
    }
}

/// How safe a write must be.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LevelArgs {
    /// How safe the write must be before the answer.
    #[arg(long, value_enum, default_value = "visible")]
    level: LevelName,

    /// At so many replicas, with the levels replicated and replicated-persistent.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    replicas: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LevelName {
    /// In the memory of the primary.
    Received,
    /// In the memory of all members.
    Visible,
    /// Visible, and synced by one replica.
    Persistent,
    /// In the memory of so many replicas.
    Replicated,
    /// Visible, and synced by so many replicas.
    ReplicatedPersistent,
}

impl LevelArgs {
    pub(crate) fn level(self) -> Level {
        match self.level {
            LevelName::Received => Level::Received,
            LevelName::Visible => Level::Visible,
            LevelName::Persistent => Level::Persistent,
            LevelName::Replicated => Level::Replicated(self.replicas),
            LevelName::ReplicatedPersistent => Level::ReplicatedPersistent(self.replicas),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key.
    pub(crate) key: String,

    /// Its value.
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) level: LevelArgs,

    #[command(flatten)]
    pub(crate) group: GroupArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The key.
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) group: GroupArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AppendArgs {
    /// The entry.
    #[arg(allow_hyphen_values = true)]
    pub(crate) entry: String,

    #[command(flatten)]
    pub(crate) level: LevelArgs,

    #[command(flatten)]
    pub(crate) group: GroupArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The index of the first entry.
    #[arg(default_value_t = 0)]
    pub(crate) from: u64,

    #[command(flatten)]
    pub(crate) group: GroupArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The directory.
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where to make a directory for the replicas' logs [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// How long each level is measured, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,

    /// The length of each value, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub(crate) size: usize,

    /// How many clients there are, each waiting for its write.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    pub(crate) clients: Vec<usize>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "a number of seconds, such as 20 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero() && *duration < Duration::from_secs(86_400))
        .ok_or_else(|| "between 0 and a day".to_owned())
}
