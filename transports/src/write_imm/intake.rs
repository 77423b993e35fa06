//! How the accepting threads make the server's ends of connections.

use std::sync::Arc;
use std::time::Duration;

use farcall_verbs::{CompletionQueueHandle, Device};

use super::entry::Entry;
use super::setup::{Port, Side, Sizes};
use crate::backend::{Accepted, Intake, Keepsake, SetupError};
use crate::door::{Arrival, Door, Seat};
use crate::handshake::Terms;
use crate::memory::Budget;

/// The accepting threads' hold of a server thread.
#[derive(Debug)]
pub(crate) struct WriteImmIntake {
    pub(crate) door: Arc<Door<Entry>>,
    pub(crate) device: Device,
    pub(crate) cq: CompletionQueueHandle,
    /// Entries of the completion queue, of which each client has its own.
    pub(crate) completions: Arc<Budget>,
}

impl WriteImmIntake {
    /// The server's end of a connection with the client that said this, and what it must know of us.
    fn make(
        &self,
        seat: Seat,
        terms: &Terms,
        theirs: &[u8],
        timeout: Duration,
        keepsake: &Keepsake,
    ) -> Result<(Vec<u8>, Entry), SetupError> {
        let completions = Sizes::new(terms, self.device.caps()).completions() as u64;
        let Some(completions) = self.completions.charge(completions) else {
            return Err(SetupError::Full(format!(
                "the completion queue of {} entries is full; more server threads, or a smaller window, make room",
                self.completions.limit()
            )));
        };
        let port = Port::open(&self.device, &self.cq, terms, seat.number)?;
        let ours = port.setup();
        let (link, pd) = port.connect(&self.device, terms, theirs, Side::Server, timeout)?;
        Ok((ours, Entry::new(link, pd, seat, terms, completions, keepsake.custody())))
    }
}

impl Intake for WriteImmIntake {
    fn accept(
        &self,
        terms: &Terms,
        setup: &[u8],
        timeout: Duration,
    ) -> Result<Accepted, SetupError> {
        let door = &self.door;
        let seat = door.take_seat()?;
        let keepsake = Keepsake::default();
        let made = self.make(seat, terms, setup, timeout, &keepsake);
        let (setup, entry) = made.inspect_err(|_| door.give_back(seat.number))?;
        door.tell(Arrival::New(Box::new(entry)));
        let door = Arc::clone(door);
        let withdraw = Box::new(move || door.tell(Arrival::Withdrawn(seat)));
        Ok(Accepted { setup, withdraw, keepsake })
    }
}
