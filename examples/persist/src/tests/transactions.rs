//! Transactions on a disk that fails: those that were acknowledged are there, each other is there whole or not at all. On all seeds, at each
//! operation of a checkpoint and of recovery; planted bugs are found.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::story::SEGMENT_BYTES;
use crate::planted::{Bug, plant};
use crate::ranges::{Ranges, RangesError, Transaction};
use crate::storage::sim::{Faults, SimDisk};
use crate::{Level, Options, Waiter};

const LENGTH: usize = 3000;

/// Where a transaction has written, and what.
type Writes = Vec<(usize, Vec<u8>)>;

/// What the store may hold: the state before, and after each commit that is not acknowledged yet.
struct Model {
    states: Vec<Vec<u8>>,
    /// Where `states` begins: so many commits are certain.
    certain: usize,
}

struct Story {
    disk: SimDisk,
    random: SmallRng,
    model: Model,
}

impl Story {
    fn new(seed: u64) -> Self {
        let model = Model { states: vec![vec![0; LENGTH]], certain: 0 };
        Self { disk: SimDisk::new(seed), random: SmallRng::seed_from_u64(!seed), model }
    }

    fn open(&self) -> Result<Ranges, RangesError> {
        let options = Options::default().segment_bytes(SEGMENT_BYTES).queue_bytes(4 << 10);
        Ranges::open(Arc::new(self.disk.clone()), LENGTH, options)
    }

