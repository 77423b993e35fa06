//! Services on a simulated rack: both clients, deadlines, shutdown and failures, in virtual time.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use farcall::ping::PingPollClient;
use farcall::rack::sim::{Actor, Fault, Next, Node, NodeId, Turn};
use farcall::rack::{Dialled, Dialling, Host, Rack, site_of, turn_after};
use farcall::time::Instant;
use farcall::{
    Authentication, BindError, ConnectError, Connection, ConnectionOptions, DialOptions,
    DrivenServer, Key, PendingCall, PollClient, RefusalReason, RpcError, Server, ServerBuilder,
    ServiceDescription,
};
use farcall_core::transport::{BindTls, DialTls};

#[farcall::service]
trait Slow {
    /// Gives back the bytes.
    fn echo(&self, bytes: &[u8]) -> Vec<u8>;
    /// Uses its core for this long.
    fn burn(&self, ns: u64) -> u64;
    /// Waits until the gate is opened.
    async fn hold(&self) -> u64;
    /// Opens the gate.
    fn open(&self);
    /// The number of waiting calls.
    fn held(&self) -> u64;
}

#[derive(Default)]
struct Gate {
    open: bool,
    held: u64,
    wakers: Vec<Waker>,
}

#[derive(Clone, Default)]
struct Service {
    gate: Arc<Mutex<Gate>>,
    node: Option<Node>,
}

/// A call that waits at the gate.
struct Held(Arc<Mutex<Gate>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().unwrap().held -= 1;
    }
}

impl Slow for Service {
    fn echo(&self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn burn(&self, ns: u64) -> u64 {
        if let Some(node) = &self.node {
            node.busy(ns);
        }
        ns
    }

    async fn hold(&self) -> u64 {
        self.gate.lock().unwrap().held += 1;
        let held = Held(self.gate.clone());
        poll_fn(move |context| {
            let mut gate = held.0.lock().unwrap();
            gate.wakers.push(context.waker().clone());
            if gate.open { Poll::Ready(7) } else { Poll::Pending }
        })
        .await
    }

    fn open(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.open = true;
        let wakers = std::mem::take(&mut gate.wakers);
        drop(gate);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn held(&self) -> u64 {
        self.gate.lock().unwrap().held
    }
}

fn builder(service: Service) -> ServerBuilder {
    Server::builder().service(SlowServer::from(Arc::new(service)))
}

/// A rack with one server at `sim://1/slow`, its node, and one node for clients.
fn rack(seed: u64) -> (Rack, NodeId, (NodeId, DrivenServer)) {
    let mut rack = Rack::new(seed);
    let (node, client) = (rack.add_node(), rack.add_node());
    let service = Service { node: Some(rack.node(node)), ..Service::default() };
    let server = rack.serve("sim://1/slow", builder(service)).unwrap();
    (rack, client, (node, server))
}

const SECOND: Duration = Duration::from_secs(1);

async fn connect(host: &Host) -> SlowClient {
    host.connect("sim://1/slow").await.unwrap()
}

#[test]
fn a_calls_duration_is_that_of_its_messages_and_cores() {
    let (mut rack, client, _server) = rack(1);
    let took = rack.run(client, async |host| {
        let slow = connect(&host).await;
        let mut took = Vec::new();
        for burnt in [0, 0, 0, 5_000] {
            let begin = host.now();
            slow.burn(burnt).await.unwrap();
            took.push(host.now() - begin);
        }
        took
    });
    let took = took.unwrap();
    let [first, second, third, slow] = took[..] else { panic!("{took:?}") };
    assert!((Duration::from_micros(1)..Duration::from_micros(4)).contains(&second), "{took:?}");
    assert!(first >= second, "the NICs' caches were cold: {took:?}");
    let same = |one: Duration, other: Duration| one.abs_diff(other) < Duration::from_nanos(100);
    assert!(same(third, second) && same(slow, third + Duration::from_micros(5)), "{took:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let (mut rack, client, _server) = rack(seed);
        for task in 0..8_u64 {
            rack.spawn_program(client, async move |host| {
                let slow = connect(&host).await;
                for call in 0..20 {
                    slow.echo(&vec![1; (task * 700 + call) as usize]).await.unwrap();
                }
            });
        }
        rack.run_for(10_000_000);
        (rack.trace_hash(), rack.run_until_idle(1))
    };
    assert_eq!(run(3), run(3));
    assert!(run(3).1, "programs that have ended leave nothing to do");
    assert_ne!(run(3), run(4));
}

/// A client driven by its actor: sequential calls, then it ends.
struct Caller {
    dialling: Option<Dialling>,
    client: Option<SlowPollClient>,
    pending: Option<PendingCall<Result<Vec<u8>, RpcError>>>,
    answers: std::rc::Rc<RefCell<u32>>,
}

impl Actor for Caller {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let now = Instant::from_nanos(now_ns);
        if let Some(dialling) = &mut self.dialling {
            match dialling.turn(now) {
                Dialled::NotYet(at) => return Turn::then(Next::At(at.as_nanos())),
                Dialled::Done(transport) => {
                    let (transport, site) = (transport.unwrap(), dialling.site().clone());
                    let connection =
                        Connection::new(transport, &site, &ConnectionOptions::default());
                    self.client = Some(SlowPollClient::from_connection(connection));
                    self.dialling = None;
                }
            }
        }
        let Some(client) = &mut self.client else { return Turn::then(Next::Never) };
        let mut progress = client.connection().turn(now);
        if let Some(answer) = self.pending.as_mut().and_then(|pending| client.take(pending)) {
            assert_eq!(answer.unwrap(), [7; 32]);
            *self.answers.borrow_mut() += 1;
            self.pending = None;
        }
        if *self.answers.borrow() == 10 {
            return Turn::then(Next::Never);
        }
        if self.pending.is_none() {
            self.pending = Some(client.start_echo(&[7; 32]).unwrap());
            progress = client.connection().turn(now);
        }
        turn_after(progress)
    }
}

#[test]
fn clients_prove_their_keys_on_a_rack() {
    let (mut rack, client, _open) = rack(1);
    let key = |name: &str, byte| Key::new(name, [byte; 16]).unwrap();
    let keys = Authentication::new().key(key("alice", 7)).permit(|_, service| service == "Slow");
    let server = builder(Service::default()).authenticate(keys);
    let server = rack.serve("sim://1/keys", server).unwrap();
    let (description, site) = (SlowPollClient::DESCRIPTION, site_of(&rack.node(client)));
    let mut dial = |address: &str, service: &'static ServiceDescription, key: Option<Key>| {
        let options = DialOptions { key, ..DialOptions::default() };
        let dialling = rack.dial(client, address, service, &site, &options)?;
        rack.finish(dialling).map(drop)
    };
    dial("sim://1/keys", description, Some(key("alice", 7))).unwrap();
    for (address, service, wrong) in [
        ("sim://1/keys", description, None),
        ("sim://1/keys", description, Some(key("alice", 8))),
        ("sim://1/keys", description, Some(key("bob", 7))),
        // She may not use this.
        ("sim://1/keys", PingPollClient::DESCRIPTION, Some(key("alice", 7))),
        // This server asks for none.
        ("sim://1/slow", description, Some(key("alice", 7))),
    ] {
        let error = dial(address, service, wrong).expect_err(address);
        assert!(matches!(error, ConnectError::NotPermitted { .. }), "{error}");
    }
    let refused = server.metrics().snapshot().refused(RefusalReason::NotPermitted);
    assert_eq!(refused, 3, "one has refused to say who it is, and one was not asked");
}

