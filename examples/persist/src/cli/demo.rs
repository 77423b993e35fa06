//! The demo: writers are killed again and again, the tail of their log is torn, bits flip; each acknowledged record is checked.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use farcall_persist::{Error, Kind, Level, Log, Lsn, Options};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::args::DemoArgs;
use super::bench;
use super::inspect;
use super::stamp::Stamp;

/// Short segments, so that processes are killed while they change segments, too.
const SEGMENT_BYTES: u64 = 256 << 10;

pub(crate) fn options() -> Options {
    Options::default().segment_bytes(SEGMENT_BYTES)
}

const MIN_ROUNDS: u32 = 3;
const TABLE_TIME: Duration = Duration::from_millis(1000);

/// What happens to the log after its process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injury {
    /// Nothing more: what was visible must be there.
    None,
    /// The sectors of the end that nothing proves to be synced are torn, as by a power cut: what was persistent must be there.
    TornTail,
    /// First a bit of a persistent record flips, which must be noticed, and flips back.
    FlippedBit,
}

/// An acknowledged record.
struct Acked {
    lsn: Lsn,
    persistent: bool,
}

struct Demo {
    dir: PathBuf,
    random: SmallRng,
    acked: BTreeMap<Stamp, Acked>,
    problems: u64,
    kills: u32,
    torn: u32,
    flipped: u32,
    /// Records that were there although nobody had acknowledged them.
    extra: usize,
}

pub(crate) fn run(args: &DemoArgs) -> Result<bool> {
    let scratch = bench::scratch(args.dir.as_deref())?;
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("log in {}; --seed {seed} repeats the choices", scratch.path().display());
    let dir = scratch.path().join("demo");
    let random = SmallRng::seed_from_u64(seed);
    let acked = BTreeMap::new();
    let mut demo =
        Demo { dir, random, acked, problems: 0, kills: 0, torn: 0, flipped: 0, extra: 0 };
    let until = Instant::now() + args.seconds;
    let mut round = 0;
    while round < MIN_ROUNDS || Instant::now() < until {
        let injury = [Injury::None, Injury::TornTail, Injury::FlippedBit][round as usize % 3];
        demo.round(round, injury)?;
        round += 1;
    }
    println!(
        "{} processes killed, {} tails torn, {} bits flipped; {} records acknowledged, {} lost or wrong; {} there without an acknowledgement",
        demo.kills,
        demo.torn,
        demo.flipped,
        demo.acked.len(),
        demo.problems,
        demo.extra,
    );
    if !args.no_table {
        println!("what it costs here:");
        bench::table(scratch.path(), 256, &[1, 8, 64], TABLE_TIME)?;
    }
    Ok(demo.problems == 0)
}

impl Demo {
    fn round(&mut self, round: u32, injury: Injury) -> Result<()> {
        let life = Duration::from_millis(self.random.random_range(100..600));
        let acked = self.write_and_kill(round, life)?;
        let count = acked.len();
        self.acked.extend(acked);
        let what = match injury {
            Injury::None => "killed".to_owned(),
            Injury::TornTail => self.tear_the_tail()?,
            Injury::FlippedBit => self.flip_a_bit()?,
        };
        let begun = Instant::now();
        let log = Log::open(&self.dir, options()).context("recovery")?;
        let took = begun.elapsed();
        let survives = if injury == Injury::TornTail { Level::Persistent } else { Level::Visible };
        let (there, problems) = self.check(&log, round, survives)?;
        for problem in problems.iter().take(5) {
            println!("  {problem}");
        }
        self.problems += problems.len() as u64;
        println!(
            "round {round:3}: {count:5} acknowledged, {what}; recovered in {:5.1} ms: {there} records, {} lost or wrong",
            took.as_secs_f64() * 1e3,
            problems.len(),
        );
        Ok(())
    }

    /// Has a process write for a while, kills it, and returns what it had acknowledged.
    fn write_and_kill(&mut self, round: u32, life: Duration) -> Result<Vec<(Stamp, Acked)>> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.arg("demo-writer").arg("--dir").arg(&self.dir);
        command.args(["--round", &round.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = KillOnDrop(child.context("cannot start a writer")?);
        let output = child.0.stdout.take().context("the writer has no output")?;
        let (first, came) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || -> Result<Vec<(Stamp, Acked)>> {
            let mut acked = Vec::new();
            for line in BufReader::new(output).lines() {
                // The last line may be cut.
                let Some(ack) = parse_ack(round, &line?) else { break };
                acked.push(ack);
                let _ = first.send(());
            }
            Ok(acked)
        });
        // Its life begins with its first acknowledgement: a busy machine may start it late.
        let started = came.recv_timeout(Duration::from_secs(30));
        if started.is_err() {
            drop(child);
            bail!("the writer acknowledged nothing within 30 s");
        }
        thread::sleep(life);
        drop(child);
        self.kills += 1;
        reader.join().map_err(|_| anyhow!("the reader panicked"))?
    }

