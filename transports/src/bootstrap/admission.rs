//! Who is let in, and to which server thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::backend::{Accepted, BackendKind, Intake, SetupError};
use crate::handshake::{Hello, Reception, Reject, Terms};

/// The reception of a server, and the ways to its threads.
#[derive(Debug)]
pub(crate) struct Admission {
    reception: Reception,
    intakes: Vec<Box<dyn Intake>>,
    next: AtomicUsize,
}

impl Admission {
    pub(crate) fn new(reception: Reception, intakes: Vec<Box<dyn Intake>>) -> Admission {
        Admission { reception, intakes, next: AtomicUsize::new(0) }
    }

    /// The server's backend.
    pub(crate) fn backend(&self) -> BackendKind {
        self.reception.backend()
    }

    /// How long a client's machine may be silent.
    pub(crate) fn silence(&self) -> Duration {
        self.reception.limits().silence
    }

    /// Hands a client that fits to a server thread. `time_left`: how long that may take, or why there is no time.
    pub(crate) fn admit(
        &self,
        hello: &Hello,
        time_left: impl FnOnce() -> Result<Duration, &'static str>,
    ) -> Result<(Terms, Accepted), Reject> {
        let terms = self.reception.check(hello)?;
        let refuse = |reason: String| Err(Reject::Refused { reason });
        let timeout = match time_left() {
            Ok(timeout) => timeout,
            Err(reason) => return refuse(reason.into()),
        };
        // Round robin; a thread that is full passes its turn on.
        let mut full = String::new();
        for _ in 0..self.intakes.len() {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.intakes.len();
            match self.intakes[turn].accept(&terms, &hello.setup, timeout) {
                Ok(accepted) => return Ok((terms, accepted)),
                Err(SetupError::Full(reason)) => full = reason,
                Err(SetupError::Misbehaved(what)) => {
                    return Err(Reject::Malformed { what: what.into() });
                }
                Err(error) => return refuse(error.to_string()),
            }
        }
        refuse(full)
    }
}