/// Nobody has TLS there, so no rack is to pretend it.
#[test]
fn tls_is_refused_on_a_rack() {
    let (mut rack, client, _server) = rack(1);
    let builder = Server::builder().service(SlowServer::new(Service::default()));
    let error = rack.serve("sim://1/tls", builder.tls(BindTls::new((), true))).unwrap_err();
    assert!(matches!(error, BindError::Unsupported { .. }), "{error}");
    let options = DialOptions { tls: Some(DialTls::new(())), ..DialOptions::default() };
    let description = <SlowPollClient as PollClient>::DESCRIPTION;
    let site = site_of(&rack.node(client));
    let dialled = rack.dial(client, "sim://1/slow", description, &site, &options);
    let error = dialled.expect_err("the rack has no TLS");
    assert!(matches!(error, ConnectError::Unsupported { .. }), "{error}");
}

#[test]
fn an_actor_can_drive_its_own_connection() {
    let (mut rack, client, (_, server)) = rack(1);
    let options = DialOptions::default();
    let description = <SlowPollClient as PollClient>::DESCRIPTION;
    let site = site_of(&rack.node(client));
    let dialling = rack.dial(client, "sim://1/slow", description, &site, &options).unwrap();
    let answers = std::rc::Rc::default();
    let caller = Caller {
        dialling: Some(dialling),
        client: None,
        pending: None,
        answers: std::rc::Rc::clone(&answers),
    };
    rack.spawn(client, caller);
    assert!(rack.run_until_idle(10_000_000));
    assert_eq!(*answers.borrow(), 10);
    assert_eq!(server.connections(), 0, "it has gone");
}

