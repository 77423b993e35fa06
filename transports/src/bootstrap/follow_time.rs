//! Asking another server for its time, in a thread of its own, while this server shares its slices.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use farcall_core::error::{BindError, ConnectError};
use farcall_core::site::Site;
use farcall_core::transport::Acceptor;

use super::attempt::Attempt;
use super::deadline_stream::DeadlineStream;
use super::dial::Dialler;
use super::shared_time::{ASK_EVERY, ClockSample, Follower};
use crate::address::Address;
use crate::contract::{SetupError, SharedSlices, SlicePlan};
use crate::handshake::{TimeQuestions, TimeTold};

/// Questions at a time: the first finds threads that have to wake, and the fastest counts.
const QUESTIONS: usize = 4;

/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// What follows the time of the server that these slices are shared with, if it is another one.
///
/// # Errors
/// Its address is none, or is this server's own.
pub(super) fn follower(
    own: &Address,
    shared: Option<&SharedSlices>,
) -> Result<Option<(Address, Follower)>, SetupError> {
    let Some(SharedSlices { plan, of: Some(of) }) = shared else { return Ok(None) };
    let address: Address =
        of.parse().map_err(|error| SetupError::Unsupported(format!("slices_of: {error}")))?;
    if address.place() == own.place() {
        return Err(SetupError::Unsupported(
            "slices_of is this server's own address; leave it out at the server whose slices the others share"
                .to_owned(),
        ));
    }
    Ok(Some((address, Follower::new(of, *plan))))
}

/// What accepts clients, and follows another server's time meanwhile.
pub(super) struct AcceptingInSharedTime {
    acceptor: Box<dyn Acceptor>,
    /// The thread that asks ends when this is dropped, after the question that it asks now at the latest: nobody waits for it.
    running: Option<Sender<()>>,
}

impl AcceptingInSharedTime {
    /// Asks the server at that address from now on, if there is one.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start(
        acceptor: impl Acceptor + 'static,
        follower: Option<(Address, Follower)>,
        site: &Site,
    ) -> io::Result<Box<dyn Acceptor>> {
        let Some((address, mut follower)) = follower else { return Ok(Box::new(acceptor)) };
        let (running, is_over) = mpsc::channel();
        let site = site.clone();
        let follow = move || {
            loop {
                match ask(&address, &site) {
                    Ok((samples, plan)) => follower.take_answers(&samples, plan),
                    Err(error) => follower.note_failure(&error),
                }
                match is_over.recv_timeout(ASK_EVERY) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name("farcall-slices".into()).spawn(follow)?;
        Ok(Box::new(AcceptingInSharedTime { acceptor: Box::new(acceptor), running: Some(running) }))
    }
}

impl Acceptor for AcceptingInSharedTime {
    fn stop(&mut self) {
        self.acceptor.stop();
        self.running = None;
    }
}

/// Asks for the time on a connection of its own.
pub(super) fn ask(
    address: &Address,
    site: &Site,
) -> Result<(Vec<ClockSample>, SlicePlan), ConnectError> {
    let attempt = Attempt { address, timeout: ANSWER_WAIT };
    let dialler = Dialler { address, attempt };
    let deadline = Instant::now() + ANSWER_WAIT;
    let mut stream = DeadlineStream::new(dialler.connect(deadline)?, deadline);
    stream
        .check_peer()
        .map_err(|reason| ConnectError::NotPermitted { address: address.to_string(), reason })?;
    let mut questions = TimeQuestions::default();
    let mut samples = Vec::with_capacity(QUESTIONS);
    loop {
        let asked = site.now();
        stream.send(&questions.question()).map_err(|error| dialler.stream(error))?;
        let TimeTold { received_nanos, answered_nanos, plan } = loop {
            let mut buffer = vec![0; questions.missing()];
            let bytes = stream.receive(&mut buffer).map_err(|error| dialler.stream(error))?;
            if let Some(told) =
                questions.receive(bytes).map_err(|error| attempt.misbehaved(error))?
            {
                break told;
            }
        };
        let heard = site.now();
        samples.push(ClockSample { asked, received_nanos, answered_nanos, heard });
        if samples.len() == QUESTIONS {
            return Ok((samples, plan));
        }
    }
}

/// The error of a server that cannot have the thread.
pub(super) fn no_thread(address: &str) -> impl FnOnce(io::Error) -> BindError {
    move |cause| BindError::Io {
        address: address.to_owned(),
        doing: "starting the thread that follows another server's time",
        cause,
    }
}
