//! Random lives of a log, one after the other, on a disk that fails: thousands of seeds. Planted bugs are found within 200.

use rand::Rng;

use super::story::{End, Story};
use crate::planted::{Bug, plant};
use crate::storage::sim::Faults;
use crate::{Error, Level};

/// How many seeds run; `FARCALL_PERSIST_SEEDS` has more run.
fn seeds() -> u64 {
    let more = std::env::var("FARCALL_PERSIST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    more.unwrap_or(1000)
}

/// A planted bug is found within this many.
const SEEDS_FOR_A_BUG: u64 = 200;

const LIVES: usize = 8;
const STEPS: usize = 32;

/// A short life has at most this many: it writes less than a torn tail of the life before may have left.
const STEPS_OF_SHORT_LIVES: usize = 4;

fn some_level(story: &mut Story) -> Level {
    match story.random.random_range(0..10) {
        0 => Level::Received,
        1 | 2 => Level::Visible,
        _ => Level::Persistent,
    }
}

fn step(story: &mut Story) -> Result<(), Error> {
    match story.random.random_range(0..32) {
        0 => story.checkpoint(),
        1 => story.truncate(),
        2 => story.flush(),
        3..=8 => story.wait(),
        _ => {
            // Most records take a multiple of 32 bytes, as those that the log makes do: so records of different lives meet.
            let length = match story.random.random_range(0..16) {
                0 => story.random.random_range(0..=3000),
                1 => story.random.random_range(0..=800),
                2..=4 => 32 * story.random.random_range(1..=16),
                _ => 32 * story.random.random_range(1..=2),
            };
            let level = some_level(story);
            story.append(length, level)?;
            let keep = story.random.random_range(0..24);
            story.wait_but(keep)
        }
    }
}

/// What fails in a life.
fn some_faults(story: &mut Story) -> Faults {
    let random = &mut story.random;
    let mut faults = Faults::default();
    match random.random_range(0..4) {
        0 => {}
        1 => faults.failing_syncs = [random.random_range(0..12)].into(),
        _ => faults.power_cut_at = Some(random.random_range(0..40)),
    }
    faults
}

/// A log after a failure: it can be read; and if a record may be lost, it acknowledges nothing.
fn check_after(failure: &Error, story: &mut Story) -> Result<(), String> {
    if story.disk.is_off() || story.log.is_none() {
        return Ok(());
    }
    if matches!(failure, Error::Poisoned(_))
        && story.append(10, Level::Persistent).and_then(|()| story.wait()).is_ok()
    {
        return Err("a log whose sync failed acknowledges".to_owned());
    }
    story.check(None)
}

fn life(story: &mut Story) -> Result<(), String> {
    let faults = some_faults(story);
    story.disk.set_faults(faults);
    let is_short = story.random.random();
    let most = if is_short { STEPS_OF_SHORT_LIVES } else { STEPS };
    let steps = story.random.random_range(1..=most);
    let worked = (0..steps).try_for_each(|_| step(story));
    if let Err(why) = worked {
        check_after(&why, story)?;
        if matches!(why, Error::Poisoned(_)) && !story.disk.is_off() && story.random.random() {
            story.open_again()?;
            // It may fail again, with the power; what it acknowledges counts.
            let _ = (0..steps).try_for_each(|_| step(story));
        }
    } else if story.random.random_range(0..3) == 0 && story.close().is_err() {
        // The disk fails the close, too.
        story.log = None;
    }
    let how = if story.disk.is_off() || story.random.random_range(0..3) > 0 {
        End::PowerCut
    } else {
        End::Killed
    };
    story.end(how);
    story.recover(how)
}

fn run(seed: u64) -> Result<(), String> {
    let mut story = Story::new(seed);
    story.open().map_err(|why| why.to_string())?;
    for number in 0..LIVES {
        life(&mut story).map_err(|what| format!("seed {seed}, life {number}: {what}"))?;
    }
    Ok(())
}

#[test]
fn acknowledged_records_survive_on_all_seeds() {
    for seed in 0..seeds() {
        run(seed).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[track_caller]
fn is_found(bug: Bug, signs: &[&str]) {
    plant(Some(bug));
    let found = (0..SEEDS_FOR_A_BUG).find_map(|seed| Some((seed, run(seed).err()?)));
    plant(None);
    let Some((seed, what)) = found else {
        panic!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds");
    };
    assert!(signs.iter().any(|sign| what.contains(sign)), "another bug than {bug:?}? {what}");
    run(seed).unwrap_or_else(|what| panic!("without the bug: {what}"));
    println!("{bug:?}: {what}");
}

#[test]
fn an_acknowledgement_before_the_sync_is_found() {
    is_found(Bug::AcknowledgedBeforeSync, &["is lost", "are damaged"]);
}

#[test]
fn a_torn_tail_that_is_accepted_is_found() {
    is_found(Bug::TornTailAccepted, &["not what was appended", "invented"]);
}

#[test]
fn a_record_that_was_cut_and_comes_back_is_found() {
    is_found(Bug::OldLifeAccepted, &["invented", "not what was appended", "missing"]);
}

#[test]
fn an_index_that_is_believed_is_found() {
    is_found(Bug::IndexBelieved, &["is lost", "recovery", "invented", "not what was"]);
}

#[test]
fn a_poisoned_log_that_answers_is_found() {
    is_found(Bug::PoisonedLogAnswers, &["is lost", "acknowledges", "are damaged"]);
}

#[test]
fn names_that_are_not_synced_are_found() {
    is_found(Bug::NamesNotSynced, &["is lost", "missing", "is no segment"]);
}

#[test]
fn a_recovered_tail_that_is_not_synced_is_found() {
    is_found(Bug::TailNotSynced, &["is lost", "is damaged", "are damaged"]);
}
