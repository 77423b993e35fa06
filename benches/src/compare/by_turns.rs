//! Backends that use the same two cores alternately, and the cores' own limit after each round.
//!
//! While another backend runs, a server rests in a call: its thread sleeps, and its core is free. That call uses
//! a separate connection, so that no backend takes the rest for a long round trip.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::report::{Cell, Limit, Run};
use super::{Contender, Mode, Options, Workload};
use crate::clock::Clock;
use crate::echo::calling;
use crate::echo::host::Host;
use crate::echo::load::{Calling, Totals};
use crate::echo::service::{EchoPollClient, REST_BOUND};
use crate::echo::shape::Pending;
use crate::limit::{Bare, Bounce};
use crate::process::resident_bytes;
use crate::{SLICE, cores};

/// A slice has this length if the time allows: long enough for many calls on the slowest device.
const LEAST_ROUNDS: u32 = 5;

/// One backend in a cell.
struct Competitor {
    host: Host,
    /// The connection over which the server rests while this call is pending.
    control: EchoPollClient,
    resting: Option<Pending<bool>>,
    calling: Box<dyn Calling>,
    totals: Totals,
    /// Of both ends, per client.
    bytes_per_client: u64,
}

/// Measures one cell. Only failures of the bench itself are errors.
pub(super) fn measure(options: &Options, workload: Workload) -> Result<Cell> {
    let Options { time, cores: [server_core, client_core], .. } = *options;
    let clock = Clock::new();
    let mut competitors: Vec<(&Contender, Result<Competitor>)> = Vec::new();
    for contender in &options.contenders {
        competitors.push((contender, Competitor::new(options, contender, workload, &clock)));
    }
    cores::pin(client_core)?;
    let mut bounce = Bounce::start(server_core)?;
    let mut bare = match options.device == "shm" {
        true => Bare::of(workload.size, workload.clients * workload.window, server_core)?,
        false => Bare::Nothing,
    };
    let slice = SLICE.min(time / LEAST_ROUNDS);
    let (mut rounds, mut spent) = (0, Duration::ZERO);
    while spent < time || rounds < LEAST_ROUNDS {
        let begin = Instant::now();
        let mut turns = 0;
        for (_, rival) in &mut competitors {
            if let Ok(running) = rival {
                turns += 1;
                if let Err(error) = running.turn(slice) {
                    *rival = Err(error);
                }
            }
        }
        if turns == 0 {
            break;
        }
        spent += begin.elapsed() / turns;
        rounds += 1;
        bounce.slice(&clock, slice);
        bare.slice(&clock);
    }
    let limit = Limit {
        what: "bounced cache line",
        ns: bounce.latency().quantile(0.5),
        line_rate: bare.line_rate(),
        copy_bandwidth: bare.copy_bandwidth(),
    };
    let runs = competitors
        .into_iter()
        .map(|(contender, rival)| Run::of(contender, rival.and_then(|rival| rival.stop())));
    let runs = runs.collect();
    Ok(Cell::new(workload, limit, runs))
}

impl Competitor {
    fn new(
        options: &Options,
        contender: &Contender,
        workload: Workload,
        clock: &Clock,
    ) -> Result<Competitor> {
        let [server_core, _] = options.cores;
        let Workload { clients, size, window } = workload;
        let listened = address(options, contender, workload);
        let before = resident_bytes()?;
        let host = match options.mode {
            Mode::Threads => Host::thread(&listened, server_core)?,
            Mode::Processes => Host::process(&listened, server_core)?,
        };
        let address = host.address().to_owned();
        let connect = || EchoPollClient::connect(&address).wait();
        let connected: Result<Vec<_>, _> = (0..clients).map(|_| connect()).collect();
        let connected = connected.with_context(|| format!("cannot connect to {address}"))?;
        let mut calling = calling(size, window, connected, clock.clone());
        let mut control = control(&address)?;
        // The memory after some calls is the backend's memory.
        calling.calls(Duration::ZERO, &mut Totals::default())?;
        let bytes_per_client = resident_bytes()?.saturating_sub(before) / clients as u64;
        let resting = Some(rest(&mut control)?);
        Ok(Competitor {
            host,
            control,
            resting,
            calling,
            totals: Totals::default(),
            bytes_per_client,
        })
    }

    /// Makes calls for about `time`, then lets the server rest again.
    fn turn(&mut self, time: Duration) -> Result<()> {
        self.wake()?;
        self.calling.calls(time, &mut self.totals)?;
        self.resting = Some(rest(&mut self.control)?);
        Ok(())
    }

    fn wake(&mut self) -> Result<()> {
        let Some(resting) = self.resting.take() else { return Ok(()) };
        self.host.resume()?;
        match self.control.connection().wait(resting) {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => bail!("the server was not resumed in time"),
            Some(Err(error)) => Err(error.into()),
            None => bail!("the server's rest was taken twice"),
        }
    }

    fn stop(mut self) -> Result<Run> {
        self.wake()?;
        let Competitor { host, control, calling, totals, bytes_per_client, .. } = self;
        drop((calling, control));
        host.stop()?;
        let latency = &totals.latency;
        Ok(Run {
            calls: totals.calls,
            rate: totals.rate(),
            p50_ns: latency.quantile(0.5),
            p99_ns: latency.quantile(0.99),
            bytes_per_client: Some(bytes_per_client),
            ..Run::default()
        })
    }
}

/// A connection over which the server is told to rest. It has all optimizations, and a timeout that covers all
/// backends' slices.
fn control(address: &str) -> Result<EchoPollClient> {
    let (place, options) = address.split_once('?').unwrap_or((address, ""));
    let options: Vec<_> = options.split('&').filter(|it| !it.starts_with("without=")).collect();
    let address = format!("{place}?{}", options.join("&"));
    EchoPollClient::connect(&address)
        .timeout(REST_BOUND)
        .wait()
        .with_context(|| format!("cannot connect to {address}"))
}

fn rest(control: &mut EchoPollClient) -> Result<Pending<bool>> {
    let resting = control.start_rest()?;
    control.poll();
    Ok(resting)
}

fn address(options: &Options, contender: &Contender, workload: Workload) -> String {
    let how = contender.address_options(workload.size);
    let how = format!("{how}&window={}", workload.slots());
    crate::address::local(&options.device, contender.backend, &how)
}
