//! Records the calls of a run and their results, and checks them.

use std::fmt::Write;

use crate::register::{self, Event, Held, MAX_OPERATIONS, Operation};
use crate::service::Executions;

/// The number of keys: few, so that clients contend for them.
pub(crate) const KEYS: usize = 10;

/// A request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Get the value of a key.
    Get(usize),
    /// Put a value for a key.
    Put(usize, u64),
    /// Delete a key.
    Del(usize),
    /// Get the values of all keys.
    Scan,
}

/// A response of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The value of the key.
    Value(Held),
    /// Whether the key had a value.
    Had(bool),
    /// The values of all keys.
    Values([Held; KEYS]),
}

/// How a call has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// With a response.
    Answered(Answer),
    /// With an error that leaves open whether it ran. Cancelled calls count as this.
    Unknown,
    /// With an error that promises that it did not run.
    NeverRan,
}

#[derive(Clone, Debug)]
struct CallRecord {
    request: Request,
    at: u64,
    ended: Option<(u64, CallEnd)>,
}

/// The records of all calls of a run.
#[derive(Debug, Default)]
pub(crate) struct Records {
    moment: u64,
    calls: Vec<CallRecord>,
    of_key: [usize; KEYS],
    values: u64,
    failure: Option<String>,
}

/// The number of calls by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With a response.
    pub answered: u64,
    /// With an unknown outcome.
    pub unknown: u64,
    /// Not executed.
    pub never_ran: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, more: Counts) {
        self.answered += more.answered;
        self.unknown += more.unknown;
        self.never_ran += more.never_ran;
    }
}

impl Records {
    /// Returns a new, unique number for a value.
    pub(crate) fn fresh_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// Whether one more call can be checked.
    pub(crate) fn has_room(&self, request: Request) -> bool {
        match request {
            Request::Get(key) | Request::Put(key, _) | Request::Del(key) => {
                self.of_key[key] < MAX_OPERATIONS
            }
            Request::Scan => self.of_key.iter().all(|count| *count < MAX_OPERATIONS),
        }
    }

    /// Records the start of a call. Returns its number.
    pub(crate) fn start_call(&mut self, request: Request) -> usize {
        match request {
            Request::Get(key) | Request::Put(key, _) | Request::Del(key) => {
                self.of_key[key] += 1;
            }
            Request::Scan => self.of_key.iter_mut().for_each(|count| *count += 1),
        }
        self.moment += 1;
        self.calls.push(CallRecord { request, at: self.moment, ended: None });
        self.calls.len() - 1
    }

    /// Records the end of a call.
    pub(crate) fn end(&mut self, call: usize, end: CallEnd) {
        self.moment += 1;
        self.calls[call].ended = Some((self.moment, end));
    }

    /// The request of a call.
    pub(crate) fn request(&self, call: usize) -> Request {
        self.calls[call].request
    }

    /// Records a violated property; only the first is kept.
    pub(crate) fn record_failure(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(what());
        }
    }

    /// Whether a violation was recorded.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The number of calls by result.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for call in &self.calls {
            match call.ended {
                Some((_, CallEnd::Answered(_))) => counts.answered += 1,
                Some((_, CallEnd::NeverRan)) => counts.never_ran += 1,
                Some((_, CallEnd::Unknown)) | None => counts.unknown += 1,
            }
        }
        counts
    }

    /// The first violation, if any: reported by a client, a call that ran twice or against its promise, or a key that
    /// is not linearizable.
    pub(crate) fn check(&self, executions: &Executions) -> Option<String> {
        if self.failure.is_some() {
            return self.failure.clone();
        }
        if let Some((value, times)) = executions.repeated() {
            return Some(format!("the put of value {value} ran {times} times"));
        }
        for CallRecord { request, ended, .. } in &self.calls {
            if let Request::Put(_, value) = *request {
                let times = executions.of(value);
                match ended {
                    Some((_, CallEnd::NeverRan)) if times > 0 => {
                        return Some(format!(
                            "the put of value {value} ran, although its error promised that it had not"
                        ));
                    }
                    Some((_, CallEnd::Answered(_))) if times == 0 => {
                        return Some(format!(
                            "the put of value {value} was acknowledged, but never ran"
                        ));
                    }
                    _ => {}
                }
            }
        }
        (0..KEYS).find_map(|key| {
            let failure = register::check(self.events_of(key)).err()?;
            let mut text = String::new();
            let _ = write!(text, "key {key} is not linearizable: {failure}");
            Some(text)
        })
    }

    fn events_of(&self, key: usize) -> Vec<Event> {
        let of_key = |(number, call): (usize, &CallRecord)| {
            let answer = match &call.ended {
                Some((_, CallEnd::NeverRan)) => return None,
                Some((at, CallEnd::Answered(answer))) => Some((*at, answer)),
                Some((_, CallEnd::Unknown)) | None => None,
            };
            let had = match answer {
                Some((_, Answer::Had(had))) => Some(*had),
                _ => None,
            };
            let operation = match (call.request, answer) {
                (Request::Put(at, value), _) if at == key => Operation::Put(value, had),
                (Request::Del(at), _) if at == key => Operation::Del(had),
                (Request::Get(at), Some((_, Answer::Value(held)))) if at == key => {
                    Operation::Get(*held)
                }
                (Request::Scan, Some((_, Answer::Values(held)))) => Operation::Get(held[key]),
                _ => return None,
            };
            let ended = answer.map(|(at, _)| at);
            Some(Event { call: number, started: call.at, ended, operation })
        };
        self.calls.iter().enumerate().filter_map(of_key).collect()
    }
}