    /// Tears sectors after the last record that is known to be persistent, to the writers or by the log itself.
    fn tear_the_tail(&mut self) -> Result<String> {
        let persistent = self.acked.iter().filter(|(_, ack)| ack.persistent);
        let acked = persistent.map(|(stamp, ack)| end_of(*stamp, ack)).max().unwrap_or(Lsn(0));
        let mut proved = Lsn(0);
        let report = farcall_persist::verify(&inspect::storage(&self.dir)?, |record| {
            proved = proved.max(record.header.synced);
            Ok(())
        })?;
        let from = acked.max(proved);
        if from.0.is_multiple_of(SEGMENT_BYTES) || from > report.end {
            return Ok("killed at a segment's end".to_owned());
        }
        let file = OpenOptions::new().write(true).open(self.segment(from))?;
        let begin = from.0 % SEGMENT_BYTES;
        let (mut at, mut torn) = (begin, 0);
        while at < (begin + TORN_BYTES).min(SEGMENT_BYTES) {
            let end = (at + 1).next_multiple_of(SECTOR_BYTES).min(SEGMENT_BYTES);
            let mut sector = vec![0; usize::try_from(end - at)?];
            match self.random.random_range(0..3) {
                0 => file.write_all_at(&sector, at)?,
                1 => {
                    self.random.fill_bytes(&mut sector);
                    file.write_all_at(&sector, at)?;
                }
                _ => torn -= 1,
            }
            torn += 1;
            at = end;
        }
        self.torn += 1;
        Ok(format!("killed, {torn} sectors torn after lsn {from}"))
    }

    /// Flips a bit of a record that is known to be persistent: the log must refuse to open, and say where.
    fn flip_a_bit(&mut self) -> Result<String> {
        let mut records = Vec::new();
        let mut proved = Lsn(0);
        farcall_persist::verify(&inspect::storage(&self.dir)?, |record| {
            proved = proved.max(record.header.synced);
            if record.kind() == Kind::Entry {
                records.push(record.header);
            }
            Ok(())
        })?;
        records.retain(|header| header.end() <= proved);
        if records.is_empty() {
            return Ok("killed".to_owned());
        }
        let victim = records[self.random.random_range(0..records.len())];
        let covered = farcall_persist::HEADER_BYTES as u64 + u64::from(victim.length);
        let byte = victim.lsn.0 % SEGMENT_BYTES + self.random.random_range(0..covered);
        let bit = self.random.random_range(0..8);
        let segment = self.segment(victim.lsn);
        flip(&segment, byte, bit)?;
        let outcome = Log::open(&self.dir, options()).map(drop);
        flip(&segment, byte, bit)?;
        match outcome {
            Err(Error::Corrupt(damage)) if damage.from == victim.lsn => {
                self.flipped += 1;
                Ok(format!("killed, a bit flipped at lsn {}: refused", victim.lsn))
            }
            other => {
                self.problems += 1;
                Ok(format!("killed, a bit flipped at lsn {}: NOT NOTICED ({other:?})", victim.lsn))
            }
        }
    }

    fn segment(&self, lsn: Lsn) -> PathBuf {
        self.dir.join(format!("segment-{:016x}.log", lsn.0 / SEGMENT_BYTES))
    }

    /// Reads the whole log, and compares it with what was acknowledged. Returns how many records there are, and what is wrong. What is not
    /// there need not be there later.
    fn check(&mut self, log: &Log, round: u32, survives: Level) -> Result<(usize, Vec<String>)> {
        let mut there = BTreeMap::new();
        let mut problems = Vec::new();
        for record in log.records(None) {
            let record = record?;
            if record.kind() != Kind::Entry {
                continue;
            }
            match Stamp::of(&record.payload) {
                Some(stamp) if stamp.round <= round => {
                    if there.insert(stamp, record.lsn()).is_some() {
                        problems.push(format!("{stamp:?} is there twice"));
                    }
                }
                _ => problems
                    .push(format!("the record at {} is none that was written", record.lsn())),
            }
        }
        for (stamp, ack) in &self.acked {
            let must_be = ack.persistent || stamp.round < round || survives == Level::Visible;
            match there.get(stamp) {
                Some(lsn) if *lsn == ack.lsn => {}
                Some(lsn) => {
                    problems.push(format!("{stamp:?} was at {}, and is at {lsn}", ack.lsn))
                }
                None if must_be => problems.push(format!("{stamp:?} at {} is lost", ack.lsn)),
                None => {}
            }
        }
        check_order(&there, &mut problems);
        self.acked.retain(|stamp, _| there.contains_key(stamp));
        self.extra = there.len().saturating_sub(self.acked.len());
        Ok((there.len(), problems))
    }
}

