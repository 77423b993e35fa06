//! Dialling, as a state machine in virtual time.

use std::sync::Arc;
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::time::Instant;
use farcall_core::transport::{ClientThread, ClientTransport, DialOptions};
use farcall_verbs::sim::Node;

use super::address::RackAddress;
use super::admitted::Admitted;
use super::charge;
use super::network::{LEG_NS, Network, RETRY_NS, read};
use super::ties::Place;
use crate::backend::PendingClient;
use crate::bootstrap::attempt::{self, Attempt};
use crate::bootstrap::tethered;
use crate::handshake::{Frame, Hello, Welcome};

/// A connection that is being made by a program of a node: it takes [turns](Dialling::turn).
///
/// What TCP does is done here in so many legs of the network: a connection, hello, and the server's answer. What is
/// lost is sent again until the time of [`DialOptions`] is over.
pub struct Dialling {
    network: Arc<Network>,
    from: Place,
    to: Node,
    address: RackAddress,
    service: &'static ServiceDescription,
    timeout: Duration,
    thread: Option<ClientThread>,
    deadline: Instant,
    step: Step,
}

/// How far a [`Dialling`] is.
#[must_use = "a connection that is not taken is lost"]
pub enum Dialled {
    /// Look again at this moment.
    NotYet(Instant),
    /// It has ended.
    Done(Result<Box<dyn ClientTransport>, ConnectError>),
}

enum Step {
    /// Nothing has happened yet.
    New,
    /// The wish for a connection comes to the server's node at this moment.
    Knocking {
        client: Client,
        at: Instant,
    },
    /// Nobody listens there, as is known at this moment.
    Refused {
        at: Instant,
    },
    /// The first frame comes to the server at this moment.
    Greeting {
        client: Client,
        at: Instant,
    },
    /// The server's answer comes at this moment.
    Answered {
        client: Client,
        answer: Vec<u8>,
        admitted: Option<Admitted>,
        at: Instant,
    },
    Over,
}

/// The client's half of the handshake.
struct Client {
    pending: Box<dyn PendingClient>,
    hello: Hello,
}

impl Dialling {
    pub(super) fn new(
        network: &Arc<Network>,
        from: Place,
        address: &str,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<Dialling, ConnectError> {
        let address: RackAddress =
            address.parse().map_err(|why| ConnectError::InvalidAddress(Box::new(why)))?;
        let Some(to) = network.any.neighbour(address.node()) else {
            let hint =
                "the rack has no such node; `Sim::add_node` gives the numbers of those it has";
            return Err(attempt(&address, options.timeout).no_server(hint));
        };
        Ok(Dialling {
            network: Arc::clone(network),
            from,
            to,
            address,
            service,
            timeout: options.timeout,
            thread: options.thread.clone(),
            deadline: Instant::FAR_FUTURE,
            step: Step::New,
        })
    }

    /// Does what can be done at `now`. The time for it begins with the first turn.
    pub fn turn(&mut self, now: Instant) -> Dialled {
        match self.advance(now) {
            Ok(Step::Over) => Dialled::NotYet(Instant::FAR_FUTURE),
            Ok(step) => {
                self.step = step;
                Dialled::NotYet(self.step.at().min(self.deadline))
            }
            Err(Ended(result)) => Dialled::Done(result),
        }
    }

    fn advance(&mut self, now: Instant) -> Result<Step, Ended> {
        let step = std::mem::replace(&mut self.step, Step::Over);
        if let Step::New = step {
            self.deadline = now + self.timeout;
            return Ok(Step::Knocking { client: self.prepare()?, at: after(now, LEG_NS) });
        }
        if step.at() > now {
            return if now >= self.deadline {
                Err(self.attempt().timed_out().into())
            } else {
                Ok(step)
            };
        }
        match step {
            Step::New | Step::Over => Ok(Step::Over),
            Step::Refused { .. } => Err(self.attempt().no_server(self.nobody_listens()).into()),
            Step::Knocking { client, .. } if !self.gets_there() => {
                Ok(Step::Knocking { client, at: after(now, RETRY_NS) })
            }
            Step::Knocking { client, .. } => Ok(match self.network.listening(&self.address) {
                Some(_) => Step::Greeting { client, at: after(now, 2 * LEG_NS) },
                None => Step::Refused { at: after(now, LEG_NS) },
            }),
            Step::Greeting { client, .. } if !self.gets_there() => {
                Ok(Step::Greeting { client, at: after(now, RETRY_NS) })
            }
            Step::Greeting { client, .. } => {
                let Some(listening) = self.network.listening(&self.address) else {
                    return Ok(Step::Refused { at: after(now, LEG_NS) });
                };
                let hello = Frame::Hello(client.hello.clone()).to_bytes();
                let (answer, admitted) = listening.answer(&hello, self.deadline - now);
                let (answer, at) = (answer.to_bytes(), after(now, LEG_NS));
                Ok(Step::Answered { client, answer, admitted, at })
            }
            Step::Answered { client, answer, admitted, .. } if !self.comes_back() => {
                Ok(Step::Answered { client, answer, admitted, at: after(now, RETRY_NS) })
            }
            Step::Answered { admitted: Some(ref admitted), .. } if !admitted.lives() => {
                // Whoever has answered is gone, and what runs there now knows nothing of it.
                Err(self.attempt().no_server(self.nobody_listens()).into())
            }
            Step::Answered { client, answer, admitted, .. } => {
                Err(Ended(self.finish(client, &answer, admitted, now)))
            }
        }
    }

    fn attempt(&self) -> Attempt<'_> {
        attempt(&self.address, self.timeout)
    }

