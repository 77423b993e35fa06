//! A log on a simulated disk, and a model of what it must hold.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::storage::sim::{Faults, SimDisk};
use crate::{Error, Kind, Level, Log, Lsn, Options, Waiter};

/// Segments that a story fills soon.
pub(super) const SEGMENT_BYTES: u64 = 8 << 10;

/// How a life of the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    PowerCut,
    Killed,
}

/// A record that was appended, as far as its writer knows.
struct Known {
    lsn: Lsn,
    payload: Vec<u8>,
    /// What was acknowledged.
    level: Option<Level>,
}

/// A log, the disk below, and all that its writer knows.
pub(super) struct Story {
    pub(super) disk: SimDisk,
    pub(super) log: Option<Log>,
    pub(super) random: SmallRng,
    entries: Vec<Known>,
    waiting: VecDeque<(usize, Waiter)>,
    /// The writer let everything before this go.
    truncated: Lsn,
    appended: u64,
}

pub(super) fn options() -> Options {
    Options::default().segment_bytes(SEGMENT_BYTES).queue_bytes(4 << 10)
}

impl Story {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(seed),
            log: None,
            random: SmallRng::seed_from_u64(seed ^ 0x5eed),
            entries: Vec::new(),
            waiting: VecDeque::new(),
            truncated: Lsn(0),
            appended: 0,
        }
    }

    pub(super) fn log(&self) -> &Log {
        self.log.as_ref().expect("the log is open")
    }

    pub(super) fn open(&mut self) -> Result<(), Error> {
        self.log = Some(Log::open_on(Arc::new(self.disk.clone()), options())?);
        Ok(())
    }

    /// Appends, and does not wait.
    pub(super) fn append(&mut self, length: usize, level: Level) -> Result<(), Error> {
        self.appended += 1;
        let mut payload = self.appended.to_le_bytes().to_vec();
        payload.resize(length.max(payload.len()), self.random.random());
        let waiter = self.log().append(&payload, level)?;
        self.waiting.push_back((self.entries.len(), waiter));
        let (lsn, level) = (self.waiting.back().expect("one was added").1.lsn(), None);
        self.entries.push(Known { lsn, payload, level });
        Ok(())
    }

    /// Waits for the acknowledgement of all but the newest `keep`.
    pub(super) fn wait_but(&mut self, keep: usize) -> Result<(), Error> {
        while self.waiting.len() > keep
            && let Some((index, waiter)) = self.waiting.pop_front()
        {
            self.entries[index].level = Some(waiter.wait()?.level);
        }
        Ok(())
    }

    pub(super) fn wait(&mut self) -> Result<(), Error> {
        self.wait_but(0)
    }

    /// Has all that was appended persistent, and notes that in the model.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.log().flush(Level::Persistent)?.wait()?;
        self.all_are_persistent();
        Ok(())
    }

    /// Opens the log again after a failure, in the same process, and checks it: what was visible is there still.
    pub(super) fn open_again(&mut self) -> Result<(), String> {
        self.waiting.clear();
        match self.log().open_again() {
            Ok(log) => self.log = Some(log),
            // The power fails during that.
            Err(_) if self.disk.is_off() => return Ok(()),
            Err(why) => return Err(format!("opening again: {why}")),
        }
        self.check(Some(End::Killed))
    }

    fn all_are_persistent(&mut self) {
        self.waiting.clear();
        self.entries.iter_mut().for_each(|entry| entry.level = Some(Level::Persistent));
    }

    /// A checkpoint that lets go what is before any one of the records.
    pub(super) fn checkpoint(&mut self) -> Result<(), Error> {
        let first = self.log().first();
        let still_there = self.entries.partition_point(|entry| entry.lsn < first);
        let restart = if still_there == self.entries.len() {
            first
        } else {
            self.entries[self.random.random_range(still_there..self.entries.len())].lsn
        };
        self.log().checkpoint(restart, b"the program's own")?;
        self.truncated = self.truncated.max(restart);
        self.wait()
    }

    pub(super) fn truncate(&mut self) -> Result<(), Error> {
        let Some(checkpoint) = self.log().last_checkpoint()? else { return Ok(()) };
        // The acknowledgement of the checkpoint may not have come, and it is there.
        self.truncated = self.truncated.max(checkpoint.restart);
        self.log().truncate(checkpoint.restart)?;
        Ok(())
    }

    pub(super) fn close(&mut self) -> Result<(), Error> {
        self.log.take().expect("the log is open").close()?;
        self.all_are_persistent();
        Ok(())
    }

    /// Reads all records, and compares them with what the writer knows: those that must be there are, nothing else is.
    pub(super) fn check(&mut self, ended: Option<End>) -> Result<(), String> {
        let first = self.log().first();
        if first > self.truncated && self.truncated != Lsn(0)
            || first.0 >= 2 * SEGMENT_BYTES && self.truncated == Lsn(0)
        {
            return Err(format!(
                "the log begins at {first}, and was truncated to {}",
                self.truncated
            ));
        }
        let mut found = Vec::new();
        for record in self.log().records(None) {
            let record = record.map_err(|why| format!("after recovery: {why}"))?;
            match record.kind() {
                Kind::Entry => found.push((record.lsn(), record.payload)),
                Kind::Lost => return Err("a repaired gap that nobody repaired".to_owned()),
                _ => {}
            }
        }
        let expected: Vec<_> = self.entries.iter().filter(|entry| entry.lsn >= first).collect();
        for (at, (lsn, payload)) in found.iter().enumerate() {
            let Some(entry) = expected.get(at) else {
                return Err(format!("a record at {lsn} was invented"));
            };
            if (entry.lsn, &entry.payload) != (*lsn, payload) {
                return Err(format!("a record at {lsn} is not what was appended"));
            }
        }
        let survives = match ended {
            Some(End::PowerCut) => Some(Level::Persistent),
            Some(End::Killed) => Some(Level::Visible),
            None => None,
        };
        if let Some(survives) = survives {
            let lost =
                expected[found.len()..].iter().find(|e| e.level.is_some_and(|l| l >= survives));
            if let Some(lost) = lost {
                return Err(format!(
                    "an acknowledged record is lost: {} {:?}",
                    lost.lsn, lost.level
                ));
            }
            self.entries.retain(|entry| entry.lsn >= first);
            self.entries.truncate(found.len());
            self.all_are_persistent();
        }
        Ok(())
    }

    /// Ends this life.
    pub(super) fn end(&mut self, how: End) {
        self.waiting.clear();
        self.log = None;
        match how {
            End::PowerCut => self.disk.power_cycle(),
            End::Killed => self.disk.kill_process(),
        }
    }

    /// Opens the log after a life has ended, and checks it.
    pub(super) fn recover(&mut self, how: End) -> Result<(), String> {
        self.open().map_err(|why| format!("recovery: {why}"))?;
        self.check(Some(how))
    }
}

