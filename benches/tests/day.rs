//! A short day on a simulated rack: connections that move come close to the best backend of each phase.

use farcall::rack::sim::Costs;
use farcall_bench::hybrid::{Day, Options, compare, day};

/// The backend that is best for few clients, and the one for many.
const BACKENDS: [&str; 2] = ["write_imm", "datagram"];

/// The server has had all clients try each backend once by then, and tries none again soon.
const TRIED_MS: usize = 100;

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes where it is not optimized")]
fn clients_are_on_the_best_backend_soon_after_their_number_has_changed() {
    let day = day(200_000_000, 200);
    let phases = ["few clients", "a crowd", "few clients again"];
    let phases = phases.map(|name| day.phases.iter().find(|phase| phase.name == name));
    let day = Day { phases: phases.into_iter().flatten().cloned().collect(), ..day };
    let options = Options { nic: Costs::connectx3(), server_threads: 2, client_nodes: 11, seed: 1 };
    let report = compare(&options, &day, &BACKENDS, |_, _| {}).unwrap();
    println!("{}", report.table().unwrap());
    let of = |phase: usize| {
        let runs = report.fixed.iter().map(|(_, run)| run.phases[phase].calls_after(TRIED_MS));
        let runs: Vec<_> = runs.collect();
        (runs, report.moving.phases[phase].calls_after(TRIED_MS))
    };
    for (phase, best) in [(0, 0), (1, 1), (2, 0)] {
        let (fixed, moving) = of(phase);
        assert!(fixed[best] > fixed[1 - best], "phase {phase}: {fixed:?}");
        assert!(moving * 10 > fixed[best] * 9, "phase {phase}: {moving} of {fixed:?}");
    }
}
