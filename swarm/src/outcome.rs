//! What a run has come to.

use std::any::Any;
use std::fmt;

use crate::records::Counts;

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub seed: u64,
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
    /// Why the trace could not be written.
    pub not_written: Option<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, wrong, plan, hash, now_ns, counts, trace, .. } = self;
        writeln!(f, "seed {seed}: {}", wrong.as_deref().unwrap_or("nothing is wrong"))?;
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

/// What a panic says.
pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "without a text".to_owned(),
    }
}