    /// A few transactions, some at the same time, with checkpoints between.
    fn live(&mut self, ranges: &Ranges, steps: usize) -> Result<(), RangesError> {
        let mut open: Vec<(Transaction<'_>, Writes)> = Vec::new();
        let mut waiting: Vec<(usize, Waiter)> = Vec::new();
        for _ in 0..steps {
            match self.random.random_range(0..16) {
                0 => ranges.checkpoint()?,
                1 | 2 if !open.is_empty() => {
                    open.swap_remove(self.random.random_range(0..open.len())).0.abort()?;
                }
                3..=5 if !open.is_empty() => {
                    let at = self.random.random_range(0..open.len());
                    let (transaction, writes) = open.swap_remove(at);
                    let mut state = self.model.states.last().expect("there is a state").clone();
                    for (at, bytes) in writes {
                        state[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    // It may be committed from here on.
                    self.model.states.push(state);
                    let waiter = transaction.start_commit(Level::Persistent)?;
                    waiting.push((self.model.states.len() - 1, waiter));
                }
                6 | 7 => {
                    for (state, waiter) in waiting.drain(..) {
                        waiter.wait()?;
                        self.model.certain = self.model.certain.max(state);
                    }
                    let now = ranges.read(0, LENGTH)?;
                    assert_eq!(
                        &now,
                        self.model.states.last().unwrap(),
                        "readers see what is committed"
                    );
                }
                8 if open.len() < 4 => open.push((ranges.begin(), Vec::new())),
                _ if open.is_empty() => open.push((ranges.begin(), Vec::new())),
                _ => {
                    let which = self.random.random_range(0..open.len());
                    let at = self.random.random_range(0..LENGTH);
                    let length = self.random.random_range(0..=200.min(LENGTH - at));
                    let bytes = vec![self.random.random(); length];
                    match open[which].0.write(at as u64, &bytes) {
                        Ok(()) => open[which].1.push((at, bytes)),
                        Err(RangesError::Conflict(_)) => {}
                        Err(other) => return Err(other),
                    }
                }
            }
        }
        // Those that are open die with the process.
        open.into_iter().for_each(|(transaction, _)| std::mem::forget(transaction));
        Ok(())
    }

    /// Opens the store after a power cut, and compares.
    fn recover(&mut self) -> Result<Ranges, String> {
        let ranges = self.open().map_err(|why| format!("recovery: {why}"))?;
        let now = ranges.read(0, LENGTH).map_err(|why| why.to_string())?;
        let model = &mut self.model;
        let found = model.states.iter().rposition(|state| *state == now);
        match found {
            None => return Err("the store is in a state that never was".to_owned()),
            Some(state) if state < model.certain => {
                return Err("an acknowledged transaction is lost".to_owned());
            }
            Some(_) => {}
        }
        model.states = vec![now];
        model.certain = 0;
        Ok(ranges)
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut story = Story::new(seed);
    let mut ranges = story.open().map_err(|why| why.to_string())?;
    for life in 0..5 {
        let at = story.random.random_range(0..60);
        story.disk.set_faults(Faults { power_cut_at: Some(at), ..Faults::default() });
        // It fails where the power does.
        let _ = story.live(&ranges, 60);
        drop(ranges);
        story.disk.power_cycle();
        // The power fails during the recovery, too, sometimes.
        let at = story.random.random_range(0..12);
        story.disk.set_faults(Faults { power_cut_at: Some(at), ..Faults::default() });
        drop(story.open());
        story.disk.power_cycle();
        ranges = story.recover().map_err(|what| format!("seed {seed}, life {life}: {what}"))?;
    }
    Ok(())
}

fn seeds() -> u64 {
    let more = std::env::var("FARCALL_PERSIST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    more.unwrap_or(300)
}

#[test]
fn transactions_are_there_whole_or_not_at_all_on_all_seeds() {
    for seed in 0..seeds() {
        run(seed).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[track_caller]
fn is_found(bug: Bug) {
    plant(Some(bug));
    let found = (0..200).find_map(|seed| Some((seed, run(seed).err()?)));
    plant(None);
    let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not found in 200 seeds"));
    let signs = ["never was", "is lost", "are damaged"];
    assert!(signs.iter().any(|sign| what.contains(sign)), "another bug than {bug:?}? {what}");
    run(seed).unwrap_or_else(|what| panic!("without the bug: {what}"));
    println!("{bug:?}: {what}");
}

#[test]
fn a_forgotten_undo_is_found() {
    is_found(Bug::UndoForgotten);
}

#[test]
fn a_checkpoint_before_its_log_is_found() {
    is_found(Bug::CheckpointBeforeItsLog);
}

#[test]
fn an_acknowledgement_before_the_sync_is_found_by_transactions() {
    is_found(Bug::AcknowledgedBeforeSync);
}

/// The power fails at each operation of a checkpoint with open transactions. Without syncs the same loses something.
#[test]
fn a_checkpoint_survives_a_power_cut_at_each_operation() {
    for ignores_syncs in [false, true] {
        let (mut crashes, mut wrong) = (0, 0);
        for (seed, at) in (0..8).flat_map(|seed| (0..60).map(move |at| (seed, at))) {
            let mut story = Story::new(seed);
            let faults = Faults { ignores_syncs, ..Faults::default() };
            story.disk.set_faults(faults.clone());
            let ranges = story.open().unwrap();
            story.live(&ranges, 40).unwrap();
            story.disk.set_faults(Faults { power_cut_at: Some(at), ..faults });
            let outcome = ranges.checkpoint();
            if !story.disk.is_off() {
                outcome.unwrap();
                continue;
            }
            drop(ranges);
            story.disk.power_cycle();
            crashes += 1;
            wrong += u64::from(story.recover().is_err());
        }
        assert!(crashes > 40, "{crashes}");
        assert_eq!(
            wrong > 0,
            ignores_syncs,
            "{wrong} of {crashes} crashes, syncs ignored: {ignores_syncs}"
        );
    }
}

#[test]
fn transactions_do_not_see_each_other_and_do_not_overlap() {
    let story = Story::new(1);
    let ranges = story.open().unwrap();
    ranges.write(0, b"before", Level::Persistent).unwrap();
    let mut first = ranges.begin();
    first.write(2, b"XX").unwrap();
    assert_eq!(ranges.read(0, 6).unwrap(), b"before");
    assert_eq!(first.read(0, 6).unwrap(), b"beXXre");
    let mut second = ranges.begin();
    assert!(matches!(second.write(3, b"Y"), Err(RangesError::Conflict(n)) if n == first.number()));
    second.write(4, b"ZZ").unwrap();
    drop(second);
    first.commit(Level::Persistent).unwrap();
    assert_eq!(ranges.read(0, 6).unwrap(), b"beXXre");
    assert!(matches!(ranges.read(2999, 2), Err(RangesError::OutOfRange { .. })));
    assert!(matches!(ranges.read(u64::MAX, 2), Err(RangesError::OutOfRange { .. })));
}

#[test]
fn a_snapshot_that_is_damaged_or_missing_is_refused() {
    let story = Story::new(1);
    let ranges = story.open().unwrap();
    ranges.write(0, b"something", Level::Persistent).unwrap();
    ranges.checkpoint().unwrap();
    ranges.close().unwrap();
    let names = crate::storage::Storage::list(&story.disk).unwrap();
    let name = names.iter().find(|name| name.starts_with("snapshot-")).unwrap();
    for byte in [0, 4, 8, 16, 24, 2000] {
        story.disk.flip_bit(name, byte, 1);
        assert!(matches!(story.open().map(drop), Err(RangesError::Snapshot { .. })));
        story.disk.flip_bit(name, byte, 1);
    }
    assert_eq!(story.open().unwrap().read(0, 9).unwrap(), b"something");
    story.disk.take(name);
    assert!(matches!(story.open().map(drop), Err(RangesError::Snapshot { .. })));
}
