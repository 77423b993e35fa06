//! Dialling, as a state machine in virtual time.

use std::sync::Arc;
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{ClientTransport, DialOptions, Lane, LaneReason, NewConnection};
use farcall_transports::bootstrap::{self, Attempt};
use farcall_transports::contract::{self, PendingClient, Placement, Stream};
use farcall_transports::handshake::{
    Agreement, ClientHandshake, ClientStep, ServerHandshake, Welcome,
};
use farcall_transports::hybrid::{Hybrid, OpenLane, Opening, Ways};
use farcall_verbs::sim::Node;

use super::address::RackAddress;
use super::admitted::Admitted;
use super::cpu_costs;
use super::liveness::NodeLife;
use super::network::{Answer, LEG_NS, Listening, Network, RETRY_NS, Then, fabric};
use super::waking::Waking;

/// A connection that is being made by a program of a node: it takes [turns](Dialling::turn).
///
/// What TCP does is done here in so many legs of the network: a connection, hello, and the server's answer. What is
/// lost is sent again until the time of [`DialOptions`] is over.
pub struct Dialling {
    network: Arc<Network>,
    from: NodeLife,
    to: Node,
    /// As it was given, for errors.
    named: RackAddress,
    address: RackAddress,
    /// What a connection moves among, if it does, and which of them `address` is.
    ways: Option<(Vec<RackAddress>, usize)>,
    service: &'static ServiceDescription,
    site: Site,
    options: DialOptions,
    deadline: Instant,
    step: Step,
}

/// How far a [`Dialling`] is.
#[must_use = "a connection that is not taken is lost"]
pub enum Dialled {
    /// Look again at this moment.
    NotYet(Instant),
    /// It has ended.
    Done(Result<NewConnection, ConnectError>),
}

enum Step {
    /// Nothing has happened yet.
    New,
    /// The connection request reaches the server's node at this moment.
    Connecting {
        client: Client,
        at: Instant,
    },
    /// The client learns at this moment that nobody listens there.
    Refused {
        at: Instant,
    },
    /// The first frame comes to the server at this moment.
    Greeting {
        client: Client,
        at: Instant,
    },
    /// The client's proof comes to the server that asked for it at this moment.
    Proving {
        client: Client,
        proof: Vec<u8>,
        server: (Arc<Listening>, Box<ServerHandshake>),
        at: Instant,
    },
    /// The answer of that server comes at this moment.
    Answered {
        client: Client,
        answer: Answer,
        server: Arc<Listening>,
        at: Instant,
    },
    /// The client shows the server that it receives where it said, and goes on at this moment.
    Confirming {
        client: Client,
        agreement: Agreement,
        admitted: Box<Admitted>,
        at: Instant,
    },
    Over,
}

/// The client's half of the handshake.
struct Client {
    pending: Box<dyn PendingClient>,
    handshake: ClientHandshake,
}