/// Each writer waited for each record: there are no gaps.
fn check_order(there: &BTreeMap<Stamp, Lsn>, problems: &mut Vec<String>) {
    let mut next: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for stamp in there.keys() {
        let expected = next.entry((stamp.round, stamp.writer)).or_default();
        if stamp.sequence != *expected {
            problems.push(format!("{stamp:?} is there, and {expected} is not"));
        }
        *expected = stamp.sequence + 1;
    }
}

/// The unit that disks write whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// So much of the end is torn.
const TORN_BYTES: u64 = 16 << 10;

fn end_of(stamp: Stamp, ack: &Acked) -> Lsn {
    let size = farcall_persist::HEADER_BYTES + stamp.payload().len();
    Lsn(ack.lsn.0 + size.next_multiple_of(8) as u64)
}

fn flip(path: &Path, byte: u64, bit: u32) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut one = [0];
    file.read_exact_at(&mut one, byte)?;
    file.write_all_at(&[one[0] ^ 1 << bit], byte)?;
    Ok(())
}

fn parse_ack(round: u32, line: &str) -> Option<(Stamp, Acked)> {
    let mut fields = line.split(' ');
    let lsn = Lsn(fields.next()?.parse().ok()?);
    let writer = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    let persistent = fields.next()? == "1";
    Some((Stamp { round, writer, sequence }, Acked { lsn, persistent }))
}

/// A child that is killed, with SIGKILL, and waited for.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with records of one writer, and a demo that knows of them.
    fn demo(dir: &Path, sequences: &[u64]) -> (Demo, Log) {
        let log = Log::open(dir, options()).unwrap();
        let mut acked = BTreeMap::new();
        for sequence in sequences {
            let stamp = Stamp { round: 0, writer: 0, sequence: *sequence };
            let lsn = log.append(&stamp.payload(), Level::Visible).unwrap().wait().unwrap().lsn;
            acked.insert(stamp, Acked { lsn, persistent: false });
        }
        let random = SmallRng::seed_from_u64(1);
        let dir = dir.to_path_buf();
        (Demo { dir, random, acked, problems: 0, kills: 0, torn: 0, flipped: 0, extra: 0 }, log)
    }

    #[test]
    fn a_record_that_is_lost_moved_twice_there_or_a_stranger_is_a_problem() {
        let directory = tempfile::tempdir().unwrap();
        let (mut demo, log) = demo(directory.path(), &[0, 1, 2]);
        let sound = demo.check(&log, 0, Level::Visible).unwrap();
        assert_eq!(sound, (3, vec![]));

        let lost = Stamp { round: 0, writer: 1, sequence: 0 };
        demo.acked.insert(lost, Acked { lsn: Lsn(8), persistent: true });
        let problems = |demo: &mut Demo| demo.check(&log, 0, Level::Persistent).unwrap().1;
        assert!(problems(&mut demo)[0].contains("is lost"));

        let moved = Stamp { round: 0, writer: 0, sequence: 1 };
        demo.acked.insert(moved, Acked { lsn: Lsn(8), persistent: true });
        assert!(problems(&mut demo)[0].contains("was at 8"));
        demo.acked.remove(&moved);

        log.append(&moved.payload(), Level::Visible).unwrap().wait().unwrap();
        assert!(problems(&mut demo)[0].contains("twice"));

        log.append(b"nobody wrote this", Level::Visible).unwrap().wait().unwrap();
        assert!(problems(&mut demo)[1].contains("is none that was written"));
    }

    #[test]
    fn what_was_only_visible_may_be_lost_with_the_power_and_not_with_the_process() {
        let directory = tempfile::tempdir().unwrap();
        for (survives, expected) in [(Level::Persistent, 0), (Level::Visible, 1)] {
            let (mut demo, log) = demo(&directory.path().join(expected.to_string()), &[0]);
            let stamp = Stamp { round: 0, writer: 0, sequence: 1 };
            demo.acked.insert(stamp, Acked { lsn: Lsn(8), persistent: false });
            assert_eq!(demo.check(&log, 0, survives).unwrap().1.len(), expected);
        }
    }
}
