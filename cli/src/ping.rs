//! `farcall ping`: measures round trips of the built-in service that every server has.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use farcall::RpcError;
use farcall::ping::PingPollClient;
use hdrhistogram::Histogram;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::credentials::Credentials;

/// The exit status if a ping was not answered.
const LOST: u8 = 1;

/// The longest payload: a ping measures latency, not memory bandwidth.
const MAX_SIZE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the server is, as shm://NAME, rdma://HOST:PORT?device=rxe0 or tcp://HOST:PORT.
    address: String,
    /// How many pings [default: until stopped].
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Bytes that go there and come back.
    #[arg(long, short = 's', default_value_t = 32, value_parser = clap::value_parser!(u64).range(..=MAX_SIZE))]
    size: u64,
    /// Seconds from one ping to the next; 0 sends the next as soon as one is answered, and tells only the summary.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
    /// Seconds until a ping without an answer is lost.
    #[arg(long, short = 't', value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    timeout: Duration,
    #[command(flatten)]
    credentials: Credentials,
    /// Only the summary, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The longest accepted time: a day.
const MAX_SECONDS: f64 = 86_400.0;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.0..=MAX_SECONDS).contains(&seconds) {
        return Err(format!("0 to {MAX_SECONDS} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The results of all pings. Scripts read the names of the fields: only add fields.
#[derive(Debug, Serialize)]
struct Summary {
    address: String,
    size: u64,
    sent: u64,
    answered: u64,
    lost: u64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    /// Why the last lost ping was lost.
    error: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first signal stops the pings; a second one ends the program immediately.
        signal_hook::flag::register_conditional_default(signal, stop.clone()).context("signals")?;
        signal_hook::flag::register(signal, stop.clone()).context("signals")?;
    }
    let is_stopped = || stop.load(Ordering::Relaxed);
    let payload = Bytes::from((0..args.size).map(|at| at as u8).collect::<Vec<_>>());
    let tells_each = !args.json && !args.interval.is_zero();
    let mut client = Some(connect(args)?);
    let mut out = io::stdout();
    if !args.json {
        writeln!(out, "ping {}: {} bytes there and back", args.address, args.size)?;
    }
    let longest = Duration::from_secs_f64(MAX_SECONDS).as_nanos() as u64;
    let mut times = Histogram::<u64>::new_with_bounds(1, longest, 3).context("a histogram")?;
    let (mut sent, mut error) = (0, None);
    while !is_stopped() && args.count.is_none_or(|count| sent < count) {
        let begun = Instant::now();
        sent += 1;
        let outcome = match &mut client {
            Some(client) => ping(client, &payload, &is_stopped),
            None => connect(args).map_err(|why| format!("{why:#}")).and_then(|fresh| {
                let client = client.insert(fresh);
                ping(client, &payload, &is_stopped)
            }),
        };
        match outcome {
            Ok(Some(took)) => {
                times.saturating_record(took.as_nanos().try_into().unwrap_or(u64::MAX));
                if tells_each {
                    writeln!(out, "{sent}: {}", human(took.as_nanos() as u64))?;
                }
            }
            // Stopped during the ping, which counts neither as answered nor as lost.
            Ok(None) => sent -= 1,
            Err(why) => {
                if !args.json {
                    writeln!(out, "{sent}: {why}")?;
                }
                error = Some(why);
            }
        }
        if client.as_mut().is_some_and(|client| client.connection().is_closed()) {
            client = None;
        }
        let is_last = args.count.is_some_and(|count| sent >= count);
        let next = begun + args.interval;
        // Sleep in short steps, so that a signal is noticed soon.
        while !is_last && !is_stopped() && Instant::now() < next {
            let left = next.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(50)));
        }
        // Even with interval 0, do not redial a missing server continuously.
        if client.is_none() && args.interval.is_zero() {
            thread::sleep(Duration::from_millis(50));
        }
    }
    let summary = summary(args, sent, &times, error);
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&summary)?)?;
    } else {
        print_summary(&mut out, &summary)?;
    }
    Ok(if summary.lost == 0 { ExitCode::SUCCESS } else { LOST.into() })
}

fn connect(args: &Args) -> Result<PingPollClient> {
    let client = PingPollClient::connect(&args.address);
    let client = args.credentials.of(client)?;
    Ok(client.timeout(args.timeout).dial_timeout(args.timeout).wait()?)
}

/// Empty polls before the thread yields its core.
const SPINS: u32 = 2_000;

/// Empty polls before it sleeps, some milliseconds after the ping was sent.
const YIELD_UNTIL: u32 = SPINS + 1_000;

/// How long it sleeps, which is short compared to the time that has already passed.
const NAP: Duration = Duration::from_micros(200);

/// One round trip; `None` if it was stopped.
fn ping(
    client: &mut PingPollClient,
    payload: &Bytes,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Option<Duration>, String> {
    let begun = Instant::now();
    let as_text = |error: RpcError| error.to_string();
    let mut pending = client.start_ping(payload.clone()).map_err(as_text)?;
    let mut idle = 0;
    loop {
        client.poll();
        if let Some(outcome) = client.take(&mut pending) {
            let took = begun.elapsed();
            let answer = outcome.map_err(as_text)?;
            if answer != *payload {
                return Err("the answer differs from what was sent".to_owned());
            }
            return Ok(Some(took));
        }
        idle += 1;
        match idle {
            ..SPINS => std::hint::spin_loop(),
            SPINS..YIELD_UNTIL => thread::yield_now(),
            _ if is_stopped() => {
                client.connection().cancel(pending);
                return Ok(None);
            }
            _ => thread::sleep(NAP),
        }
    }
}

fn summary(args: &Args, sent: u64, times: &Histogram<u64>, error: Option<String>) -> Summary {
    let answered = times.len();
    let at = |quantile| if answered == 0 { 0 } else { times.value_at_quantile(quantile) };
    Summary {
        address: args.address.clone(),
        size: args.size,
        sent,
        answered,
        lost: sent - answered,
        min_ns: if answered == 0 { 0 } else { times.min() },
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: times.max(),
        error,
    }
}

fn print_summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let Summary { sent, answered, lost, .. } = summary;
    writeln!(out, "{sent} sent, {answered} answered, {lost} lost")?;
    if *answered == 0 {
        return Ok(());
    }
    for (name, nanos) in [
        ("min", summary.min_ns),
        ("p50", summary.p50_ns),
        ("p90", summary.p90_ns),
        ("p99", summary.p99_ns),
        ("p99.9", summary.p999_ns),
        ("max", summary.max_ns),
    ] {
        writeln!(out, "  {name:<6} {:>10}", human(nanos))?;
    }
    Ok(())
}

fn human(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_suitable_units() {
        for (nanos, text) in [
            (999, "999 ns"),
            (23_400, "23.4 us"),
            (12_300_000, "12.3 ms"),
            (u64::MAX, "18446744073.7 s"),
        ] {
            assert_eq!(human(nanos), text);
        }
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("0"), Ok(Duration::ZERO));
        for bad in ["-1", "nan", "inf", "1e9", "soon"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
