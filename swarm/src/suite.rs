//! The run of one seed: a case of the backends' own suite, on a bad day.
//!
//! Its cases expect that all goes well in the end, so only what a connection makes up for goes wrong: messages
//! that are lost, late, or come twice, pauses, and partitions that heal before a peer counts as gone.

use std::sync::{Arc, Mutex, PoisonError};

use farcall_transports::Backend;
use farcall_transports_conformance::rack::{Nodes, RackFixture, last_run};
use farcall_transports_conformance::{
    COMMON, Case, Fixture, Need, Outcome as Ended, run as run_case,
};

use crate::dice::Dice;
use crate::outcome::Outcome;
use crate::plan::{Plan, Severity, Step, weather};
use crate::records::Counts;
use crate::trace::Trace;

/// Cases that are left to the suite itself.
const LEFT_OUT: [&str; 3] = [
    // Bytes by the million, which take seconds here.
    "sizes::a_message_of_64_mib_passes",
    "slow::unread_responses_keep_no_memory_from_others",
    // It has seeds of its own, and tells of them.
    "swarm::everything_at_once",
];

/// What becomes of a seed.
pub(crate) fn run(seed: u64, backend: &dyn Backend, trace: &Trace) -> Outcome {
    let dice = &mut Dice::new(seed, 5);
    let cases: Vec<&Case> = COMMON
        .iter()
        .filter(|case| case.needs == [Need::Nothing] && !LEFT_OUT.contains(&case.name))
        .collect();
    play(seed, backend, dice.pick(&cases), trace)
}

fn play(seed: u64, backend: &dyn Backend, case: &Case, trace: &Trace) -> Outcome {
    // Drawn when the case has its rack, and told of at its end.
    let told = Arc::new(Mutex::new(String::new()));
    let (trace, tell) = (trace.clone(), Arc::clone(&told));
    let backend = backend.name();
    let address = format!("sim://suite?backend={backend}");
    let fixture = RackFixture::new(&address, seed).map(|fixture| {
        fixture.config(weather(seed)).on_begin(move |rack, Nodes { clients, servers }| {
            trace.begin(rack);
            let plan = Plan::draw(seed, Severity::Masked, servers[0], clients);
            *tell.lock().unwrap_or_else(PoisonError::into_inner) = plan.to_string();
            for (at_ns, step) in plan.steps {
                if let Step::Fault(fault) = step {
                    rack.schedule(at_ns, fault);
                }
            }
        })
    });
    let ended = match fixture {
        Ok(fixture) => {
            let fixture: Arc<dyn Fixture> = Arc::new(fixture);
            run_case(&fixture, case)
        }
        Err(error) => Ended::Failed(error.to_string()),
    };
    let last = last_run();
    let plan = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Outcome {
        seed,
        what: format!("{} over {backend}", case.name),
        wrong: (ended != Ended::Passed).then(|| ended.to_string()),
        plan,
        hash: last.as_ref().map_or(0, |last| last.trace_hash),
        now_ns: last.as_ref().map_or(0, |last| last.now_ns),
        counts: Counts::default(),
        trace: last.map_or_else(Vec::new, |last| last.trace),
    }
}
