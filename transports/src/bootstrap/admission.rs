//! Which clients are let in, and to which server thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farcall_core::metrics::{RefusalReason, Refusals};
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::ClientInfo;
use farcall_core::{Authentication, Identity};

use super::server_halves::Intakes;
use crate::contract::{
    Accepted, Backend, DeathNotice, NewClient, SetupError, SharedSlices, Source,
};
use crate::handshake::{Greeting, Hello, Offer, Offered, Reject, TimeTold, Welcome};

/// What a server offers, and the ways to its threads.
#[derive(Debug)]
pub struct Admission {
    offer: Offer,
    death_notice: DeathNotice,
    intakes: Arc<Intakes>,
    next: AtomicUsize,
    slices: Option<SharedSlices>,
    refusals: Arc<Refusals>,
}

impl Admission {
    /// The admission of a server over this backend, with the intakes of its threads. `site` is that of a server thread.
    pub fn new(
        backend: &dyn Backend,
        offer: Offer,
        intakes: Arc<Intakes>,
        site: &Site,
    ) -> Admission {
        let death_notice = backend.death_notice();
        // What does not go together was refused when the halves were made.
        let slices = backend.shared_slices(offer.config()).unwrap_or_default();
        let refusals = Arc::clone(site.refusals());
        Admission { offer, death_notice, intakes, next: AtomicUsize::new(0), slices, refusals }
    }

    /// The time for another server that shares this one's slices. `now` is that of the server threads' clock.
    ///
    /// # Errors
    /// Why there is none, for the other server.
    pub fn tell_time(&self, received: Instant, now: Instant) -> Result<TimeTold, Reject> {
        let refuse = |reason: &str| Err(Reject::Refused { reason: reason.to_owned() });
        match &self.slices {
            None => refuse("it shares no slices; its address needs groups=N"),
            Some(SharedSlices { of: Some(_), .. }) => {
                refuse("it follows the time of another server, which is to be named in slices_of")
            }
            Some(SharedSlices { plan, of: None }) => Ok(TimeTold {
                received_nanos: received.as_nanos(),
                answered_nanos: now.as_nanos(),
                plan: *plan,
            }),
        }
    }

    /// How the server's ends notice that a client's process has died.
    pub(crate) fn death_notice(&self) -> DeathNotice {
        self.death_notice
    }

    /// What clients are to prove before they are let in.
    pub fn authentication(&self) -> Option<&Authentication> {
        self.offer.authentication()
    }

    /// How long a client's machine may stay silent before it is declared dead.
    pub fn silence(&self) -> Duration {
        self.offer.config().silence
    }

    /// Counts a peer that is refused.
    pub fn count_refusal(&self, reason: RefusalReason) {
        self.refusals.count(reason);
    }

    /// Hands a client that fits, and has proven to be `identity`, to a server thread. `time_left` says how long that may take, or
    /// why there is no time. If all places are taken, waits at most for `wait` until one is free.
    ///
    /// # Errors
    /// Why the client is refused, for the log; [`told_to`](Reject::told_to) gives the answer. It is counted.
    pub fn admit(
        &self,
        (hello, identity): (&Hello, Option<&Identity>),
        source: (Source, Duration),
        time_left: impl FnOnce() -> Result<Duration, Reject>,
    ) -> Result<(Greeting, Accepted), Reject> {
        self.try_admit((hello, identity), source, time_left).map_err(|Refused(reason, reject)| {
            self.count_refusal(reason);
            reject
        })
    }

    fn try_admit(
        &self,
        (hello, identity): (&Hello, Option<&Identity>),
        (source, wait): (Source, Duration),
        time_left: impl FnOnce() -> Result<Duration, Reject>,
    ) -> Result<(Greeting, Accepted), Refused> {
        let Offered { terms, differing, services } = self.offer.check(hello)?;
        let info = ClientInfo { identity: identity.cloned(), services, connection: None };
        let refuse = |reason, told| Err(Refused(reason, Reject::Refused { reason: told }));
        let timeout = time_left()?;
        // Round robin; a thread that is full or has no device passes its turn on. If all are, the first that can makes room.
        let mut last = (RefusalReason::Full, String::new());
        let turns = self.intakes.threads();
        for attempt in 0..2 * turns {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) % turns;
            let intake = self.intakes.of(turn);
            if attempt >= turns && !intake.make_room(source, wait.min(timeout)) {
                continue;
            }
            let client =
                NewClient { terms: &terms, setup: &hello.setup, timeout, source, info: &info };
            match intake.accept(client) {
                Ok(accepted) => {
                    let welcome = Welcome { terms, setup: accepted.setup.clone() };
                    return Ok((Greeting { differing, welcome }, accepted));
                }
                Err(SetupError::Full(told)) => last = (RefusalReason::Full, told),
                Err(SetupError::SourceFull(told)) => last = (RefusalReason::SourceFull, told),
                Err(SetupError::IdentityFull(told)) => last = (RefusalReason::IdentityFull, told),
                Err(SetupError::NoDevice(told)) => last = (RefusalReason::NoDevice, told),
                Err(SetupError::Misbehaved(what)) => {
                    return Err(Reject::Malformed { what: what.into() }.into());
                }
                Err(error @ SetupError::Device(_)) if !source.is_of_same_user() => {
                    tracing::warn!(%error, "cannot make the server's end of a connection");
                    let told = "the server's end cannot be made; its log says why";
                    return refuse(RefusalReason::Failed, told.into());
                }
                // What it says of "this process" is not about the client's.
                Err(error @ SetupError::Device(_)) => {
                    return refuse(RefusalReason::Failed, format!("at the server, {error}"));
                }
                Err(error) => return refuse(RefusalReason::Failed, error.to_string()),
            }
            if attempt >= turns {
                break;
            }
        }
        let (reason, told) = last;
        refuse(reason, told)
    }
}

/// Why a client is refused, for the counters and for the log.
struct Refused(RefusalReason, Reject);

impl From<Reject> for Refused {
    fn from(reject: Reject) -> Refused {
        let reason = match reject {
            Reject::Backend { .. } => RefusalReason::Backend,
            Reject::Service { .. } => RefusalReason::Service,
            Reject::Malformed { .. } => RefusalReason::Malformed,
            Reject::NotPermitted { .. } => RefusalReason::NotPermitted,
            Reject::ShuttingDown => RefusalReason::ShuttingDown,
            Reject::Refused { .. } => RefusalReason::Failed,
        };
        Refused(reason, reject)
    }
}
