//! The outcome of a run.

use std::any::Any;
use std::cell::RefCell;
use std::{fmt, panic};

use crate::records::Counts;

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was run.
    pub what: String,
    /// The violated property, if any.
    pub failure: Option<String>,
    /// The faults.
    pub plan: String,
    /// The hash of the run: the same for the same seed.
    pub hash: u64,
    /// The virtual time at the end.
    pub now_ns: u64,
    /// How many calls ended in which way.
    pub counts: Counts,
    /// The last lines of the rack's trace, if they were kept.
    pub trace: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, what, failure, plan, hash, now_ns, counts, trace, .. } = self;
        writeln!(f, "seed {seed}, {what}: {}", failure.as_deref().unwrap_or("passed"))?;
        writeln!(f, "faults:\n{}", plan.trim_end())?;
        write!(
            f,
            "in {now_ns} ns: {} calls answered, {} with unknown outcome, {} not run; hash {hash:#018x}",
            counts.answered, counts.unknown, counts.never_ran
        )?;
        if !trace.is_empty() {
            write!(f, "\nthe end of the trace:")?;
        }
        trace.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

thread_local! {
    /// Where the last panic of this thread happened.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Suppresses the printing of panics: an outcome reports them, and some cases of the suite panic on purpose.
pub fn quiet_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" ({place})"));
        PLACE.set(place);
    }));
}

/// The message and location of a panic.
pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    let text = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "without a message".to_owned(),
    };
    text + &PLACE.take()
}
