//! What the clients of a run asked and were answered, and whether it can be right.

use std::fmt::Write;

use crate::register::{self, Event, Held, MAX_OPERATIONS, Operation};
use crate::service::Executions;

/// Keys that clients meet at: few, so that they do.
pub(crate) const KEYS: usize = 10;

/// A question to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The value of a key.
    Get(usize),
    /// A value for a key.
    Put(usize, u64),
    /// A key is to be forgotten.
    Del(usize),
    /// The values of all keys.
    Scan,
}

/// What the store has said.
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
pub(crate) enum End {
    /// With an answer.
    Answered(Answer),
    /// With an error that leaves open whether it ran; so counts a call that nobody has waited for.
    Unknown,
    /// With an error that promises that it did not run.
    NeverRan,
}

#[derive(Clone, Debug)]
struct Asked {
    question: Question,
    at: u64,
    ended: Option<(u64, End)>,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub(crate) struct Records {
    moment: u64,
    calls: Vec<Asked>,
    of_key: [usize; KEYS],
    values: u64,
    wrong: Option<String>,
}

/// How many calls ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With an answer.
    pub answered: u64,
    /// In the dark.
    pub unknown: u64,
    /// Without having run.
    pub never_ran: u64,
}

impl Counts {
    /// Counts these too.
    pub fn add(&mut self, more: Counts) {
        self.answered += more.answered;
        self.unknown += more.unknown;
        self.never_ran += more.never_ran;
    }
}

impl Records {
    /// A number for a value that no other has.
    pub(crate) fn fresh_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// Whether one more question fits into what can be checked.
    pub(crate) fn has_room(&self, question: Question) -> bool {
        match question {
            Question::Get(key) | Question::Put(key, _) | Question::Del(key) => {
                self.of_key[key] < MAX_OPERATIONS
            }
            Question::Scan => self.of_key.iter().all(|count| *count < MAX_OPERATIONS),
        }
    }

    /// A call begins; its number.
    pub(crate) fn ask(&mut self, question: Question) -> usize {
        match question {
            Question::Get(key) | Question::Put(key, _) | Question::Del(key) => {
                self.of_key[key] += 1;
            }
            Question::Scan => self.of_key.iter_mut().for_each(|count| *count += 1),
        }
        self.moment += 1;
        self.calls.push(Asked { question, at: self.moment, ended: None });
        self.calls.len() - 1
    }

    /// A call has ended.
    pub(crate) fn end(&mut self, call: usize, end: End) {
        self.moment += 1;
        self.calls[call].ended = Some((self.moment, end));
    }

    /// The question of a call.
    pub(crate) fn question(&self, call: usize) -> Question {
        self.calls[call].question
    }

    /// Something was seen that must not be; the first counts.
    pub(crate) fn wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// What must not be was seen.
    pub(crate) fn is_wrong(&self) -> bool {
        self.wrong.is_some()
    }

    /// How the calls have ended.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for call in &self.calls {
            match call.ended {
                Some((_, End::Answered(_))) => counts.answered += 1,
                Some((_, End::NeverRan)) => counts.never_ran += 1,
                Some((_, End::Unknown)) | None => counts.unknown += 1,
            }
        }
        counts
    }

    /// What is wrong with all this, if something is: a client's finding, a call that ran twice or against its promise,
    /// a key that was no register.
    pub(crate) fn check(&self, executions: &Executions) -> Option<String> {
        if self.wrong.is_some() {
            return self.wrong.clone();
        }
        if let Some((value, times)) = executions.repeated() {
            return Some(format!("the put of value {value} ran {times} times"));
        }
        for Asked { question, ended, .. } in &self.calls {
            if let Question::Put(_, value) = *question {
                let times = executions.of(value);
                match ended {
                    Some((_, End::NeverRan)) if times > 0 => {
                        return Some(format!("the put of value {value} ran, against the promise"));
                    }
                    Some((_, End::Answered(_))) if times == 0 => {
                        return Some(format!(
                            "the put of value {value} was answered and never ran"
                        ));
                    }
                    _ => {}
                }
            }
        }
        (0..KEYS).find_map(|key| {
            let wrong = register::check(self.events_of(key)).err()?;
            let mut text = String::new();
            let _ = write!(text, "key {key} is no register: {wrong}");
            Some(text)
        })
    }

    fn events_of(&self, key: usize) -> Vec<Event> {
        let of_key = |(number, call): (usize, &Asked)| {
            let answer = match &call.ended {
                Some((_, End::NeverRan)) => return None,
                Some((at, End::Answered(answer))) => Some((*at, answer)),
                Some((_, End::Unknown)) | None => None,
            };
            let had = match answer {
                Some((_, Answer::Had(had))) => Some(*had),
                _ => None,
            };
            let operation = match (call.question, answer) {
                (Question::Put(at, value), _) if at == key => Operation::Put(value, had),
                (Question::Del(at), _) if at == key => Operation::Del(had),
                (Question::Get(at), Some((_, Answer::Value(held)))) if at == key => {
                    Operation::Get(*held)
                }
                (Question::Scan, Some((_, Answer::Values(held)))) => Operation::Get(held[key]),
                _ => return None,
            };
            let answered = answer.map(|(at, _)| at);
            Some(Event { call: number, asked: call.at, answered, operation })
        };
        self.calls.iter().enumerate().filter_map(of_key).collect()
    }
}
