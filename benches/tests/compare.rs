//! `farcall-bench compare`: measures every backend in every cell, even if one fails.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farcall_bench::compare::{Options, RackOptions, backends, run, svg};
use farcall_bench::echo::Mode;
use farcall_transports::registry;

/// Only one test at a time may use the two cores.
static CORES: Mutex<()> = Mutex::new(());

fn options(device: &str) -> Options {
    Options {
        device: device.into(),
        contenders: backends("all").unwrap(),
        clients: vec![1, 3],
        sizes: vec![32, 20_000],
        windows: vec![2],
        one_at_a_time: false,
        mode: Mode::Threads,
        time: Duration::from_millis(20),
        cores: [0, 1],
        rack: RackOptions::default(),
    }
}

/// Checks that each backend has a result in each cell, with ratios.
fn is_whole(options: &Options) {
    let report = run(options).unwrap();
    assert_eq!(report.failures(), 0, "{}", report.table());
    assert_eq!(report.cells.len(), 4);
    for cell in &report.cells {
        let names: Vec<_> = cell.runs.iter().map(|run| run.backend.as_str()).collect();
        assert_eq!(names, registry::names(), "all of them, in their order");
        assert_eq!(cell.runs[0].of_first, 1.0);
        for run in &cell.runs {
            assert!(run.calls > 0 && run.rate > 0.0 && run.ratio > 0.0, "{run:?}");
            assert!(run.p50_ns > 0 && run.p50_ns <= run.p99_ns, "{run:?}");
        }
    }
    let picture = svg(&report).unwrap();
    for name in registry::names() {
        assert!(picture.contains(name), "{name} is in the picture");
    }
}

#[test]
fn backends_alternate_on_the_cores() {
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    is_whole(&options("shm"));
}

#[test]
#[cfg(feature = "sim")]
fn each_backend_has_its_own_rack() {
    is_whole(&options("sim"));
    let other = RackOptions { nic: Some("connectx9".into()), server_threads: None };
    let error = run(&Options { rack: other, ..options("sim") }).unwrap_err().to_string();
    assert!(error.contains("`connectx9`") && error.contains("connectx5"), "{error}");
}

#[test]
fn one_thing_is_varied_at_a_time_and_ratios_are_to_the_first_backend() {
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let contenders = backends("write_imm,rfp").unwrap();
    let windows = vec![1, 8];
    let options = Options { contenders, windows, one_at_a_time: true, ..options("shm") };
    let report = run(&options).unwrap();
    assert_eq!(report.failures(), 0, "{}", report.table());
    let ratios = report.ratios();
    let lines: Vec<_> = ratios.lines().collect();
    let [rates, _, first, second, third, fourth, "", medians, ..] = lines[..] else {
        panic!("{ratios}")
    };
    assert_eq!(rates, "| rate | `write_imm`, k calls/s | `rfp` |");
    assert_eq!(medians, "| median | `write_imm`, us | `rfp` |");
    assert!(first.starts_with("| 1 client, 32 B, window 1 | "), "{first}");
    assert!(second.starts_with("| 3 clients | ") && third.starts_with("| 20000 B | "), "{ratios}");
    let run = &report.cells[3].runs[1];
    let last = format!(" {:.2} |", run.of_first);
    assert!(fourth.starts_with("| window 8 | ") && fourth.ends_with(&last), "{fourth}: {run:?}");
}

#[test]
fn a_failed_measurement_says_why_and_the_others_continue() {
    let _cores = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let report = run(&Options { sizes: vec![32, 512 << 20], clients: vec![1], ..options("shm") });
    let report = report.unwrap();
    assert_eq!(report.failures(), registry::ALL.len());
    let [small, large] = &report.cells[..] else { panic!("{report:?}") };
    assert!(small.runs.iter().all(|run| run.calls > 0));
    let why = large.runs[0].failure.as_deref().unwrap();
    assert!(why.contains("a smaller size"), "{why}");
    assert!(report.table().contains("failed: "));
}

#[test]
fn an_unknown_device_is_an_error_that_names_it() {
    let error = run(&options("mlx9_9")).unwrap_err().to_string();
    assert!(error.contains("`mlx9_9`") && error.contains("shm"), "{error}");
    let rack = RackOptions { nic: Some("connectx3".into()), server_threads: None };
    let error = run(&Options { rack, ..options("shm") }).unwrap_err().to_string();
    assert!(error.contains("`--nic`") && error.contains("--device sim"), "{error}");
}
