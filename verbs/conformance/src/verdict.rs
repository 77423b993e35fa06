//! How a case ends, and the checks that end it early.

use std::fmt;
use std::panic::Location;

/// What a case returns: `Ok` when the device did what it must.
pub type CaseResult<T = ()> = Result<T, Halt>;

/// Why an end stopped before the end of its case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// The device broke a rule; the text says which, and where in the case.
    Failed(String),
    /// The other end stopped first; its own verdict has the reason.
    PeerLeft(String),
}

/// Every error that reaches a case by `?` was not expected by it.
impl<E: std::error::Error> From<E> for Halt {
    #[track_caller]
    fn from(error: E) -> Halt {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Halt::failed(format!("unexpected error: {text}"))
    }
}

impl Halt {
    /// A failure with the caller's place in the source.
    #[track_caller]
    pub fn failed(what: impl fmt::Display) -> Halt {
        let place = Location::caller();
        Halt::Failed(format!("{what} ({}:{})", place.file(), place.line()))
    }
}

/// How one end, or a whole case, ended. Its text form is one line that [`Verdict::parse`] reads back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The device did what it must.
    Passed,
    /// The device broke a rule.
    Failed(String),
    /// This end stopped because the other one did.
    PeerLeft(String),
}

impl From<CaseResult> for Verdict {
    fn from(result: CaseResult) -> Verdict {
        match result {
            Ok(()) => Verdict::Passed,
            Err(Halt::Failed(why)) => Verdict::Failed(why),
            Err(Halt::PeerLeft(why)) => Verdict::PeerLeft(why),
        }
    }
}

impl Verdict {
    /// The case's verdict from those of its ends: the one that explains the other wins.
    pub fn of_both(initiator: Verdict, target: Verdict) -> Verdict {
        match (initiator, target) {
            (Verdict::Failed(a), Verdict::Failed(b)) => {
                Verdict::Failed(format!("initiator: {a}; target: {b}"))
            }
            (Verdict::Failed(why), _) => Verdict::Failed(format!("initiator: {why}")),
            (_, Verdict::Failed(why)) => Verdict::Failed(format!("target: {why}")),
            (Verdict::PeerLeft(why), _) | (_, Verdict::PeerLeft(why)) => {
                Verdict::Failed(format!("an end left without a verdict: {why}"))
            }
            (Verdict::Passed, Verdict::Passed) => Verdict::Passed,
        }
    }

    /// Reads the one-line text form.
    pub fn parse(line: &str) -> Option<Verdict> {
        let (kind, why) = line.split_once(':').unwrap_or((line, ""));
        let why = why.trim_start().to_owned();
        match kind {
            "passed" => Some(Verdict::Passed),
            "failed" => Some(Verdict::Failed(why)),
            "peer left" => Some(Verdict::PeerLeft(why)),
            _ => None,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, why) = match self {
            Verdict::Passed => return f.write_str("passed"),
            Verdict::Failed(why) => ("failed", why),
            Verdict::PeerLeft(why) => ("peer left", why),
        };
        write!(f, "{kind}: {}", why.replace('\n', " / "))
    }
}

/// Ends the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::verdict::Halt::failed(format!($($text)+)));
        }
    };
}

/// Ends the case unless both sides are equal, and shows them.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($text:tt)+) => {
        match (&$found, &$wanted) {
            (found, wanted) => {
                if *found != *wanted {
                    return Err($crate::verdict::Halt::failed(format!(
                        "{}: found {found:?}, wanted {wanted:?}",
                        format_args!($($text)+)
                    )));
                }
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_survives_its_text_form() {
        for verdict in
            [Verdict::Passed, Verdict::Failed("at a: b".into()), Verdict::PeerLeft("gone".into())]
        {
            assert_eq!(Verdict::parse(&verdict.to_string()), Some(verdict));
        }
        assert_eq!(Verdict::parse("nonsense"), None);
    }

    #[test]
    fn the_end_that_failed_explains_the_one_that_was_left() {
        let failed = Verdict::Failed("torn".into());
        let left = Verdict::PeerLeft("closed".into());
        assert_eq!(Verdict::of_both(left.clone(), failed), Verdict::Failed("target: torn".into()));
        assert!(matches!(Verdict::of_both(left, Verdict::Passed), Verdict::Failed(_)));
    }
}