/// What each crash test does before and while the power fails.
pub(super) type Script = fn(&mut Story) -> Result<(), Error>;

/// Runs `before`, then `script` with the power failing at each of its operations in turn, then recovers and checks; and once more with the
/// power failing at each operation of the recovery. Returns what went wrong, and how many crashes there were.
pub(super) fn crash_everywhere(
    (before, script): (Script, Script),
    disks: std::ops::Range<u64>,
    faults: &Faults,
) -> (Vec<String>, u64) {
    let mut wrong = Vec::new();
    let mut crashes = 0;
    for seed in disks {
        for at in 0.. {
            let mut story = Story::new(seed);
            story.disk.set_faults(faults.clone());
            let began = story.open().and_then(|()| before(&mut story));
            began.expect("nothing fails yet");
            story.disk.set_faults(Faults { power_cut_at: Some(at), ..faults.clone() });
            let outcome = script(&mut story);
            if !story.disk.is_off() {
                outcome.expect("without a power cut the script succeeds");
                break;
            }
            crashes += 1;
            if let Err(what) = recover_with_crashes(&mut story, faults, &mut crashes) {
                wrong.push(format!("disk {seed}, operation {at}: {what}"));
            }
        }
    }
    (wrong, crashes)
}

/// Recovers while the power fails at each operation of the recovery in turn.
fn recover_with_crashes(
    story: &mut Story,
    faults: &Faults,
    crashes: &mut u64,
) -> Result<(), String> {
    story.end(End::PowerCut);
    for at in 0.. {
        story.disk.set_faults(Faults { power_cut_at: Some(at), ..faults.clone() });
        let opened = story.open();
        if !story.disk.is_off() {
            opened.map_err(|why| format!("recovery: {why}"))?;
            break;
        }
        *crashes += 1;
        story.log = None;
        story.disk.power_cycle();
    }
    story.disk.set_faults(faults.clone());
    story.check(Some(End::PowerCut))?;
    // What is written after a recovery must not bring back what was cut.
    let more = |story: &mut Story| {
        for _ in 0..3 {
            story.append(40, Level::Persistent)?;
        }
        story.wait()
    };
    more(story).map_err(|why| format!("after recovery: {why}"))?;
    story.end(End::PowerCut);
    story.recover(End::PowerCut)
}

/// Asserts that nothing went wrong.
#[track_caller]
pub(super) fn assert_sound(outcome: &(Vec<String>, u64)) {
    let (wrong, crashes) = outcome;
    assert!(
        wrong.is_empty(),
        "{} of {crashes} crashes: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
    assert!(*crashes > 4, "only {crashes} crashes");
}

/// Asserts that an error is of a kind.
#[track_caller]
pub(super) fn assert_error<T>(outcome: Result<T, Error>, is_it: impl Fn(&Error) -> bool) -> Error
where
    T: Debug,
{
    match outcome {
        Err(error) if is_it(&error) => error,
        other => panic!("another outcome: {other:?}"),
    }
}