    /// What this end has to say.
    fn prepare(&self) -> Result<Client, ConnectError> {
        let (backend, limits) = (self.address.backend(), self.address.limits());
        let device = self.from.node.device();
        let pending = backend
            .prepare(&device, &limits, self.thread.as_ref())
            .map_err(|error| self.attempt().setup(error))?;
        let hello = attempt::hello(backend, &limits, self.service, &*pending);
        Ok(Client { pending, hello })
    }

    fn gets_there(&self) -> bool {
        self.from.runs() && self.from.node.reaches(&self.to)
    }

    fn comes_back(&self) -> bool {
        self.from.runs() && self.to.reaches(&self.from.node)
    }

    fn nobody_listens(&self) -> String {
        let (node, name) = (self.address.node(), self.address.name());
        format!(
            "node {node} runs, but nobody serves {name} there; `Rack::serve` does, or check the name"
        )
    }

    fn finish(
        &self,
        Client { pending, hello }: Client,
        answer: &[u8],
        admitted: Option<Admitted>,
        now: Instant,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        let attempt = self.attempt();
        let answer = read(answer).map_err(|error| attempt.frame(error))?;
        let Welcome { terms, setup } = attempt.welcomed(answer, &hello)?;
        let client = pending
            .finish(&terms, &setup, self.deadline - now)
            .map_err(|error| attempt.setup(error))?;
        let client = charge::client(client, &self.from.node, self.network.costs());
        let Some(admitted) = admitted else {
            return Err(attempt.misbehaved("it welcomes a client that it has not taken"));
        };
        tethered::tie_with(client, |client_hears| {
            let end = (self.from.clone(), self.address.limits().silence);
            Ok(Box::new(admitted.tie(&self.network.ties, end, client_hears)))
        })
    }
}

fn attempt(address: &RackAddress, timeout: Duration) -> Attempt<'_> {
    Attempt { address, timeout }
}

fn after(now: Instant, ns: u64) -> Instant {
    now.saturating_add_nanos(ns)
}

struct Ended(Result<Box<dyn ClientTransport>, ConnectError>);

impl From<ConnectError> for Ended {
    fn from(error: ConnectError) -> Ended {
        Ended(Err(error))
    }
}

impl Step {
    fn at(&self) -> Instant {
        match self {
            Step::New => Instant::ZERO,
            Step::Knocking { at, .. }
            | Step::Refused { at }
            | Step::Greeting { at, .. }
            | Step::Answered { at, .. } => *at,
            Step::Over => Instant::FAR_FUTURE,
        }
    }
}

impl std::fmt::Debug for Dialling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialling").field("address", &self.address).finish_non_exhaustive()
    }
}
