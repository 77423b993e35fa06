//! `load` and `dump`: a store from a file, and to a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farcall_kv::link::{Link, NotStarted, PollLink};
use farcall_kv::tsv;
use farcall_kv::ycsb::latency::human_rate;

use super::args::{DumpArgs, LoadArgs};
use super::pages::Pages;
use super::progress::Progress;
use super::{connect_poll, idle};

/// Entries in flight at once.
const WINDOW: usize = 32;

/// Bytes of keys and values in flight at once, unless a single entry has more.
const WINDOW_BYTES: usize = 64 << 20;

const BUFFER_BYTES: usize = 256 << 10;

/// Puts each line of a file.
pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let name = args.file.display();
    let (input, bytes): (Box<dyn BufRead>, _) = if args.file.as_os_str() == "-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(&args.file).with_context(|| format!("{name} cannot be opened"))?;
        let bytes = file.metadata().ok().filter(|data| data.is_file()).map(|data| data.len());
        (Box::new(BufReader::with_capacity(BUFFER_BYTES, file)), bytes)
    };
    let mut lines = tsv::Reader::new(input);
    let mut loader = Loader {
        link: connect_poll(&args.server.address, args.server.timeout)?,
        in_flight: VecDeque::with_capacity(WINDOW),
        in_flight_bytes: 0,
        timeout: args.server.timeout,
        spins_before_yield: idle::spins_before_yield(2),
        loaded: 0,
    };
    let mut progress = Progress::new("load", bytes);
    let started = Instant::now();
    let mut skipped = 0u64;
    let mut stopped_at = None;
    while let Some(line) = lines.read().with_context(|| format!("{name} cannot be read"))? {
        match line {
            Ok(entry) => loader.put(lines.number(), &entry)?,
            Err(why) => {
                eprintln!("{name}, line {}: {why}", lines.number());
                if !args.skip_bad {
                    stopped_at = Some(lines.number());
                    break;
                }
                skipped += 1;
            }
        }
        progress.set(lines.bytes(), || format!("{} entries", loader.loaded));
    }
    loader.finish()?;

    let loaded = loader.loaded;
    let rate = human_rate(loaded as f64 / started.elapsed().as_secs_f64().max(1e-6));
    progress.finish(format!("{loaded} entries, {rate} entries/s"));
    if let Some(line) = stopped_at {
        bail!(
            "stopped at line {line}; the {loaded} lines before it were loaded. \
             Mend the line, or skip bad lines with --skip-bad"
        );
    }
    if args.skip_bad {
        eprintln!("{:>12}  {skipped} bad lines", "skipped");
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps a window of puts in flight.
struct Loader {
    link: PollLink,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    timeout: Duration,
    spins_before_yield: u32,
    loaded: u64,
}

struct InFlight {
    line: u64,
    bytes: usize,
    put: <PollLink as Link>::Put,
}

impl Loader {
    fn put(&mut self, line: u64, entry: &tsv::Entry) -> Result<()> {
        let bytes = entry.key.len() + entry.value.len();
        while self.in_flight.len() >= WINDOW
            || (self.in_flight_bytes + bytes > WINDOW_BYTES && !self.in_flight.is_empty())
        {
            self.await_oldest()?;
        }
        let mut wait = BoundedWait::new(self.timeout, self.spins_before_yield);
        let put = loop {
            match self.link.start_put(&entry.key, &entry.value) {
                Ok(put) => break put,
                Err(NotStarted::Failed(why)) => bail!("line {line}: {why}"),
                Err(NotStarted::Full) if self.in_flight.is_empty() => {
                    self.link.poll();
                    wait.rest().with_context(|| format!("line {line}: no room for it"))?;
                }
                Err(NotStarted::Full) => self.await_oldest()?,
            }
        };
        self.in_flight.push_back(InFlight { line, bytes, put });
        self.in_flight_bytes += bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.await_oldest()?;
        }
        Ok(())
    }

    fn await_oldest(&mut self) -> Result<()> {
        let Some(InFlight { line, bytes, mut put }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.in_flight_bytes -= bytes;
        let mut wait = BoundedWait::new(self.timeout, self.spins_before_yield);
        loop {
            self.link.poll();
            match self.link.take_put(&mut put) {
                Some(Ok(_)) => {
                    self.loaded += 1;
                    return Ok(());
                }
                Some(Err(why)) => bail!("line {line}: {why}"),
                None => wait.rest().with_context(|| format!("line {line}: no answer"))?,
            }
        }
    }
}

/// The timeout of a wait, and how the core is shared meanwhile.
struct BoundedWait {
    until: Instant,
    timeout: Duration,
    spins_left: u32,
}

impl BoundedWait {
    fn new(timeout: Duration, spins: u32) -> Self {
        Self { until: Instant::now() + timeout, timeout, spins_left: spins }
    }

    fn rest(&mut self) -> Result<()> {
        if self.spins_left > 0 {
            self.spins_left -= 1;
            std::hint::spin_loop();
            return Ok(());
        }
        if Instant::now() > self.until {
            bail!("waited {} s", self.timeout.as_secs_f64());
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// Writes each entry as a line.
pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode> {
    let mut pages = Pages::connect(&args.server.address, args.server.timeout)?;
    // On a terminal, the entries themselves show the progress.
    let mut progress = (!io::stdout().is_terminal()).then(|| Progress::new("dump", None));
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    let mut entries = 0u64;
    while let Some(page) = pages.next()? {
        for (key, value) in &page {
            tsv::write_entry(&mut out, key, value)?;
        }
        entries += page.len() as u64;
        if let Some(progress) = &mut progress {
            progress.set(entries, || format!("{entries} entries"));
        }
    }
    out.flush()?;
    if let Some(progress) = progress {
        progress.finish(format!("{entries} entries"));
    }
    Ok(ExitCode::SUCCESS)
}
