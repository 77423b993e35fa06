//! `farcall-bench ablate` on a simulated rack, where runs are repeatable.

use std::time::Duration;

use farcall_bench::ablate::{Part, run};
use farcall_bench::compare::{Options, RackOptions, SIMULATED};
use farcall_bench::echo::Mode;

#[test]
fn each_optimization_is_disabled_and_added() {
    let report = run(Options {
        device: SIMULATED.into(),
        contenders: Vec::new(),
        clients: vec![12],
        sizes: vec![32],
        windows: vec![4],
        one_at_a_time: false,
        mode: Mode::Threads,
        time: Duration::ZERO,
        cores: [0, 1],
        rack: RackOptions { nic: Some("connectx3".into()), server_threads: None },
    });
    let report = report.unwrap();
    assert_eq!(report.failures(), 0, "{}", report.table());
    let of = |part| report.measured.iter().filter(move |measured| measured.part == part);
    let whole = of(Part::Whole).next().unwrap();
    let added: Vec<_> = of(Part::Added).collect();
    assert_eq!(added.last().unwrap().run.calls, whole.run.calls, "all that is added is the whole");
    assert!(whole.run.rate > 1.5 * added[0].run.rate, "{}", report.table());
    assert_eq!(of(Part::Without).count() + 1, added.len());
    let picture = report.svg().unwrap();
    for measured in &report.measured {
        assert!(picture.contains(&measured.run.backend));
        assert!(report.table().contains(&measured.run.backend));
    }
}