#[test]
fn a_program_can_drive_its_own_connection() {
    let (mut rack, client, _server) = rack(1);
    let answer = rack.run(client, async |host| {
        let description = <SlowPollClient as PollClient>::DESCRIPTION;
        let options = DialOptions::default();
        let transport = host.dial("sim://1/slow", description, &options).await.unwrap();
        let connection = Connection::new(transport, host.site(), &ConnectionOptions::default());
        let mut client = SlowPollClient::from_connection(connection);
        let mut pending = client.start_echo(b"here").unwrap();
        host.turns(|now| {
            let progress = client.connection().turn(now);
            client.take(&mut pending).ok_or(progress)
        })
        .await
    });
    assert_eq!(answer.unwrap().unwrap(), b"here");
}

#[test]
fn a_waiting_handler_is_woken_by_another_call() {
    let (mut rack, client, _server) = rack(1);
    let held = rack.spawn_program(client, async |host| connect(&host).await.hold().await);
    rack.run_for(1_000_000);
    assert!(held.is_running());
    rack.run(client, async |host| connect(&host).await.open().await.unwrap());
    rack.run_for(100_000);
    assert_eq!(held.take(), Some(Ok(7)));
}

#[test]
fn a_deadline_passes_while_nothing_else_happens() {
    let (mut rack, client, _server) = rack(1);
    let (ended, after) = rack
        .run(client, async |host| {
            let slow = connect(&host).await;
            let begin = host.now();
            (slow.hold().timeout(Duration::from_millis(3)).await, host.now() - begin)
        })
        .unwrap();
    assert!(
        matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })),
        "{ended:?}"
    );
    assert_eq!(after, Duration::from_millis(3));
}

#[test]
fn a_shutdown_answers_what_is_in_flight_and_frees_the_address() {
    let (mut rack, client, (_, mut server)) = rack(1);
    let held = rack.spawn_program(client, async |host| {
        let slow = connect(&host).await;
        (slow.hold().await, slow.echo(b"too late").await)
    });
    rack.run_for(1_000_000);
    server.shut_down(SECOND);
    let refused =
        rack.run(client, async |host| host.connect::<SlowClient>("sim://1/slow").await.err());
    assert!(matches!(refused, Some(Some(ConnectError::NoServer { .. }))), "{refused:?}");
    assert!(!server.is_down(), "a call is in flight");
    // The limit of the shutdown is a second.
    rack.run_for(1_100_000_000);
    assert!(server.is_down());
    assert_eq!(server.aborted_calls(), 1);
    let (held, after) = held.take().unwrap();
    assert_eq!(held, Err(RpcError::Cancelled));
    assert!(matches!(after, Err(RpcError::PeerGone { .. })), "{after:?}");
    let _server = rack.serve("sim://1/slow", builder(Service::default())).unwrap();
    let echoed = rack.run(client, async |host| connect(&host).await.echo(b"again").await);
    assert_eq!(echoed.unwrap().unwrap(), b"again");
}

#[test]
fn calls_fail_when_their_servers_node_dies() {
    let (mut rack, client, (node, server)) = rack(1);
    let idle = rack.spawn_program(client, async |host| connect(&host).await.hold().await);
    // They call in different phases, so that a request of some is on its way when the node dies.
    let busy: [_; 4] = std::array::from_fn(|_| {
        rack.spawn_program(client, async |host| {
            let slow = connect(&host).await;
            loop {
                if let Err(error) = slow.echo(b"ping").await {
                    return (error, host.now());
                }
            }
        })
    });
    rack.run_for(1_000_000);
    rack.inject(Fault::KillNode(node));
    assert!(server.is_down());
    rack.run_for(6_000_000_000);
    // A client whose request was not acknowledged notices by its queue pair, any other by the server's silence.
    let ends = busy.map(|busy| busy.take().unwrap());
    for (error, _) in &ends {
        assert!(matches!(error, RpcError::PeerGone { may_have_run: true, .. }), "{error:?}");
    }
    assert!(ends.iter().any(|(_, at)| *at < 4 * SECOND), "{ends:?}");
    let ended = idle.take();
    assert!(matches!(ended, Some(Err(RpcError::PeerGone { may_have_run: true, .. }))), "{ended:?}");
    // The server restarts under the same name.
    rack.inject(Fault::RestartNode(node));
    let nobody =
        rack.run(client, async |host| host.connect::<SlowClient>("sim://1/slow").await.err());
    assert!(matches!(nobody, Some(Some(ConnectError::NoServer { .. }))), "{nobody:?}");
    let _server = rack.serve("sim://1/slow", builder(Service::default())).unwrap();
    let echoed = rack.run(client, async |host| connect(&host).await.echo(b"back").await);
    assert_eq!(echoed.unwrap().unwrap(), b"back");
}

