//! What a run has come to.

use std::any::Any;
use std::cell::RefCell;
use std::{fmt, panic};

use crate::records::Counts;

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub seed: u64,
    /// What was run.
    pub what: String,
    /// What must not be, if it was seen.
    pub wrong: Option<String>,
    /// What was done to the rack.
    pub plan: String,
    /// Of all that has happened: the same for the same seed.
    pub hash: u64,
    /// The rack's time in the end.
    pub now_ns: u64,
    /// How calls have ended.
    pub counts: Counts,
    /// The last lines of the rack's trace, if they were kept.
    pub trace: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, what, wrong, plan, hash, now_ns, counts, trace, .. } = self;
        writeln!(f, "seed {seed}, {what}: {}", wrong.as_deref().unwrap_or("nothing is wrong"))?;
        writeln!(f, "what was done to it:\n{}", plan.trim_end())?;
        write!(
            f,
            "in {now_ns} ns: {} calls answered, {} in the dark, {} not run; hash {hash:#018x}",
            counts.answered, counts.unknown, counts.never_ran
        )?;
        if !trace.is_empty() {
            write!(f, "\nthe end of the trace:")?;
        }
        trace.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

thread_local! {
    /// Where the last panic of this thread was.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on a panic is not printed: an outcome tells of it, and some cases of the suite panic on purpose.
pub fn quiet_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" ({place})"));
        PLACE.set(place);
    }));
}

/// What a panic says, and where it was if that is known.
pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    let text = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "without a text".to_owned(),
    };
    text + &PLACE.take()
}
