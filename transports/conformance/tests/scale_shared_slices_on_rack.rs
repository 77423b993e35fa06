//! The slices of `scale` that several servers share, on a simulated rack whose nodes have clocks that differ and drift.

use std::{cell::RefCell, rc::Rc, sync::Arc, sync::Mutex, time::Duration};

use farcall_core::{ChannelOptions, DrivenServer, Server};
use farcall_rack::{Host, Rack};
use farcall_verbs::sim::{Node, NodeClock, NodeId, SimConfig};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

const SERVERS: usize = 3;
const GROUPS: u64 = 4;
const SLICE: u64 = 100 * MICROSECOND;

/// For all clients to connect.
const CONNECTING: u64 = 2 * MILLISECOND;

/// Of the servers' nodes. The first server's time is that of the rack.
const CLOCKS: [NodeClock; SERVERS] = [
    NodeClock { ahead_ns: 0, drift_ppb: 0 },
    NodeClock { ahead_ns: 3 * SECOND + 33 * MICROSECOND, drift_ppb: 50_000 },
    NodeClock { ahead_ns: 7 * SECOND + 266 * MICROSECOND, drift_ppb: -50_000 },
];

#[farcall::service]
trait Timed {
    /// Says whose call it is.
    fn work(&self, caller: u64) -> u64;
}

/// Calls that a server has handled: when, by the rack's clock, and whose.
type Handled = Arc<Mutex<Vec<(u64, u64)>>>;

struct Handler {
    node: Node,
    handled: Handled,
}

impl Timed for Handler {
    fn work(&self, caller: u64) -> u64 {
        self.handled.lock().unwrap().push((self.node.now_ns(), caller));
        caller
    }
}

/// How long each time took.
type Times = Rc<RefCell<Vec<u64>>>;

/// Servers, and nodes of clients.
struct Servers {
    rack: Rack,
    nodes: Vec<NodeId>,
    servers: Vec<DrivenServer>,
    handled: Vec<Handled>,
    clients: Vec<NodeId>,
}

impl Servers {
    /// Servers with these options, and those but the first with these others besides.
    fn new(all: &str, others: &str) -> Servers {
        let mut rack = Rack::with_config(7, SimConfig::default().cores(24));
        let nodes: Vec<_> = (0..SERVERS).map(|_| rack.add_node()).collect();
        for (node, clock) in nodes.iter().zip(CLOCKS) {
            rack.set_clock(*node, clock);
        }
        let clients = (0..10).map(|_| rack.add_node()).collect();
        let (servers, handled) = (Vec::new(), Vec::new());
        let mut place = Servers { rack, nodes, servers, handled, clients };
        for server in 0..SERVERS {
            let options = if server == 0 { all.to_owned() } else { format!("{all}{others}") };
            place.serve(server, &options);
        }
        place
    }

    fn serve(&mut self, server: usize, options: &str) {
        let node = self.nodes[server];
        let handled = Handled::default();
        let handler = Handler { node: self.rack.node(node), handled: Arc::clone(&handled) };
        let service = TimedServer::from(Arc::new(handler));
        let server = Server::builder().service(service).threads(1);
        let address = format!("{}{options}", self.address(node));
        self.servers.push(self.rack.serve(&address, server).expect("serve"));
        self.handled.push(handled);
    }

    fn address(&self, node: NodeId) -> String {
        format!("sim://{node}/timed?backend=scale")
    }

    /// Clients that call these servers one after the other, again and again from `from` on, in connections of their own. Gives how long it
    /// took each time to call all of them.
    fn spawn(&mut self, clients: u64, servers: &[usize], [from, until]: [Duration; 2]) -> Times {
        let times = Times::default();
        for caller in 0..clients {
            let of = |at: &usize| format!("{}&caller={caller}", self.address(self.nodes[*at]));
            let addresses: Vec<_> = servers.iter().map(of).collect();
            let times = Rc::clone(&times);
            let node = self.clients[caller as usize % self.clients.len()];
            self.rack.spawn_program(node, async move |host: Host| {
                let options = ChannelOptions::default().timeout(Duration::from_secs(5));
                let mut servers = Vec::new();
                for address in &addresses {
                    let server: TimedClient =
                        host.connect_with(address, &options).await.expect("connect");
                    servers.push(server);
                }
                host.sleep(from.saturating_sub(host.now())).await;
                while host.now() < until {
                    let began = host.now();
                    for server in &servers {
                        server.work(caller).await.expect("work");
                    }
                    times.borrow_mut().push((host.now() - began).as_nanos() as u64);
                }
            });
        }
        times
    }

    /// When clients call that have some time to connect before, and call for so long.
    fn window(&self, nanos: u64) -> [Duration; 2] {
        let from = Duration::from_nanos(self.rack.now_ns() + CONNECTING);
        [from, from + Duration::from_nanos(nanos)]
    }

    /// Runs clients to their end that call in such a [`window`](Servers::window).
    fn run(&mut self, nanos: u64) {
        self.rack.run_for(CONNECTING + nanos + 5 * MILLISECOND);
    }

