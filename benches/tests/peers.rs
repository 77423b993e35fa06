//! `farcall-bench peers`: each peer answers in each cell and after silence, and is in the tables, the JSON and the picture.
//! Not timed: UCX and iceoryx2, which are not installed everywhere, are replaced by a program that speaks as theirs do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use farcall_bench::peers::{Options, Programs, kinds, run, svg};

/// Answers every order at once.
const PROGRAM: &str = r#"#!/bin/sh
if [ "$1" = server ]; then echo "ready there-$3-$4"; exec cat > /dev/null; fi
[ "$5" = "there-$3-$4" ] || exit 1
echo ready
while read order nanos; do echo 'done 2 2000 1'; printf 'abcd'; done
"#;

fn options(list: &str, folder: &Path) -> Options {
    let program = folder.join("peer");
    fs::write(&program, PROGRAM).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Options {
        kinds: kinds(list).unwrap(),
        sizes: vec![32, 3000],
        windows: vec![1, 8],
        time: Duration::from_millis(5),
        silences: vec![Duration::from_millis(1)],
        silent_for: Duration::ZERO,
        cores: [0, 1],
        programs: Programs {
            bench: env!("CARGO_BIN_EXE_farcall-bench").into(),
            ucx: Some(program.clone()),
            iceoryx2: Some(program),
        },
    }
}

#[test]
fn all_peers_answer_in_each_cell_and_after_silence() {
    let folder = tempfile::tempdir().unwrap();
    let report = run(&options("local,tcp", folder.path())).expect("a measurement");
    let table = report.table();
    assert_eq!(report.failures(), 0, "{table}");
    let cells: Vec<_> = report.cells.iter().map(|cell| (cell.size, cell.window)).collect();
    assert_eq!(cells, [(32, 1), (3000, 1), (32, 8), (3000, 8)]);
    let all: Vec<_> = report.peers.iter().map(|name| name.peer).collect();
    assert_eq!(all.len(), 13);
    for cell in &report.cells {
        assert!(cell.line_ns > 0 && cell.futex_ns > 0, "{cell:?}");
        let measured: Vec<_> = cell.runs.iter().map(|run| run.peer).collect();
        let can = |peer: &&str| cell.window == 1 || !peer.ends_with("-wait");
        let expected: Vec<_> = all.iter().copied().filter(can).collect();
        assert_eq!(measured, expected, "a blocked thread has one call outstanding");
        for run in &cell.runs {
            assert!(run.calls > 0 && run.rate > 0.0 && run.rounds >= 5, "{run:?}");
            assert!(run.p50_ns > 0 && run.p50_ns <= run.p99_ns, "{run:?}");
        }
    }
    let [silence] = &report.silences[..] else { panic!("{:?}", report.silences) };
    let silent: Vec<_> = silence.runs.iter().map(|run| run.peer).collect();
    assert_eq!(silent, all);
    assert!(silence.futex_p50_ns > 0 && silence.futex_p50_ns <= silence.futex_max_ns);
    assert!(table.contains("| futex, there and back "), "{table}");
    for run in &silence.runs {
        assert!(run.calls == 5 && run.p50_ns > 0 && run.p50_ns <= run.max_ns, "{run:?}");
    }

    let picture = svg(&report).unwrap();
    for name in &report.peers {
        let rows = table.lines().filter(|line| line.starts_with(&format!("| {} ", name.title)));
        assert_eq!(
            rows.count(),
            2,
            "{} has a row of 32 B and one of silence in {table}",
            name.title
        );
        assert!(picture.contains(&name.title.replace('`', "")), "{} is drawn", name.title);
    }
    has_the_fields_that_scripts_read(&serde_json::to_value(&report).unwrap());
}

fn has_the_fields_that_scripts_read(report: &serde_json::Value) {
    assert_eq!(report["bench"], "peers");
    for field in ["cores", "shared_cache_level", "peers"] {
        assert!(report.get(field).is_some(), "{field}");
    }
    let cell = &report["cells"][0];
    for field in ["size", "window", "line_ns", "futex_ns"] {
        assert!(cell[field].is_u64(), "{field} in {cell}");
    }
    for field in ["peer", "rounds", "calls", "p50_ns", "p99_ns", "rate", "failure"] {
        assert!(cell["runs"][0].get(field).is_some(), "{field} in {cell}");
    }
    let silence = &report["silences"][0];
    assert_eq!((&silence["silence_ns"], &silence["size"]), (&1_000_000.into(), &32.into()));
    for field in ["futex_p50_ns", "futex_max_ns"] {
        assert!(silence[field].is_u64(), "{field} in {silence}");
    }
    for field in ["peer", "calls", "p50_ns", "max_ns", "failure"] {
        assert!(silence["runs"][0].get(field).is_some(), "{field} in {silence}");
    }
}

#[test]
fn a_peer_that_fails_says_why_and_the_others_continue() {
    let folder = tempfile::tempdir().unwrap();
    let options = options("ucx,iceoryx2", folder.path());
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, PROGRAM.replace("done 2 2000 1", "nothing")).unwrap();
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o755)).unwrap();
    let programs = Programs { ucx: Some(wrong), ..options.programs.clone() };
    let report = run(&Options { programs, ..options }).expect("a measurement");
    assert_eq!(report.failures(), 5, "in four cells and after silence");
    for cell in &report.cells {
        let why = cell.runs[0].failure.as_deref().expect("the first peer failed");
        assert!(why.contains("`nothing`"), "{why}");
        assert!(cell.runs[1].failure.is_none() && cell.runs[1].calls > 0, "{cell:?}");
    }
    assert!(report.table().contains("failed: ucx, 32 B, window 1: the process said `nothing`"));
}

#[test]
fn a_peer_whose_program_is_missing_is_an_error_that_says_how_to_build_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = options("ucx", folder.path());
    let programs = Programs { ucx: None, ..options.programs.clone() };
    let why = run(&Options { programs, ..options }).unwrap_err().to_string();
    assert!(why.contains("cargo xtask peers"), "{why}");
}
