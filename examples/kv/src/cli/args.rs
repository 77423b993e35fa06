//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use farcall::{Address, AddressBuilder};
use farcall_kv::ycsb::records::FieldLengthDistribution;
use farcall_kv::ycsb::workload::Workload;

/// The default address of servers and clients.
pub(crate) const DEFAULT_ADDRESS: &str = "shm://farcall-kv";

/// A key-value store over farcall.
///
/// Keys and values are any byte strings of 1 byte to 16 MiB.
///
/// Exit status: 0 done or found, 1 not found, 2 an error, 3 a wrong answer (ycsb, demo).
#[derive(Debug, Parser)]
#[command(version, name = "farcall-kv")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a store, in memory, until SIGINT or SIGTERM.
    Serve(ServeArgs),
    /// Write the value of a key to standard output.
    Get(GetArgs),
    /// Set the value of a key.
    Put(PutArgs),
    /// Delete a key.
    Del(DelArgs),
    /// List entries in the order of their keys, as KEY<TAB>VALUE.
    Scan(ScanArgs),
    /// Put every line of a file, KEY<TAB>VALUE, with \t \n \r \\ and \xHH as escapes.
    Load(LoadArgs),
    /// Write every entry to standard output, as `load` reads it.
    Dump(DumpArgs),
    /// Run a YCSB core workload, each answer checked.
    Ycsb(YcsbArgs),
    /// Serve, load a text, run YCSB B from client processes, check every answer, print a table.
    Demo(DemoArgs),
    /// A client process of `demo`.
    #[command(hide = true)]
    DemoClient,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS)]
    pub(crate) listen: String,

    /// How many threads serve clients, each polling its own.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,

    /// The most bytes of keys and values together, such as 512M or 4G [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) memory_limit: Option<u64>,

    /// Print counters and latencies in Prometheus' text format at the end and on SIGUSR1.
    #[arg(long)]
    pub(crate) metrics: bool,

    /// Exit at the end of standard input, which the process that started this server holds open.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
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
pub(crate) struct GetArgs {
    /// The key, or - for standard input.
    pub(crate) key: OsString,
    /// Keys are given, and values written, in hexadecimal.
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key, or - for standard input.
    pub(crate) key: OsString,
    /// The value, or - for standard input.
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: OsString,
    /// Key and value are given in hexadecimal.
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DelArgs {
    /// The key, or - for standard input.
    pub(crate) key: OsString,
    /// The key is given in hexadecimal.
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// The first key [default: the first there is].
    pub(crate) from: Option<OsString>,
    /// End before this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Only keys with this prefix.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// The most entries to list.
    #[arg(long, short = 'n')]
    pub(crate) limit: Option<u64>,
    /// Keys are given, and entries written, in hexadecimal.
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The file, or - for standard input.
    pub(crate) file: PathBuf,
    /// Report bad lines and go on, instead of stopping at the first.
    #[arg(long)]
    pub(crate) skip_bad: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct YcsbArgs {
    /// The mix of operations.
    #[arg(long, value_enum, ignore_case = true)]
    pub(crate) workload: Workload,
    /// How many records are loaded first.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    /// How many operations all clients run together.
    #[arg(long)]
    pub(crate) operations: Option<u64>,
    /// How long they run at most [default: 10, or until the operations are done].
    #[arg(long, value_parser = parse_seconds)]
    pub(crate) seconds: Option<Duration>,
    /// How many clients, each a thread with its own connection.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) clients: u32,
    /// How many operations each has in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) window: u32,
    /// Fields of a record.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) fields: u32,
    /// Bytes of a field, at most. With a length below 32 bytes a record is 32 bytes, to be checked.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(crate) field_length: u32,
    /// How the lengths of fields vary.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) field_length_distribution: FieldLengthDistribution,
    /// Chooses the operations and records; the same again with the same seed.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// When the server is gone, redial it for this long and continue; an empty store is then loaded again
    /// [default: end with an error].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) ride_out: Option<Duration>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The text to load, line number to line [default: /usr/share/dict/words, or this program's own source].
    pub(crate) file: Option<PathBuf>,
    /// How many client processes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) clients: u32,
    /// How long they run.
    #[arg(long, value_parser = parse_seconds)]
    pub(crate) seconds: Option<Duration>,
    /// How many operations each client has in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) window: u32,
    /// How many threads the server has.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,
    /// Everything in about two seconds, for a quick check.
    #[arg(long)]
    pub(crate) small: bool,
    /// How messages travel: `write_imm`, `tcp` or another backend.
    #[arg(long, default_value = "write_imm", value_parser = parse_backend)]
    pub(crate) backend: String,
}

/// The name, if an address takes it.
fn parse_backend(name: &str) -> Result<String, String> {
    let takes_it = |builder: AddressBuilder| builder.backend(name).build();
    match takes_it(Address::shm("name")) {
        // A backend without a device has other addresses.
        Err(why) if takes_it(Address::tcp("host", 0)).is_err() => Err(why.to_string()),
        _ => Ok(name.to_owned()),
    }
}

/// The longest accepted time: a day.
const MAX_SECONDS: f64 = 86_400.0;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(seconds > 0.0 && seconds <= MAX_SECONDS) {
        return Err(format!("more than 0 and at most {MAX_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes, as 512M".to_owned())?;
    number.checked_mul(1 << shift).filter(|&n| n > 0).ok_or_else(|| "out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn backends_of_all_kinds_of_addresses_are_known() {
        for name in ["write_imm", "send_recv", "tcp"] {
            assert_eq!(parse_backend(name), Ok(name.to_owned()));
        }
        let unknown = parse_backend("udp").unwrap_err();
        assert!(unknown.contains("`udp`; known are: write_imm"), "{unknown}");
    }

    #[test]
    fn sizes_and_times_are_bounded() {
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("17"), Ok(17));
        assert!(parse_size("0").is_err());
        assert!(parse_size("99999999999G").is_err());
        assert!(parse_size("G").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "soon"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