    /// Has clients of all groups call the server all the time for a while. Gives how long after the begin of its slice each group was first
    /// served, by the clock of the first server: the least and the most.
    fn lateness(&mut self, server: usize) -> (i64, i64) {
        self.handled.iter().for_each(|handled| handled.lock().unwrap().clear());
        let nanos = 4 * MILLISECOND;
        let window = self.window(nanos);
        self.spawn(4 * GROUPS, &[server], window);
        self.run(nanos);
        let until = window[1].as_nanos() as u64;
        let first = self.rack.node(self.nodes[0]);
        let handled = self.handled[server].lock().unwrap();
        // Those that are on their way out when a slice ends are still served for a while.
        let mut last = [0; GROUPS as usize];
        let late = handled.iter().filter(|(at, _)| *at < until).filter_map(|&(at, caller)| {
            let group = caller % GROUPS;
            let pause = at - std::mem::replace(&mut last[group as usize], at);
            // The begin of that group's slice that is the nearest.
            let round = SLICE * GROUPS;
            let since = (first.clock_at(at) + round / 2 - SLICE * group) % round;
            (pause > SLICE).then_some(since as i64 - (round / 2) as i64)
        });
        let late: Vec<_> = late.skip(2 * GROUPS as usize).collect();
        assert!(late.len() > 20, "{} slices", late.len());
        (late.iter().copied().min().unwrap(), late.iter().copied().max().unwrap())
    }
}

fn shared() -> String {
    format!("&groups={GROUPS}&slice={}us", SLICE / MICROSECOND)
}

const FOLLOW: &str = "&slices_of=sim://1/timed";

/// How long clients take to call all servers, in the mean, while others keep each server busy.
fn mean_of_all(options: &str, others: &str) -> u64 {
    let mut servers = Servers::new(options, others);
    // Time for questions.
    servers.rack.run_for(300 * MILLISECOND);
    let nanos = 10 * MILLISECOND;
    let window = servers.window(nanos);
    (0..SERVERS).for_each(|server| drop(servers.spawn(4 * GROUPS, &[server], window)));
    let of_all = servers.spawn(2 * GROUPS, &[0, 1, 2], window);
    servers.run(nanos);
    let of_all = of_all.take();
    assert!(!of_all.is_empty(), "no client has called all");
    let mean = of_all.iter().sum::<u64>() / of_all.len() as u64;
    println!("{options}{others}: {} times, {mean} ns in the mean", of_all.len());
    mean
}

#[test]
fn a_client_of_several_servers_waits_once_where_they_share_their_slices() {
    let together = mean_of_all(&shared(), FOLLOW);
    // As many groups, in slices of their own.
    let apart = mean_of_all(&shared(), "");
    let by_priority = mean_of_all("&group=6&slice=100us", "");
    assert!(2 * together < apart, "{together} and {apart} ns");
    assert!(2 * together < by_priority, "{together} and {by_priority} ns");
}

#[test]
fn slices_stay_together_while_clocks_drift_and_the_first_server_is_away() {
    let mut servers = Servers::new(&shared(), FOLLOW);
    let check = |servers: &mut Servers, when: &str| {
        for server in 1..SERVERS {
            let (least, most) = servers.lateness(server);
            println!("{when}: server {server} is {least} to {most} ns late");
            assert!(least >= -5_000 && most <= 5_000, "{when}: {least} to {most} ns");
        }
    };
    servers.rack.run_for(150 * MILLISECOND);
    check(&mut servers, "after one question");
    servers.rack.run_for(2 * SECOND);
    check(&mut servers, "after two seconds");
    let first = servers.rack.node(servers.nodes[0]);
    first.kill();
    servers.rack.run_for(2 * SECOND);
    check(&mut servers, "without the first server");
    first.restart();
    // Its clock begins again.
    servers
        .rack
        .set_clock(servers.nodes[0], NodeClock { ahead_ns: 40 * MICROSECOND, drift_ppb: 20_000 });
    servers.serve(0, &shared());
    servers.rack.run_for(2 * SECOND);
    check(&mut servers, "with the first server again");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let mut servers = Servers::new(&shared(), FOLLOW);
    let node = servers.nodes[0];
    for (options, wanted) in [
        ("slices_of=sim://1/timed", "slices_of needs groups=N"),
        ("groups=4&slices_of=shm://timed", "slices_of: unknown scheme"),
        ("groups=1", "a number of groups from 2 to 256"),
        ("groups=4&slices_of=1", "the address of another server"),
        ("caller=-1", "a number"),
    ] {
        let node_of_other = servers.nodes[1];
        let handler = Handler { node: servers.rack.node(node), handled: Handled::default() };
        let server = Server::builder().service(TimedServer::from(Arc::new(handler)));
        let address = format!("sim://{node_of_other}/other?backend=scale&{options}");
        let error = servers.rack.serve(&address, server).expect_err(options);
        let text = format!(
            "{error}: {}",
            std::error::Error::source(&error).map_or_else(String::new, ToString::to_string)
        );
        assert!(text.contains(wanted), "{options}: {text}");
    }
}
