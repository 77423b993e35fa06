//! Connections of several lanes: each lane is a transport of its own, by another backend, and what is counted is the connection.

use std::time::{Duration, Instant};

use farcall::{
    Authentication, CallContext, Connection, ConnectionOptions, Key, PollClient, RefusalReason,
    RunningServer, Server, ServerBuilder,
};
use farcall_core::transport::{ConnectionId, Dial, DialOptions, Lane, NewConnection};
use farcall_core::{ConnectError, site::Site};
use farcall_transports::Address;

const BOUND: Duration = Duration::from_secs(20);

#[farcall::service]
trait Where {
    /// Which of the server's threads runs this.
    fn thread(&self) -> String;
    fn who(&self) -> Option<String>;
}

#[derive(Clone)]
struct Here;

impl Where for Here {
    fn thread(&self) -> String {
        format!("{:?}", std::thread::current().id())
    }

    fn who(&self) -> Option<String> {
        let context = CallContext::current()?;
        context.identity().map(|identity| identity.name().to_owned())
    }
}

const OFFERED: &str = "write_imm,rfp,datagram";

struct Fixture {
    name: String,
    server: RunningServer,
}

impl Fixture {
    fn new(name: &str, change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Fixture {
        let name = format!("shm://lanes-{name}-{}", std::process::id());
        let server = Server::builder().service(WhereServer::new(Here)).threads(4);
        let server = change(server).listen(format!("{name}?backend={OFFERED}")).unwrap();
        Fixture { name, server }
    }

    fn dial(
        &self,
        backend: &str,
        lane: Lane,
        change: impl FnOnce(&mut DialOptions),
    ) -> Result<(WherePollClient, Option<ConnectionId>), ConnectError> {
        let address: Address = format!("{}?backend={backend}", self.name).parse().unwrap();
        let (site, mut options) = (Site::new(), DialOptions { lane, ..DialOptions::default() });
        change(&mut options);
        let dialled = address.dial(WherePollClient::DESCRIPTION, &site, &options)?;
        let NewConnection { connection, .. } = &dialled;
        let id = *connection;
        let connection = Connection::new(dialled, &site, &ConnectionOptions::default());
        Ok((WherePollClient::from_connection(connection), id))
    }

    fn first(&self, backend: &str) -> (WherePollClient, ConnectionId) {
        let (client, id) = self.dial(backend, Lane::First, |_| ()).unwrap();
        (client, id.expect("the server has lanes"))
    }

    fn further(&self, backend: &str, id: ConnectionId) -> Result<WherePollClient, ConnectError> {
        self.dial(backend, Lane::Of(id), |_| ()).map(|(client, _)| client)
    }

    fn refused(&self) -> u64 {
        self.server.metrics().snapshot().refused(RefusalReason::UnknownConnection)
    }

    /// Threads tell of what they have dropped a moment later.
    fn wait_for_connections(&self, count: usize) {
        let until = Instant::now() + BOUND;
        while self.server.connections() != count {
            assert!(Instant::now() < until, "{} connections", self.server.connections());
            std::thread::yield_now();
        }
    }
}

#[test]
fn lanes_of_a_connection_come_to_one_thread_and_count_once() {
    let fixture = Fixture::new("thread", |server| server.max_clients(8));
    let mut alone = fixture.dial("rfp", Lane::Alone, |_| ()).unwrap();
    assert_eq!(alone.1, None);
    for round in 0..8 {
        let (mut first, id) = fixture.first("write_imm");
        let thread = first.thread().unwrap();
        let mut lanes = [fixture.further("rfp", id), fixture.further("datagram", id)]
            .map(|lane| lane.expect("another backend"));
        for lane in &mut lanes {
            assert_eq!(lane.thread().as_ref(), Ok(&thread), "round {round}");
        }
        fixture.wait_for_connections(2);
        // The first lane ends, the connection goes on.
        drop(first);
        fixture.wait_for_connections(2);
        assert_eq!(lanes[0].thread().as_ref(), Ok(&thread));
        let mut again = fixture.further("write_imm", id);
        let until = Instant::now() + BOUND;
        while again.is_err() && Instant::now() < until {
            again = fixture.further("write_imm", id);
        }
        assert_eq!(again.unwrap().thread(), Ok(thread));
        drop(lanes);
        fixture.wait_for_connections(1);
        assert!(fixture.further("rfp", id).is_err(), "with its last lane it has ended");
    }
    assert!(alone.0.thread().is_ok());
}

#[test]
fn connections_and_not_lanes_fill_the_server() {
    let fixture = Fixture::new("full", |server| server.threads(1).max_clients(2));
    let (_first, id) = fixture.first("write_imm");
    let _second = fixture.first("write_imm");
    let lanes = ["rfp", "datagram"].map(|backend| fixture.further(backend, id).unwrap());
    for backend in ["rfp", "datagram"] {
        let refused = fixture.dial(backend, Lane::First, |_| ()).err().unwrap();
        assert!(refused.to_string().contains("2 clients"), "{refused}");
    }
    drop(lanes);
}

#[test]
fn an_id_that_is_guessed_or_of_another_life_is_refused_and_counted() {
    let fixture = Fixture::new("guessed", |server| server);
    let (_first, id) = fixture.first("write_imm");
    let guessed = ConnectionId::new([7; 16]);
    let refused = fixture.further("rfp", guessed).err().unwrap();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("connect anew"), "{refused}");
    assert_eq!(fixture.refused(), 1);
    let Fixture { name, server } = fixture;
    server.shutdown();
    let server = Server::builder().service(WhereServer::new(Here));
    let server = server.listen(format!("{name}?backend={OFFERED}")).unwrap();
    let fixture = Fixture { name, server };
    assert!(fixture.further("rfp", id).is_err(), "of the server before");
    assert_eq!(fixture.refused(), 1);
}

#[test]
fn a_lane_with_another_identity_is_refused_as_one_that_is_not_known() {
    let key = |name: &str| Key::new(name, *b"sixteen secret b").unwrap();
    let keys = Authentication::new().key(key("alice")).key(key("bob"));
    let fixture = Fixture::new("identity", |server| server.authenticate(keys));
    let dial = |backend, lane, name: &str| {
        fixture.dial(backend, lane, |options| options.key = Some(key(name)))
    };
    let (mut first, id) = dial("write_imm", Lane::First, "alice").unwrap();
    let id = id.expect("the server has lanes");
    let told = |result: Result<_, ConnectError>| match result {
        Err(ConnectError::Refused { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in"),
    };
    let of_bob = told(dial("rfp", Lane::Of(id), "bob"));
    let unknown = told(dial("rfp", Lane::Of(ConnectionId::new([7; 16])), "bob"));
    assert_eq!(of_bob, unknown);
    assert_eq!(fixture.refused(), 2);
    let (mut second, _) = dial("rfp", Lane::Of(id), "alice").unwrap();
    for lane in [&mut first, &mut second] {
        assert_eq!(lane.who(), Ok(Some("alice".into())));
    }
}
