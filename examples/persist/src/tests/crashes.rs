//! The power fails at every operation, of the script and of the recovery after it. Each test also runs with syncs that do nothing, and must
//! fail then: or it would prove nothing.

use super::story::{Script, Story, assert_sound, crash_everywhere};
use crate::storage::sim::Faults;
use crate::{Error, Level};

/// How many disks each script runs on; more with `FARCALL_PERSIST_SEEDS`.
fn disks() -> std::ops::Range<u64> {
    let more = std::env::var("FARCALL_PERSIST_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    0..more.map_or(6, |seeds: u64| (seeds / 100).max(6))
}

#[track_caller]
fn survives(before: Script, script: Script) {
    assert_sound(&crash_everywhere((before, script), disks(), &Faults::default()));
    let lying = Faults { ignores_syncs: true, ..Faults::default() };
    let (lost, crashes) = crash_everywhere((before, script), 0..6, &lying);
    assert!(
        !lost.is_empty(),
        "without syncs, {crashes} crashes lost nothing: the test sees no loss"
    );
}

fn nothing(_: &mut Story) -> Result<(), Error> {
    Ok(())
}

fn some_records(story: &mut Story) -> Result<(), Error> {
    for length in [10, 700, 0, 1500, 64] {
        story.append(length, Level::Persistent)?;
        story.wait_but(1)?;
    }
    story.wait()
}

fn fill_a_segment(story: &mut Story) -> Result<(), Error> {
    for _ in 0..3 {
        some_records(story)?;
    }
    Ok(())
}

#[test]
fn one_writer_that_waits_for_each_record() {
    survives(nothing, |story| {
        for length in [0, 100, 600, 1100] {
            story.append(length, Level::Persistent)?;
            story.wait()?;
        }
        Ok(())
    });
}

#[test]
fn a_pipeline_of_eight_records_in_one_batch() {
    survives(some_records, |story| {
        for _ in 0..2 {
            for length in [0, 100, 300, 40, 40, 500, 8, 1000] {
                story.append(length, Level::Persistent)?;
            }
            story.wait()?;
        }
        Ok(())
    });
}

#[test]
fn records_of_several_levels() {
    survives(some_records, |story| {
        for level in [Level::Visible, Level::Received, Level::Persistent, Level::Visible] {
            story.append(300, level)?;
            story.wait()?;
        }
        story.flush()?;
        story.append(20, Level::Visible)?;
        story.wait()
    });
}

#[test]
fn a_change_of_segment() {
    survives(nothing, |story| {
        fill_a_segment(story)?;
        story.append(3000, Level::Persistent)?;
        story.wait()
    });
}

#[test]
fn a_change_of_segment_without_syncs_of_names_loses_records() {
    let lying = Faults { ignores_name_syncs: true, ..Faults::default() };
    let script: (Script, Script) = (some_records, fill_a_segment);
    let (lost, crashes) = crash_everywhere(script, 0..6, &lying);
    assert!(!lost.is_empty(), "{crashes} crashes lost nothing");
}

#[test]
fn a_checkpoint() {
    survives(fill_a_segment, |story| {
        story.append(50, Level::Persistent)?;
        story.checkpoint()?;
        story.append(50, Level::Persistent)?;
        story.wait()?;
        story.checkpoint()
    });
}

#[test]
fn a_truncation_and_segments_of_files_that_were_used_before() {
    fn before(story: &mut Story) -> Result<(), Error> {
        fill_a_segment(story)?;
        fill_a_segment(story)
    }
    survives(before, |story| {
        story.checkpoint()?;
        story.truncate()?;
        fill_a_segment(story)?;
        story.checkpoint()?;
        story.truncate()?;
        fill_a_segment(story)
    });
}

#[test]
fn a_clean_stop_and_a_start() {
    survives(fill_a_segment, |story| {
        story.close()?;
        story.open()?;
        story.append(50, Level::Persistent)?;
        story.wait()?;
        story.close()?;
        story.open()?;
        story.append(50, Level::Persistent)?;
        story.wait()
    });
}

#[test]
fn a_log_that_is_made() {
    let outcome = crash_everywhere(
        (nothing, |story| {
            story.close()?;
            story.open()
        }),
        disks(),
        &Faults::default(),
    );
    assert!(outcome.0.is_empty(), "{:?}", outcome.0);
    // The very first operations, before there is a log.
    for seed in 0..32 {
        for at in 0..8 {
            let mut story = Story::new(seed);
            story.disk.set_faults(Faults { power_cut_at: Some(at), ..Faults::default() });
            let opened = story.open();
            assert_eq!(opened.is_err(), story.disk.is_off());
            story.end(super::story::End::PowerCut);
            story.recover(super::story::End::PowerCut).unwrap();
        }
    }
}
