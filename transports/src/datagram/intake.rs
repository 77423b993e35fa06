//! How the accepting threads make the server's ends of sessions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_verbs::{Device, Endpoint, ProtectionDomain};

use super::session::{Bounds, Session};
use super::setup::{EndSetup, Sizes, max_whole, mix, part_bytes};
use crate::backend::{Accepted, Intake, Keepsake, SetupError};
use crate::door::{Arrival, Door, Seat};
use crate::handshake::Terms;

/// Most sessions of one server thread.
pub(crate) const MAX_SESSIONS: usize = 1 << 20;

/// The server thread's queue pair, as clients are told of it.
#[derive(Debug)]
pub(crate) struct Contact {
    pub(crate) endpoint: Endpoint,
    pub(crate) qkey: u32,
}

/// What sessions of a server thread are made of.
#[derive(Debug)]
pub(crate) struct Us {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    contact: Mutex<Contact>,
    pub(crate) sizes: Sizes,
}

impl Us {
    pub(crate) fn new(device: &Device, pd: ProtectionDomain, contact: Contact, sizes: Sizes) -> Us {
        Us { device: device.clone(), pd, contact: Mutex::new(contact), sizes }
    }

    /// Held from a look at it until the session is announced: whoever changes it knows all sessions that were
    /// made with what it was before.
    pub(crate) fn contact(&self) -> MutexGuard<'_, Contact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Our end of a session with the client that said this, and what it must know of us.
    fn make(
        &self,
        contact: &Contact,
        seat: Seat,
        terms: &Terms,
        theirs: &[u8],
        keepsake: &Keepsake,
    ) -> Result<(Vec<u8>, Session), SetupError> {
        let theirs = EndSetup::from_bytes(theirs)?;
        let salt = u64::from(seat.generation) << 32 ^ self.device.now_ns();
        let epoch = mix(contact.endpoint.to_bytes(), theirs.mix(salt));
        let way = theirs.way(&self.pd, epoch, self.sizes.mtu)?;
        let ours = EndSetup::new(&contact.endpoint, contact.qkey, seat.number, epoch, way.mtu);
        let bounds = Bounds {
            window: terms.window,
            max_message: terms.max_message,
            max_whole: max_whole(terms, way.mtu),
            part_bytes: part_bytes(way.mtu),
        };
        Ok((ours.to_bytes(), Session::new(way, seat, bounds, keepsake.custody())))
    }
}

/// The accepting threads' hold of a server thread.
#[derive(Debug)]
pub(crate) struct DatagramIntake {
    pub(crate) door: Arc<Door<Session>>,
    pub(crate) us: Arc<Us>,
}

impl Intake for DatagramIntake {
    fn accept(
        &self,
        terms: &Terms,
        setup: &[u8],
        _timeout: Duration,
    ) -> Result<Accepted, SetupError> {
        let door = &self.door;
        let seat = door.take_seat()?;
        let keepsake = Keepsake::default();
        let contact = self.us.contact();
        let made = self.us.make(&contact, seat, terms, setup, &keepsake);
        let (setup, session) = made.inspect_err(|_| door.give_back(seat.number))?;
        door.tell(Arrival::New(Box::new(session)));
        drop(contact);
        let door = Arc::clone(door);
        let withdraw = Box::new(move || door.tell(Arrival::Withdrawn(seat)));
        Ok(Accepted { setup, withdraw, keepsake })
    }
}