#[test]
fn a_servers_handlers_are_dropped_when_the_clients_node_dies() {
    let (mut rack, client, (_, server)) = rack(1);
    let other = rack.add_node();
    for _ in 0..3 {
        rack.spawn_program(client, async |host| connect(&host).await.hold().await);
    }
    let held = |rack: &mut Rack| {
        let held = rack.run(other, async |host| connect(&host).await.held().await);
        // The waiting client dies.
        rack.run_for(1_000_000);
        held.unwrap().unwrap()
    };
    rack.run_for(1_000_000);
    assert_eq!((held(&mut rack), server.connections()), (3, 3));
    rack.inject(Fault::KillNode(client));
    rack.run_for(4_000_000_000);
    assert_eq!(held(&mut rack), 3, "a node without power says nothing");
    rack.run_for(2_000_000_000);
    assert_eq!((held(&mut rack), server.connections()), (0, 0));
}

#[test]
fn a_short_partition_delays_and_a_long_one_closes_the_connection() {
    let (mut rack, client, (server, _serving)) = rack(1);
    let cut = |rack: &mut Rack| rack.inject(Fault::Cut { from: server, to: client });
    let heal = |rack: &mut Rack| rack.inject(Fault::Heal { from: server, to: client });
    let held = rack.spawn_program(client, async |host| {
        let slow = connect(&host).await;
        (slow.hold().timeout(60 * SECOND).await, host.now())
    });
    rack.run_for(1_000_000);
    cut(&mut rack);
    rack.run_for(3_000_000_000);
    heal(&mut rack);
    rack.run_for(10_000_000_000);
    assert!(held.is_running(), "three seconds are nothing");
    cut(&mut rack);
    let begin = Duration::from_nanos(rack.now_ns());
    rack.run_for(10_000_000_000);
    let (ended, at) = held.take().unwrap();
    assert!(matches!(ended, Err(RpcError::PeerGone { may_have_run: true, .. })), "{ended:?}");
    assert_eq!((at - begin).as_secs(), 5);
}

#[test]
fn an_unreachable_server_is_reported_in_time() {
    let (mut rack, client, (node, _server)) = rack(1);
    let connect = |rack: &mut Rack, address: &str| {
        let options = ConnectionOptions::default().dial_timeout(2 * SECOND);
        let begin = rack.now_ns();
        let error = rack.connect::<SlowPollClient>(client, address, &options).err();
        (error.unwrap(), Duration::from_nanos(rack.now_ns() - begin))
    };
    let (error, after) = connect(&mut rack, "sim://1/nobody");
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error}");
    assert!(error.to_string().contains("nobody serves nobody") && after < SECOND / 1000, "{error}");
    let (error, _) = connect(&mut rack, "sim://9/slow");
    assert!(error.to_string().contains("no such node"), "{error}");
    let (error, _) = connect(&mut rack, "shm://slow");
    assert!(matches!(error, ConnectError::InvalidAddress(_)), "{error}");
    rack.inject(Fault::Cut { from: client, to: node });
    let (error, after) = connect(&mut rack, "sim://1/slow");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert_eq!(after, 2 * SECOND);
    let soon_ns = rack.now_ns() + 500_000_000;
    rack.schedule(soon_ns, Fault::Heal { from: client, to: node });
    let options = ConnectionOptions::default();
    rack.connect::<SlowPollClient>(client, "sim://1/slow", &options).unwrap();
    rack.inject(Fault::KillNode(node));
    let (error, after) = connect(&mut rack, "sim://1/slow");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert_eq!(after, 2 * SECOND);
}

/// A client never accepts an answer from before a restart, whenever the server's node dies during the
/// handshake.
#[test]
fn no_client_connects_to_a_server_that_died_during_the_handshake() {
    let mut refused = 0;
    for at_ns in (0..150_000).step_by(5_000) {
        let (mut rack, client, (node, _server)) = rack(1);
        rack.schedule(at_ns, Fault::KillNode(node));
        rack.schedule(at_ns + 1_000_000, Fault::RestartNode(node));
        let options = ConnectionOptions::default();
        match rack.connect::<SlowPollClient>(client, "sim://1/slow", &options) {
            Err(ConnectError::NoServer { .. }) => refused += 1,
            Err(other) => panic!("killed after {at_ns} ns: {other}"),
            Ok(mut slow) => {
                // It was connected before, and detects the failure.
                rack.run_for(10_000_000_000);
                slow.poll();
                assert!(slow.connection().is_closed(), "killed after {at_ns} ns");
            }
        }
    }
    assert!((10..30).contains(&refused), "{refused} were refused");
}
