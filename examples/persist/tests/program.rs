//! The program, as users run it.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use farcall_persist::{Level, Log, Options};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farcall-persist")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_kills_tears_flips_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let output = run(&["demo", "--seconds", "1", "--no-table", "--dir", dir, "--seed", "7"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    for sign in [" 0 lost or wrong", "processes killed", "sectors torn", ": refused"] {
        assert!(out.contains(sign), "no `{sign}` in {out}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "it leaves nothing behind");
}

#[test]
fn bench_prints_each_way_next_to_the_limit_of_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let output = run(&["bench", "--seconds", "0.2", "--writers", "1,3", "--dir", dir]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    for way in
        ["disk: write + fdatasync", "log, 1 writers, persistent", "log, 3 writers", "in flight"]
    {
        let row = out.lines().find(|line| line.contains(way)).unwrap_or_else(|| panic!("{out}"));
        let figures = row.split_whitespace().rev().filter_map(|word| word.parse::<f64>().ok());
        assert!(figures.filter(|figure| *figure > 0.0).count() >= 4, "{row}");
    }
}

/// A log of some records, and where the second of them is in its file.
fn a_log(directory: &Path) -> (PathBuf, u64) {
    let log = Log::open(directory, Options::default().segment_bytes(1 << 20)).unwrap();
    let lsns = [b"one".to_vec(), b"two\n".to_vec(), b"three".to_vec()]
        .map(|payload| log.append(&payload, Level::Persistent).unwrap().wait().unwrap().lsn);
    (directory.join("segment-0000000000000001.log"), lsns[1].0 % (1 << 20))
}

#[test]
fn damage_is_shown_and_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let (file, at) = a_log(directory.path());
    let sound = run(&["verify", dir]);
    assert!(sound.status.success(), "{}", text(&sound.stdout));
    let dumped = run(&["dump", dir]);
    assert!(dumped.status.success());
    assert!(text(&dumped.stdout).contains("Entry\t0\t1\t4\ttwo\\n\n"), "{}", text(&dumped.stdout));

    let mut bytes = fs::read(&file).unwrap();
    bytes[usize::try_from(at).unwrap() + 33] ^= 4;
    fs::write(&file, bytes).unwrap();
    let damaged = run(&["verify", dir]);
    assert_eq!(damaged.status.code(), Some(1));
    let shown = text(&damaged.stdout);
    assert!(shown.contains("damaged") && shown.contains(&format!("byte {at}")), "{shown}");

    let repaired = run(&["repair", dir]);
    assert!(repaired.status.success(), "{}", text(&repaired.stderr));
    assert!(text(&repaired.stdout).contains("given up"));
    let after = run(&["verify", dir]);
    assert_eq!(after.status.code(), Some(1), "something is lost");
    let dumped = text(&run(&["dump", dir]).stdout);
    assert!(dumped.contains("\tone\n") && dumped.contains("\tthree\n") && dumped.contains("Lost"));
}

#[test]
fn what_is_no_log_is_told() {
    let directory = tempfile::tempdir().unwrap();
    for (dir, sign) in [
        (directory.path().join("none"), "cannot read"),
        (directory.path().into(), "there is no log here"),
    ] {
        let output = run(&["verify", dir.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(sign), "{}", text(&output.stderr));
    }
}

#[test]
fn a_log_that_is_open_is_not_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(directory.path(), Options::default()).unwrap();
    let output = run(&["repair", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("is in use by process"), "{}", text(&output.stderr));
    drop(log);
}

#[test]
fn check_prints_the_table_the_reasons_and_what_auto_takes() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    for (options, choice, reason) in [
        (&[][..], "auto takes, for 64 bytes: call with the data", "page cache"),
        (
            &["--domain", "adr-ddio-off", "--size", "8192"],
            "auto takes, for 8192 bytes: WRITE + READ",
            "WRITE alone: its completion",
        ),
        (
            &["--domain", "adr-ddio-on", "--flush", "through-caches", "--size", "2000"],
            "auto takes, for 2000 bytes: WRITE + FLUSH",
            "last-level cache",
        ),
    ] {
        let output = run(&[&["check", "--dir", dir], options].concat());
        let out = text(&output.stdout);
        assert!(output.status.success(), "{out}{}", text(&output.stderr));
        for sign in [choice, reason, "ADR, DDIO on", "battery incl. NIC"] {
            assert!(out.contains(sign), "no `{sign}` in {out}");
        }
    }
}
