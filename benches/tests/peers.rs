//! `farcall-bench peers`: each peer answers with each window.

use std::time::Duration;

use farcall_bench::peers::{Options, run};

#[test]
fn all_peers_answer_with_each_window() {
    let time = Duration::from_millis(200);
    let report = run(&Options { windows: vec![1, 8], time, cores: [0, 1] }).expect("a measurement");
    let windows: Vec<_> = report.cells.iter().map(|cell| cell.window).collect();
    assert_eq!(windows, [1, 8]);
    for cell in &report.cells {
        let peers: Vec<_> = cell.runs.iter().map(|run| run.peer).collect();
        let expected = ["farcall tcp, polling", "farcall tcp, async", "tarpc tcp", "tarpc unix"];
        assert_eq!(peers, expected);
        for run in &cell.runs {
            assert!(run.calls > 0 && run.rate > 0.0 && run.rounds >= 5, "{run:?}");
            assert!(run.p50_ns > 0 && run.p50_ns <= run.p99_ns, "{run:?}");
            assert!(run.p50_ratio > 0.0 && run.rate_ratio > 0.0, "{run:?}");
        }
        assert_eq!((cell.runs[2].p50_ratio, cell.runs[2].rate_ratio), (1.0, 1.0));
    }
    assert!(report.table().contains("tarpc unix"));
}