impl Dialling {
    pub(super) fn new(
        network: &Arc<Network>,
        from: NodeLife,
        address: &str,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<Dialling, ConnectError> {
        let address: RackAddress =
            address.parse().map_err(|why| ConnectError::InvalidAddress(Box::new(why)))?;
        if options.tls.is_some() {
            let what = "a simulated rack has no TLS; leave `tls` away there".into();
            return Err(ConnectError::Unsupported { address: address.to_string(), what });
        }
        let Some(to) = network.any.neighbour(address.node()) else {
            let hint =
                "the rack has no such node; `Sim::add_node` gives the numbers of those it has";
            return Err(attempt(&address, options.timeout).no_server(hint));
        };
        let ways = address.ways().map(|ways| (ways, 0));
        let named = address;
        let address = ways.as_ref().map_or_else(|| named.clone(), |(ways, _)| ways[0].clone());
        let ways = ways.filter(|(ways, _)| ways.len() > 1 && options.lane == Lane::Alone);
        let mut options = options.clone();
        if ways.is_some() {
            options.lane = Lane::First;
        }
        Ok(Dialling {
            network: Arc::clone(network),
            from,
            to,
            named,
            address,
            ways,
            service,
            site: site.clone(),
            options,
            deadline: Instant::FAR_FUTURE,
            step: Step::New,
        })
    }

    /// The site that the connection is for.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Does what can be done at `now`. The time for it begins with the first turn.
    pub fn turn(&mut self, now: Instant) -> Dialled {
        match self.advance(now) {
            Ok(Step::Over) => Dialled::NotYet(Instant::FAR_FUTURE),
            Ok(step) => {
                self.step = step;
                Dialled::NotYet(self.step.at().min(self.deadline))
            }
            Err(Ended(Err(error))) if bootstrap::can_go_elsewhere(&error) && self.go_on() => {
                self.turn(now)
            }
            Err(Ended(result)) => Dialled::Done(result.map(|made| self.let_move(made))),
        }
    }

    /// Dials the next way; `false`: there is none.
    fn go_on(&mut self) -> bool {
        let Some((ways, at)) = &mut self.ways else { return false };
        let Some(next) = ways.get(*at + 1) else { return false };
        (self.address, self.step) = (next.clone(), Step::New);
        self.options.why = LaneReason::Fallback;
        *at += 1;
        true
    }

    /// The connection, with what opens its further lanes if it moves.
    fn let_move(&mut self, made: NewConnection) -> NewConnection {
        let (Some(id), Some((ways, home))) = (made.connection, self.ways.take()) else {
            return made;
        };
        let opener = Opener {
            among: bootstrap::ways_among(ways.iter().map(|way| (way.backend(), way.config()))),
            ways,
            network: Arc::clone(&self.network),
            from: self.from.clone(),
            service: self.service,
            site: self.site.clone(),
            options: DialOptions { lane: Lane::Of(id), ..self.options.clone() },
            dialling: None,
        };
        let (seed, moves) = (bootstrap::seed_of(&id), Arc::clone(&self.options.moves));
        let moving = |first| -> Box<dyn ClientTransport> {
            Box::new(Hybrid::new(first, home, Box::new(opener), seed).counting(moves))
        };
        NewConnection { connection: None, ..made.with_layer(moving) }
    }

    fn advance(&mut self, now: Instant) -> Result<Step, Ended> {
        let step = std::mem::replace(&mut self.step, Step::Over);
        if let Step::New = step {
            if self.deadline == Instant::FAR_FUTURE {
                self.deadline = now + self.options.timeout;
            }
            return Ok(Step::Connecting { client: self.prepare()?, at: after(now, LEG_NS) });
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
            Step::Connecting { client, .. } if !self.reaches_server() => {
                Ok(Step::Connecting { client, at: after(now, RETRY_NS) })
            }
            Step::Connecting { client, .. } => Ok(match self.network.listening(&self.address) {
                Some(_) => Step::Greeting { client, at: after(now, 2 * LEG_NS) },
                None => Step::Refused { at: after(now, LEG_NS) },
            }),
            Step::Greeting { client, .. } if !self.reaches_server() => {
                Ok(Step::Greeting { client, at: after(now, RETRY_NS) })
            }
            Step::Greeting { client, .. } => {
                let Some(listening) = self.network.listening(&self.address) else {
                    return Ok(Step::Refused { at: after(now, LEG_NS) });
                };
                let hello = client.handshake.hello_bytes();
                let handshake = listening.handshake(&self.network);
                let answer = listening.answer(handshake, &hello, (&self.from, self.deadline - now));
                Ok(Step::Answered { client, answer, server: listening, at: after(now, LEG_NS) })
            }
            Step::Proving { client, proof, server, .. } if !self.reaches_server() => {
                Ok(Step::Proving { client, proof, server, at: after(now, RETRY_NS) })
            }
            Step::Answered { client, answer, server, .. } if !self.reaches_client() => {
                Ok(Step::Answered { client, answer, server, at: after(now, RETRY_NS) })
            }
            Step::Proving { server: (ref server, _), .. } if !self.listens(server) => {
                Err(self.attempt().no_server(self.nobody_listens()).into())
            }
            Step::Answered { ref server, .. } if !server.life.is_running() => {
                // What runs there now knows nothing of it.
                Err(self.attempt().no_server(self.nobody_listens()).into())
            }
            Step::Confirming { ref admitted, .. } if !admitted.is_served() => {
                Err(self.attempt().no_server(self.nobody_listens()).into())
            }
            Step::Proving { client, proof, server: (server, handshake), .. } => {
                let answer = server.answer(*handshake, &proof, (&self.from, self.deadline - now));
                Ok(Step::Answered { client, answer, server, at: after(now, LEG_NS) })
            }
            Step::Answered { client, answer, server, .. } => {
                self.take_answer(client, answer, server, now)
            }
            Step::Confirming { client, agreement, admitted, .. } => {
                self.confirm(client, agreement, admitted, now)
            }
        }
    }

    /// The server's answer has come.
    fn take_answer(
        &self,
        mut client: Client,
        answer: Answer,
        server: Arc<Listening>,
        now: Instant,
    ) -> Result<Step, Ended> {
        let attempt = self.attempt();
        let received = client.handshake.receive(&answer.bytes);
        let refused = |refusal| attempt.refused(refusal, client.handshake.hello());
        match (received.map_err(refused)?, answer.then) {
            (ClientStep::Connect(agreement), Then::Ready(admitted)) => {
                self.confirm(client, agreement, admitted, now)
            }
            (ClientStep::Send(proof), Then::Proof(handshake)) => {
                let server = (server, handshake);
                Ok(Step::Proving { client, proof, server, at: after(now, LEG_NS) })
            }
            _ => Err(attempt.misbehaved("it welcomes a client that it has not taken").into()),
        }
    }

    /// Shows the server that the client receives where it said, if the server asks for that. Then it is connected.
    fn confirm(
        &self,
        mut client: Client,
        agreement: Agreement,
        admitted: Box<Admitted>,
        now: Instant,
    ) -> Result<Step, Ended> {
        let Welcome { terms, setup, .. } = &agreement.welcome;
        let answer = contract::Answer { terms, setup, timeout: self.deadline - now };
        let confirmed = client.pending.confirm(&answer, now);
        match confirmed.map_err(|error| self.attempt().setup(error))? {
            Some(at) => Ok(Step::Confirming { client, agreement, admitted, at }),
            None => Err(Ended(self.finish(client, agreement, admitted, now))),
        }
    }

    fn attempt(&self) -> Attempt<'_> {
        attempt(&self.named, self.options.timeout)
    }

