//! Meshes on a simulated rack: what each plan costs the NICs.

use std::time::Duration;

use farcall::mesh::{Mesh, MeshPlan, Plan};
use farcall::rack::sim::NodeId;
use farcall::rack::{Rack, site_of};
use farcall::{ChannelOptions, DrivenServer, Server};

#[farcall::service]
trait Adder {
    fn add(&self, a: u64, b: u64) -> u64;
}

#[derive(Clone)]
struct Sums;

impl Adder for Sums {
    fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

const NODES: usize = 4;

const THREADS: usize = 3;

/// Connects the mesh, with a call over each connection, and gives the queue pairs of each node's NIC.
fn queue_pairs(plan: MeshPlan, backend: &str) -> Vec<usize> {
    let mut rack = Rack::new(7);
    let nodes: Vec<NodeId> = (0..NODES).map(|_| rack.add_node()).collect();
    let address = |node: NodeId| format!("sim://{node}/adder?backend={backend}");
    let _servers: Vec<DrivenServer> = nodes
        .iter()
        .map(|node| {
            let server = plan.server(Server::builder().service(AdderServer::new(Sums)));
            rack.serve(&address(*node), server).unwrap()
        })
        .collect();
    let mut tasks = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        // The connections of a thread, or of threads that share them, are of one site.
        for first in 0..plan.mesh().threads() {
            let connections: Vec<_> =
                plan.connections(number).filter(|it| it.threads.start == first).collect();
            let to: Vec<_> =
                connections.into_iter().map(|it| (address(nodes[it.to.node]), it)).collect();
            let site = site_of(&rack.node(*node));
            tasks.push(rack.spawn_program_at(*node, &site, async move |host| {
                let mut adders = Vec::new();
                for (address, connection) in to {
                    let options =
                        ChannelOptions::default().share(true).server_thread(connection.to.thread);
                    let adder: AdderClient = host.connect_with(&address, &options).await.unwrap();
                    assert_eq!(adder.add(3, 4).await, Ok(7));
                    adders.push(adder);
                }
                // Stays connected until all have been counted.
                host.sleep(Duration::from_secs(60)).await;
                adders.len()
            }));
        }
    }
    rack.run_for(1_000_000_000);
    assert!(tasks.iter().all(|task| task.is_running()), "no program has failed");
    nodes.iter().map(|node| rack.node(*node).nic_resources().queue_pairs).collect()
}

#[test]
fn a_nic_has_as_many_queue_pairs_as_the_plan_says() {
    let mesh = Mesh::new(NODES, THREADS).unwrap();
    for plan in [Plan::AllToAll, Plan::SameNumber, Plan::Shared { by: 2 }, Plan::Shared { by: 3 }] {
        let plan = mesh.plan(plan).unwrap();
        for backend in ["write_imm", "rfp", "scale", "send_recv"] {
            assert_eq!(
                queue_pairs(plan, backend),
                [plan.queue_pairs(); NODES],
                "{backend}, {plan:?}"
            );
        }
    }
}

#[test]
fn datagrams_take_two_queue_pairs_for_each_thread_by_any_plan() {
    let mesh = Mesh::new(NODES, THREADS).unwrap();
    for plan in [Plan::AllToAll, Plan::SameNumber] {
        let plan = mesh.plan(plan).unwrap();
        assert_eq!(queue_pairs(plan, "datagram"), [2 * THREADS; NODES], "{plan:?}");
    }
}
