//! Bugs of the protocols that are planted to see that tests find them. Only with the feature `planted-bugs`: what users
//! run has nothing of this, as `is_planted` is `false` to the compiler.

/// A bug of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The server runs a request again that comes again.
    LostDuplicateCheck,
    /// The client gets the place of a call that was given up back twice.
    DoubleCredit,
    /// The server forgets a response once it was sent, before the client has acknowledged it.
    ForgottenResponse,
    /// Both ends take what was sent to a former session of the same number.
    FormerLife,
    /// `datagram`: the server takes what a client's queue pair sends for that client's, whatever epoch it carries.
    UncheckedEpoch,
    /// `datagram`: the server takes a request in a slot outside the session's window.
    UncheckedWindow,
    /// The server lends a client more than its share of the memory for large messages.
    UncheckedShare,
    /// `write_imm`: an end takes a message that is longer than its slot.
    UncheckedLength,
    /// `rfp`: the client takes a line for new whatever lap it is of.
    UncheckedLap,
    /// `rfp`: the client takes a line of the lap for whole, also where a READ sees the words of a line in any order.
    BelievedFirstWord,
    /// `rfp`: the client stops fetching as soon as the server says that it sends.
    SkippedDrain,
    /// `rfp`: the server takes a request before the operations that were sent before it.
    OvertakenOperation,
    /// A bug of the core.
    #[cfg(feature = "planted-bugs")]
    Core(farcall_core::planted::Bug),
    /// A further lane of a connection comes to any server thread.
    LaneOnAnyThread,
    /// A client with another identity gets a lane of a connection.
    UncheckedIdentity,
    /// A connection with an id is counted for good.
    ForgottenEnd,
    /// `scale`: the server gives a place to the next client before the last one has left it.
    EarlySwitch,
    /// `hybrid`: a call is posted on both lanes.
    PostedTwice,
    /// `hybrid`: with each lane that is opened, a slot of it is never given back; nor is one of a lane that is returned to.
    LostCredit,
    /// `hybrid`: a late answer on the lane that new calls do not take is taken for the call that has its slot on the other.
    MistakenAnswer,
    /// `hybrid`: while a lane is being opened, the connection does nothing else.
    BlockingOpening,
    /// `hybrid`: a client follows all advice of its server at once, whatever its calls take there.
    BelievedAdvice,
    /// Lent memory: a revoke returns, and the lend ends only when something else is lent.
    EarlyRevoke,
    /// Lent memory: a value of a lend that is over gives access to the next lend of its number.
    UncheckedLend,
    /// Lent memory: an operation may reach one byte further than its lend.
    LongWindow,
    /// Lent memory: the owner leaves the end of a lease to the reader, and its clock.
    LeaseOfReader,
    /// Lent memory: a client uses the buffer of an operation that was given up for the next one, though the device still has it.
    ReusedOnCancel,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in all that runs in this thread from now on, or takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
    let of_core = match bug {
        Some(Bug::Core(bug)) => Some(bug),
        _ => None,
    };
    farcall_core::planted::plant(of_core);
}

/// Whether this thread has the bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// None is.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}
