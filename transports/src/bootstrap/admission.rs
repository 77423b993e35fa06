//! Which clients are let in, and to which server thread.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farcall_core::metrics::{RefusalReason, Refusals};
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{ClientInfo, ConnectionId, Lane, LaneInfo};
use farcall_core::{Authentication, Identity};

use super::server_halves::Intakes;
use crate::contract::{
    Accepted, Backend, Config, DeathNotice, NewClient, NoticedBy, SetupError, SharedSlices, Source,
    ThreadPlaces,
};
use crate::handshake::{Greeting, Hello, Offer, Offered, Reject, TimeTold, Welcome};
use crate::planted::{Bug, is_planted};

/// What a server offers, and the ways to its threads.
#[derive(Debug)]
pub struct Admission {
    offer: Offer,
    /// In the order of the offer's.
    backends: Vec<Served>,
    next: AtomicUsize,
    /// The places of the clients of each thread.
    places: Vec<Arc<ThreadPlaces>>,
    ids: NewIds,
    silence: Duration,
    slices: Option<SharedSlices>,
    refusals: Arc<Refusals>,
}

/// Where the ids of connections come from: nobody may guess one.
pub struct NewIds(Box<dyn Fn() -> io::Result<ConnectionId> + Send + Sync>);

impl NewIds {
    /// Those that this function makes.
    pub fn from(make: impl Fn() -> io::Result<ConnectionId> + Send + Sync + 'static) -> NewIds {
        NewIds(Box::new(make))
    }
}

impl fmt::Debug for NewIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewIds")
    }
}

/// A backend that a server offers.
#[derive(Debug)]
struct Served {
    death_notice: DeathNotice,
    intakes: Arc<Intakes>,
}

/// A client that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// The answer to it.
    pub greeting: Greeting,
    /// The server's end.
    pub accepted: Accepted,
    /// What tells the server that the client's process has died.
    pub noticed_by: NoticedBy,
}

impl Admission {
    /// The admission of a server of these services over these backends, with their configurations and the intakes of the server's
    /// threads, which have these places. `site` is that of a server thread.
    pub fn new(
        backends: Vec<(&'static dyn Backend, &Config, Arc<Intakes>)>,
        services: &[&'static ServiceDescription],
        (places, ids): (Vec<Arc<ThreadPlaces>>, NewIds),
        site: &Site,
    ) -> Admission {
        let named = backends.iter().map(|(backend, config, _)| (backend.name(), (*config).clone()));
        let offer = Offer::new(named.collect(), services);
        // What does not go together was refused when the halves were made.
        let slices = |(backend, config): (&dyn Backend, &Config)| {
            backend.shared_slices(config).unwrap_or_default()
        };
        let slices = backends.iter().find_map(|(backend, config, _)| slices((*backend, config)));
        let silence = backends.first().map_or(Duration::ZERO, |(_, config, _)| config.silence);
        let served = |(backend, _, intakes): (&'static dyn Backend, &Config, Arc<Intakes>)| {
            Served { death_notice: backend.death_notice(), intakes }
        };
        let refusals = Arc::clone(site.refusals());
        let backends = backends.into_iter().map(served).collect();
        let next = AtomicUsize::new(0);
        Admission { offer, backends, next, places, ids, silence, slices, refusals }
    }

    /// Lets in only clients that prove who they are, if there is an authentication.
    pub fn with_authentication(self, authentication: Option<Authentication>) -> Admission {
        Admission { offer: self.offer.with_authentication(authentication), ..self }
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

    /// What clients are to prove before they are let in.
    pub fn authentication(&self) -> Option<&Authentication> {
        self.offer.authentication()
    }

    /// How long a client's machine may stay silent before it is declared dead.
    pub fn silence(&self) -> Duration {
        self.silence
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
    ) -> Result<Admitted, Reject> {
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
    ) -> Result<Admitted, Refused> {
        let Offered { backend, terms, differing, services } = self.offer.check(hello)?;
        let (connection, only) = self.connection(hello.lane, (source, identity))?;
        let lane = Some(LaneInfo { backend: self.offer.name(backend), why: hello.why });
        let info = ClientInfo { identity: identity.cloned(), services, connection, lane };
        let refuse = |reason, told| Err(Refused(reason, Reject::Refused { reason: told }));
        let timeout = time_left()?;
        // Round robin; a thread that is full or has no device passes its turn on. If all are, the first that can makes room.
        let mut last = (RefusalReason::Full, String::new());
        let Served { death_notice, intakes } = &self.backends[backend];
        // A further lane comes to the thread of its connection, whatever it names.
        let only = match only {
            Some(thread) => Some(thread),
            None => named_thread(hello, intakes.threads())?,
        };
        let turns = if only.is_some() { 1 } else { intakes.threads() };
        for attempt in 0..2 * turns {
            let next = || self.next.fetch_add(1, Ordering::Relaxed) % turns;
            let turn = only.unwrap_or_else(next);
            let intake = intakes.of(turn);
            if attempt >= turns && !intake.make_room(source, wait.min(timeout)) {
                continue;
            }
            let client =
                NewClient { terms: &terms, setup: &hello.setup, timeout, source, info: &info };
            match intake.accept(client) {
                Ok(accepted) => {
                    let (connection, setup) = (info.connection, accepted.setup.clone());
                    let welcome = Welcome { terms, setup, connection };
                    let greeting = Greeting { differing, welcome };
                    let noticed_by = death_notice.server;
                    return Ok(Admitted { greeting, accepted, noticed_by });
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

    /// The id of the connection of a client that is to be this lane, if it may have several; and the only thread that may serve it.
    fn connection(
        &self,
        lane: Lane,
        (source, identity): (Source, Option<&Identity>),
    ) -> Result<(Option<ConnectionId>, Option<usize>), Refused> {
        let refuse = |reason, told: String| Err(Refused(reason, Reject::Refused { reason: told }));
        let id = match lane {
            Lane::Alone => return Ok((None, None)),
            Lane::First => match (self.ids.0)() {
                Ok(id) => return Ok((Some(id), None)),
                Err(error) => return refuse(RefusalReason::Failed, error.to_string()),
            },
            Lane::Of(id) => id,
        };
        let found = self.places.iter().map(|places| places.find(id));
        match found.enumerate().find_map(|(thread, found)| Some((thread, found?))) {
            Some((thread, (from, whose)))
                if from == source
                    && (whose.as_ref() == identity || is_planted(Bug::UncheckedIdentity)) =>
            {
                Ok((Some(id), Some(thread).filter(|_| !is_planted(Bug::LaneOnAnyThread))))
            }
            // One text for all reasons: who guesses an id learns nothing of it.
            _ => refuse(
                RefusalReason::UnknownConnection,
                "it has no such connection of this client; connect anew".into(),
            ),
        }
    }
}

/// The thread that the client names, if it does.
fn named_thread(hello: &Hello, threads: usize) -> Result<Option<usize>, Refused> {
    let named = hello.thread.map(usize::from);
    match named.filter(|thread| *thread >= threads) {
        None => Ok(named),
        Some(thread) => {
            let reason = format!(
                "the server has no thread {thread}; it has {threads}, numbered from 0, which its builder's `threads` sets"
            );
            Err(Refused(RefusalReason::Failed, Reject::Refused { reason }))
        }
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
