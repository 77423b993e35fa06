//! The run of one seed: a case of the conformance suite under faults.
//!
//! Its cases expect that connections survive, so there are only faults that a connection repairs: lost, delayed
//! and duplicated messages, pauses, and partitions that heal before a peer counts as dead.

use std::sync::{Arc, Mutex, PoisonError};

use farcall_transports::hybrid;
use farcall_transports::planted::plant;
use farcall_transports_conformance::rack::{Nodes, RackFixture, last_run};
use farcall_transports_conformance::{
    Case, Fixture, Need, Outcome as Ended, cases_of, run as run_case,
};

use crate::Mutation;
use crate::dice::Dice;
use crate::outcome::Outcome;
use crate::plan::{Plan, Severity, Step, rack_config};
use crate::records::Counts;
use crate::trace::Trace;

/// The case of hostile clients.
pub(crate) const HOSTILE: &str = "hostile_swarm::clients_that_send_anything_disturb_nobody";

/// The case of a client that calls more often than it may.
pub(crate) const OVER_QUOTA: &str = "quotas::calls_beyond_the_quota_do_not_run";

/// Cases that are not run here.
const LEFT_OUT: [&str; 3] = [
    // Transfers millions of bytes, which takes seconds here.
    "sizes::a_message_of_64_mib_passes",
    "slow::unread_responses_keep_no_memory_from_others",
    // Has its own seeds and reports them.
    "swarm::everything_at_once",
];

/// Cases in which a full window refuses a call: not over `hybrid`, where faults may have a connection move just then, and each lane has a
/// window of its own.
const FULL_WINDOW: [&str; 3] =
    ["windows::a_window_of_one", "windows::a_window_of_two", "windows::a_window_of_64"];

/// The cases over a backend that run under faults, or, if they are of hostile peers, beside such peers that do anything.
fn cases(backend: &str) -> impl Iterator<Item = &'static Case> {
    let is_hostile = |case: &Case| case.name == HOSTILE && !case.needs.contains(&Need::Threads);
    let moves = backend == hybrid::NAME;
    let may_move = move |case: &Case| moves && FULL_WINDOW.contains(&case.name);
    let is_honest = move |case: &Case| {
        case.needs == [Need::Nothing] && !LEFT_OUT.contains(&case.name) && !may_move(case)
    };
    cases_of(backend).filter(move |case| is_honest(case) || is_hostile(case))
}

/// Its peers do anything: how fast the honest ones are beside them shows only without other faults.
fn is_hostile(case: &Case) -> bool {
    [HOSTILE, OVER_QUOTA].contains(&case.name)
}

/// The case of this name over a backend, if it runs here.
pub fn case(backend: &str, name: &str) -> Option<&'static Case> {
    // No seed picks it.
    let of_bug = cases_of(backend).find(|case| case.name == OVER_QUOTA);
    cases(backend).chain(of_bug).find(|case| case.name == name)
}

/// Runs a seed with the case that it picks.
pub(crate) fn run(seed: u64, backend: &str, trace: &Trace) -> Outcome {
    let dice = &mut Dice::new(seed, 5);
    let cases: Vec<_> = cases(backend).collect();
    play(seed, backend, dice.pick(&cases), None, trace)
}

/// Runs a seed with a case.
pub(crate) fn play(
    seed: u64,
    backend: &str,
    case: &Case,
    mutation: Option<Mutation>,
    trace: &Trace,
) -> Outcome {
    // Drawn when the case creates its rack, and reported at its end.
    let told = Arc::new(Mutex::new(String::new()));
    let (trace, tell, is_alone) = (trace.clone(), Arc::clone(&told), is_hostile(case));
    let address = format!("sim://suite?backend={backend}");
    let fixture = RackFixture::new(&address, seed).map(|fixture| {
        fixture.config(rack_config(seed)).on_begin(move |rack, Nodes { clients, servers }| {
            trace.begin(rack);
            if is_alone {
                return;
            }
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
            // Of this thread, which runs the whole rack.
            plant(mutation.and_then(Mutation::bug));
            let ended = run_case(&fixture, case);
            plant(None);
            ended
        }
        Err(error) => Ended::Failed(error.to_string()),
    };
    let last = last_run();
    let plan = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Outcome {
        seed,
        what: format!("{} over {backend}", case.name),
        failure: (ended != Ended::Passed).then(|| ended.to_string()),
        plan,
        hash: last.as_ref().map_or(0, |last| last.trace_hash),
        now_ns: last.as_ref().map_or(0, |last| last.now_ns),
        counts: Counts::default(),
        trace: last.map_or_else(Vec::new, |last| last.trace),
    }
}
