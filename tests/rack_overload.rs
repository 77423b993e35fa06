//! A thousand clients of a simulated rack ask one server thread for twice as much as it can do.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use farcall::rack::sim::{Node, SimConfig};
use farcall::rack::{Host, Rack};
use farcall::{RpcError, Server};

#[farcall::service]
trait Work {
    fn work(&self);
}

struct Worker {
    node: Node,
    ran: Arc<AtomicU64>,
}

impl Work for Worker {
    fn work(&self) {
        self.node.busy(TIME.as_nanos() as u64);
        self.ran.fetch_add(1, SeqCst);
    }
}

const CLIENTS: usize = 1000;

/// What a handler takes.
const TIME: Duration = Duration::from_micros(100);

/// How long clients wait for an answer, and then call again.
const TIMEOUT: Duration = Duration::from_millis(50);

const LASTS: Duration = Duration::from_millis(500);

/// Calls that were answered in time and handlers that ran, both as parts of what the thread can do.
fn goodput(backend: &str) -> (f64, f64) {
    let mut rack = Rack::with_config(11, SimConfig::default().timed_turns());
    let server = rack.add_node();
    let (ran, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let worker = Worker { node: rack.node(server), ran: Arc::clone(&ran) };
    let at = format!("sim://{server}/work?backend={backend}&window=4&slot=1k");
    let builder = Server::builder().service(WorkServer::new(worker)).threads(1);
    let _serving = rack.serve(&at, builder).expect("serve");
    let nodes: Vec<_> = (0..20).map(|_| rack.add_node()).collect();
    for client in 0..CLIENTS {
        let (at, answered) = (at.clone(), Arc::clone(&answered));
        rack.spawn_program(nodes[client % nodes.len()], async move |host: Host| {
            let client: WorkClient = host.connect(&at).await.expect("connect");
            while host.now() < LASTS {
                match client.work().timeout(TIMEOUT).await {
                    Ok(()) => drop(answered.fetch_add(1, SeqCst)),
                    Err(RpcError::DeadlineExceeded { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    // Some are connected late.
    rack.run_for(100_000_000);
    let before = (answered.load(SeqCst), ran.load(SeqCst));
    rack.run_for(300_000_000);
    let of_capacity = |count: u64| count as f64 * TIME.as_secs_f64() / 0.3;
    (of_capacity(answered.load(SeqCst) - before.0), of_capacity(ran.load(SeqCst) - before.1))
}

#[test]
fn at_twice_its_load_a_server_answers_most_of_what_it_can() {
    for backend in ["write_imm", "send_recv", "rfp", "scale", "datagram"] {
        let (answered, ran) = goodput(backend);
        println!("{backend}: answered {answered:.2}, ran {ran:.2} of what the thread can run");
        assert!(ran <= 1.01, "{backend}: it is measured wrongly");
        assert!(answered >= 0.8, "{backend}: {answered:.2} answered, {ran:.2} ran");
    }
}