    /// What this end has to say.
    fn prepare(&self) -> Result<Client, ConnectError> {
        let (backend, config) = (self.address.backend(), self.address.config());
        let device = self.network.device(&self.from);
        let (fabric, share) = (fabric(backend, &device), self.options.share);
        let pending = backend
            .dial(&Placement { share, ..Placement::new(&self.site, fabric) }, config)
            .map_err(|error| self.attempt().setup(error))?;
        let by = (backend, config);
        let mut handshake = self.attempt().handshake(by, self.service, &self.options, &*pending)?;
        if let Some(key) = &self.options.key {
            handshake = handshake.with_key(key.clone(), self.network.nonce());
        }
        Ok(Client { pending, handshake })
    }

    fn reaches_server(&self) -> bool {
        self.from.is_running() && self.from.node.reaches(&self.to)
    }

    fn reaches_client(&self) -> bool {
        self.from.is_running() && self.to.reaches(&self.from.node)
    }

    fn listens(&self, server: &Arc<Listening>) -> bool {
        let listening = self.network.listening(&self.address);
        listening.is_some_and(|listening| Arc::ptr_eq(&listening, server))
    }

    fn nobody_listens(&self) -> String {
        let (node, name) = (self.address.node(), self.address.name());
        format!(
            "node {node} runs, but nobody serves {name} there; `Rack::serve` does, or check the name"
        )
    }

