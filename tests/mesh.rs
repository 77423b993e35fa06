//! Meshes over shared memory: clients that name the server thread, and the connections of each plan.

use std::thread;

use farcall::mesh::{Mesh, MeshPlan, Peer, Plan};
use farcall::{ConnectError, RunningServer, Server};

#[farcall::service]
trait Where {
    /// The node and the thread that run this.
    fn here(&self) -> (usize, u16);
}

#[derive(Clone)]
struct Node(usize);

impl Where for Node {
    fn here(&self) -> (usize, u16) {
        let this = thread::current();
        let number = this.name().and_then(|name| name.strip_prefix("farcall-server-"));
        (self.0, number.and_then(|number| number.parse().ok()).expect("a server thread"))
    }
}

struct Nodes {
    name: String,
    servers: Vec<RunningServer>,
}

impl Nodes {
    fn new(name: &str, plan: MeshPlan, options: &str) -> Nodes {
        let name = format!("shm://mesh-{name}-{}", std::process::id());
        let serve = |node| {
            let server = plan.server(Server::builder().service(WhereServer::new(Node(node))));
            server.listen(format!("{name}-{node}{options}")).unwrap()
        };
        Nodes { servers: (0..plan.mesh().nodes()).map(serve).collect(), name }
    }

    fn connect(&self, peer: Peer, options: &str) -> Result<WherePollClient, ConnectError> {
        let address = format!("{}-{}{options}", self.name, peer.node);
        WherePollClient::connect(address).server_thread(peer.thread).wait()
    }
}

#[test]
fn a_client_is_served_by_the_thread_that_it_names_over_every_backend() {
    let plan = Mesh::new(2, 3).unwrap().plan(Plan::AllToAll).unwrap();
    for backend in ["write_imm", "rfp", "scale", "datagram", "send_recv", "hybrid"] {
        let options = format!("?backend={backend}");
        let nodes = Nodes::new(backend, plan, &options);
        // Not in rotation.
        for thread in [2, 2, 0, 1, 2, 0] {
            let mut client = nodes.connect(Peer { node: 1, thread }, &options).unwrap();
            assert_eq!(client.here(), Ok((1, thread)), "{backend}");
        }
    }
    let server = Server::builder().service(WhereServer::new(Node(0))).threads(3);
    let server = server.listen("tcp://127.0.0.1:0").unwrap();
    let client = WhereClient::connect(server.address()).server_thread(1).wait().unwrap();
    assert_eq!(client.here().wait(), Ok((0, 1)));
}

#[test]
fn a_thread_that_is_not_there_or_full_is_refused_and_no_other_serves_instead() {
    let server = Server::builder().service(WhereServer::new(Node(0))).threads(2).max_clients(2);
    let server = server.listen(format!("shm://mesh-full-{}", std::process::id())).unwrap();
    let connect = |thread| WherePollClient::connect(server.address()).server_thread(thread).wait();
    let refused = |thread| match connect(thread) {
        Err(error @ ConnectError::Refused { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("connected to thread {thread}"),
    };
    let told = refused(2);
    assert!(told.contains("no thread 2") && told.contains("it has 2"), "{told}");
    let _first = connect(1).unwrap();
    let told = refused(1);
    assert!(told.contains("client"), "{told}");
    assert!(connect(0).is_ok());
}

#[test]
fn each_plan_connects_as_it_says() {
    let mesh = Mesh::new(3, 3).unwrap();
    for (name, plan) in
        [("all", Plan::AllToAll), ("same", Plan::SameNumber), ("shared", Plan::Shared { by: 2 })]
    {
        let plan = mesh.plan(plan).unwrap();
        let nodes = Nodes::new(name, plan, "");
        let mut clients = Vec::new();
        for node in 0..mesh.nodes() {
            for connection in plan.connections(node) {
                let mut client = nodes.connect(connection.to, "").unwrap();
                assert_eq!(
                    client.here(),
                    Ok((connection.to.node, connection.to.thread)),
                    "{plan:?}"
                );
                clients.push(client);
            }
        }
        for server in &nodes.servers {
            assert_eq!(server.connections(), plan.connections_of_node(), "{plan:?}");
        }
        // The thread has room for what it expects, and for no more.
        let peer = plan.connections(0).next().unwrap().to;
        if plan.expects(peer.node, peer.thread).count() * 3 == plan.connections_of_node() {
            assert!(nodes.connect(peer, "").is_err(), "{plan:?}");
        }
    }
}

#[test]
fn threads_that_share_a_connection_call_at_once() {
    let plan = Mesh::new(2, 4).unwrap().plan(Plan::Shared { by: 4 }).unwrap();
    let nodes = Nodes::new("clones", plan, "");
    let connections: Vec<_> = plan.connections(0).collect();
    let [shared] = &connections[..] else { panic!("{connections:?}") };
    let address = format!("{}-{}", nodes.name, shared.to.node);
    let client = WhereClient::connect(address).server_thread(shared.to.thread).wait().unwrap();
    thread::scope(|scope| {
        for _ in shared.threads.clone() {
            let client = client.clone();
            scope.spawn(move || {
                for _ in 0..100 {
                    assert_eq!(client.here().wait(), Ok((1, shared.to.thread)));
                }
            });
        }
    });
    assert_eq!(nodes.servers[1].connections(), 1);
}