    fn finish(
        &self,
        Client { mut pending, handshake }: Client,
        agreement: Agreement,
        admitted: Box<Admitted>,
        now: Instant,
    ) -> Result<NewConnection, ConnectError> {
        let attempt = self.attempt();
        let Agreement { welcome: Welcome { terms, setup, connection }, compatibility } = agreement;
        let timeout = self.deadline - now;
        let take_stream = pending.take_stream();
        let client = pending
            .finish(contract::Answer { terms: &terms, setup: &setup, timeout })
            .map_err(|error| attempt.setup(error))?;
        let client = cpu_costs::client(client, &self.from.node, self.network.costs());
        let end = (self.from.clone(), self.address.config().silence);
        let ready = handshake.ready_bytes();
        if let Some(take) = take_stream {
            let Some(mut stream) = admitted.finish_with_stream(&ready, &self.network, end) else {
                return Err(attempt.misbehaved("it does not take a client that is ready"));
            };
            let waking = Waking::at(&self.site, &self.from.node);
            let waking = waking.map_err(|error| attempt.device(error))?;
            if let Some(actor) = self.from.node.waker() {
                waking.set_actor(actor);
            }
            stream.waking = Some(waking);
            take(Stream::Custom(Box::new(stream)));
            return Ok(NewConnection { transport: client, compatibility, connection });
        }
        let transport = bootstrap::end_with_peer(client, &self.site, |on_server_gone| {
            let liveness = &self.network.liveness;
            match admitted.finish(&ready, liveness, end, on_server_gone) {
                Some(end) => Ok(Box::new(end) as Box<dyn Send>),
                None => Err(attempt.misbehaved("it does not take a client that is ready")),
            }
        })?;
        Ok(NewConnection { transport, compatibility, connection })
    }
}

fn attempt(address: &RackAddress, timeout: Duration) -> Attempt<'_> {
    Attempt { address, timeout }
}

fn after(now: Instant, ns: u64) -> Instant {
    now.saturating_add_nanos(ns)
}

/// Opens further lanes in virtual time.
struct Opener {
    ways: Vec<RackAddress>,
    among: Ways,
    network: Arc<Network>,
    from: NodeLife,
    service: &'static ServiceDescription,
    site: Site,
    options: DialOptions,
    dialling: Option<Result<Dialling, ConnectError>>,
}

impl OpenLane for Opener {
    fn ways(&self) -> &Ways {
        &self.among
    }

    fn open(&mut self, way: usize, why: LaneReason) {
        self.options.why = why;
        let address = self.ways[way].to_string();
        let Opener { network, from, service, site, options, .. } = self;
        let dialling = Dialling::new(network, from.clone(), &address, service, site, options);
        self.dialling = Some(dialling);
    }

    fn poll(&mut self, now: Instant) -> Opening {
        let dialled = match self.dialling.as_mut() {
            Some(Ok(dialling)) => dialling.turn(now),
            _ => match self.dialling.take() {
                Some(Err(error)) => Dialled::Done(Err(error)),
                _ => return Opening::NotYet(PollAt::OnEvent),
            },
        };
        match dialled {
            Dialled::NotYet(at) => Opening::NotYet(PollAt::At(at)),
            Dialled::Done(result) => {
                self.dialling = None;
                Opening::Done(result.map(|made| made.transport))
            }
        }
    }
}

struct Ended(Result<NewConnection, ConnectError>);

impl From<ConnectError> for Ended {
    fn from(error: ConnectError) -> Ended {
        Ended(Err(error))
    }
}

impl Step {
    fn at(&self) -> Instant {
        match self {
            Step::New => Instant::ZERO,
            Step::Connecting { at, .. }
            | Step::Refused { at }
            | Step::Greeting { at, .. }
            | Step::Proving { at, .. }
            | Step::Answered { at, .. }
            | Step::Confirming { at, .. } => *at,
            Step::Over => Instant::FAR_FUTURE,
        }
    }
}

impl std::fmt::Debug for Dialling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialling").field("address", &self.address).finish_non_exhaustive()
    }
}
