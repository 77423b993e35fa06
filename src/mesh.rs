//! Which thread connects to which in a mesh of nodes, each of which is a client and a server of every other.
//!
//! A NIC keeps state for each queue pair, and slows down when there are more than its memory holds. How many it has depends
//! on the plan: with [`Plan::AllToAll`] it grows with the square of the threads of a node, with [`Plan::SameNumber`] with
//! their number, and with [`Plan::Shared`] with less than that, at the price of a connection that several threads use.
//!
//! ```
//! use farcall::Server;
//! use farcall::mesh::{Mesh, Plan};
//! # #[farcall::service]
//! # trait Kv {
//! #     fn get(&self, key: u64) -> u64;
//! # }
//! # #[derive(Clone)]
//! # struct Store;
//! # impl Kv for Store {
//! #     fn get(&self, key: u64) -> u64 {
//! #         key
//! #     }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let run = std::process::id();
//! let address = |node: usize| format!("shm://mesh-{node}-{run}");
//! let plan = Mesh::new(2, 2)?.plan(Plan::SameNumber)?;
//! let servers = (0..2)
//!     .map(|node| plan.server(Server::builder().service(KvServer::new(Store))).listen(address(node)))
//!     .collect::<Result<Vec<_>, _>>()?;
//!
//! // What each thread of node 0 does. In a rack, each node has a process of its own.
//! for thread in 0..plan.mesh().threads() {
//!     let clients = plan
//!         .dials(0, thread)
//!         .map(|peer| KvPollClient::connect(address(peer.node)).server_thread(peer.thread).wait())
//!         .collect::<Result<Vec<_>, _>>()?;
//!     assert_eq!(clients.len(), 1, "thread {thread} of node 1");
//! }
//! # drop(servers);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::Range;

use crate::ServerBuilder;

/// Most nodes of a mesh.
const MAX_NODES: usize = 1 << 16;

/// Most threads of a node: those of a server.
const MAX_THREADS: usize = 1024;

/// Nodes with the same number of threads. Each thread calls, and each serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    nodes: usize,
    threads: u16,
}

impl Mesh {
    /// So many nodes with so many threads each.
    ///
    /// # Errors
    /// Fewer than 2 nodes or more than 65,536; no thread or more than 1,024.
    pub fn new(nodes: usize, threads: usize) -> Result<Mesh, MeshError> {
        if !(2..=MAX_NODES).contains(&nodes) {
            return Err(MeshError::Nodes { nodes });
        }
        match u16::try_from(threads) {
            Ok(count @ 1..) if threads <= MAX_THREADS => Ok(Mesh { nodes, threads: count }),
            _ => Err(MeshError::Threads { threads }),
        }
    }

    /// Its nodes, which are numbered from 0.
    pub fn nodes(self) -> usize {
        self.nodes
    }

    /// The threads of each node, which are numbered from 0.
    pub fn threads(self) -> u16 {
        self.threads
    }

    /// The connections of this plan.
    ///
    /// # Errors
    /// [`Plan::Shared`] with no thread for a connection, or more than a node has.
    pub fn plan(self, plan: Plan) -> Result<MeshPlan, MeshError> {
        match plan {
            Plan::Shared { by } if !(1..=self.threads).contains(&by) => {
                Err(MeshError::Sharing { by, threads: self.threads })
            }
            _ => Ok(MeshPlan { mesh: self, plan }),
        }
    }
}

/// Why there is no such mesh, or plan of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeshError {
    /// So many nodes are no mesh.
    Nodes {
        /// How many.
        nodes: usize,
    },
    /// A node has not so many threads.
    Threads {
        /// How many.
        threads: usize,
    },
    /// A connection cannot be shared by so many threads.
    Sharing {
        /// Threads for each connection.
        by: u16,
        /// Threads of a node.
        threads: u16,
    },
}

impl fmt::Display for MeshError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeshError::Nodes { nodes } => {
                write!(f, "a mesh of {nodes} nodes; it has 2 to {MAX_NODES}")
            }
            MeshError::Threads { threads } => {
                write!(
                    f,
                    "a mesh with {threads} threads for each node; they are 1 to {MAX_THREADS}"
                )
            }
            MeshError::Sharing { by, threads } => write!(
                f,
                "a connection for {by} threads, where a node has {threads}; share each by 1 to {threads}"
            ),
        }
    }
}

impl std::error::Error for MeshError {}

/// How the threads of a mesh are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// Each thread to each thread of every other node: a call reaches any thread without a detour.
    AllToAll,
    /// Each thread to the thread of the same number of every other node, as FaSST's measurements of one-sided operations do.
    SameNumber,
    /// As `SameNumber`, but so many threads of a node share one connection, which leads to one of those threads of the other node.
    ///
    /// Which one depends on the two nodes, so that all threads of a node serve equally many. Threads that share a connection use clones of one async
    /// client, and contend for it: sharing costs more than the queue pairs that it saves unless a NIC has far too many of them.
    Shared {
        /// Threads for each connection: 1 to as many as a node has.
        by: u16,
    },
}

/// A thread of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The node.
    pub node: usize,
    /// Its thread, for [`server_thread`](crate::ConnectionOptions::server_thread).
    pub thread: u16,
}

/// A connection of a node, as [`MeshPlan::connections`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedConnection {
    /// The threads of the node that call over it.
    pub threads: Range<u16>,
    /// The thread that it leads to.
    pub to: Peer,
}

/// The connections of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshPlan {
    mesh: Mesh,
    plan: Plan,
}

impl MeshPlan {
    /// The mesh.
    pub fn mesh(self) -> Mesh {
        self.mesh
    }

    /// The threads that share the connections of one of them: only that one, unless the plan is a shared one.
    fn group(self, thread: u16) -> Range<u16> {
        let Plan::Shared { by } = self.plan else { return thread..thread + 1 };
        let first = thread - thread % by;
        first..(first + by).min(self.mesh.threads)
    }

    /// The threads of node `to` that a group of threads of node `from` calls.
    fn called(self, from: usize, to: usize, group: &Range<u16>) -> Range<u16> {
        match self.plan {
            Plan::AllToAll => 0..self.mesh.threads,
            Plan::SameNumber => group.clone(),
            Plan::Shared { .. } => {
                // From any node the others are 1, 2, 3 and so on away: the threads of the group take turns.
                let distance = (from + self.mesh.nodes - to) % self.mesh.nodes;
                let thread = group.start + ((distance - 1) % group.len()) as u16;
                thread..thread + 1
            }
        }
    }

    fn others(self, node: usize) -> impl Iterator<Item = usize> {
        assert!(node < self.mesh.nodes, "no node {node} in a mesh of {}", self.mesh.nodes);
        (0..self.mesh.nodes).filter(move |other| *other != node)
    }

    fn check_thread(self, thread: u16) {
        let threads = self.mesh.threads;
        assert!(thread < threads, "no thread {thread} at a node of {threads}");
    }

    /// The peers that a thread is connected to. It dials them itself, unless the plan is a [shared](Plan::Shared) one: then the
    /// threads of [`connections`](Self::connections) have one connection.
    ///
    /// # Panics
    /// If the mesh has no such node, or the node no such thread.
    pub fn dials(self, node: usize, thread: u16) -> impl Iterator<Item = Peer> {
        self.check_thread(thread);
        let group = self.group(thread);
        self.others(node).flat_map(move |to| {
            self.called(node, to, &group).map(move |thread| Peer { node: to, thread })
        })
    }

    /// The connections that a node dials, each with the threads that use it.
    ///
    /// # Panics
    /// If the mesh has no such node.
    pub fn connections(self, node: usize) -> impl Iterator<Item = PlannedConnection> {
        let starts =
            (0..self.mesh.threads).filter(move |thread| self.group(*thread).start == *thread);
        starts.flat_map(move |thread| {
            let threads = self.group(thread);
            self.dials(node, thread)
                .map(move |to| PlannedConnection { threads: threads.clone(), to })
        })
    }

    /// The connections that a server thread gets, each as the threads that call over it.
    ///
    /// # Panics
    /// If the mesh has no such node, or the node no such thread.
    pub fn expects(self, node: usize, thread: u16) -> impl Iterator<Item = (usize, Range<u16>)> {
        self.check_thread(thread);
        let all = matches!(self.plan, Plan::AllToAll);
        self.others(node).flat_map(move |from| {
            let groups = if all { 0..self.mesh.threads } else { thread..thread + 1 };
            groups
                .map(move |member| self.group(member))
                .filter(move |group| self.called(from, node, group).contains(&thread))
                .map(move |group| (from, group))
        })
    }

    /// Gives a server of any node its threads, and room for the connections that each expects.
    pub fn server(self, builder: ServerBuilder) -> ServerBuilder {
        let threads = usize::from(self.mesh.threads);
        builder.threads(threads).max_clients(threads * self.most_expected())
    }

    /// The most connections that a thread expects: the last group may have fewer threads than the others, which share as many.
    fn most_expected(self) -> usize {
        let others = self.mesh.nodes - 1;
        match self.plan {
            Plan::AllToAll => others * usize::from(self.mesh.threads),
            Plan::SameNumber => others,
            Plan::Shared { .. } => {
                let smallest = self.group(self.mesh.threads - 1).len();
                others.div_ceil(smallest)
            }
        }
    }

    /// How many connections a node dials. The others dial as many to it.
    pub fn connections_of_node(self) -> usize {
        let (others, threads) = (self.mesh.nodes - 1, usize::from(self.mesh.threads));
        others
            * match self.plan {
                Plan::AllToAll => threads * threads,
                Plan::SameNumber => threads,
                Plan::Shared { by } => threads.div_ceil(usize::from(by)),
            }
    }

    /// How many queue pairs the NIC of each node has, with a backend that connects a queue pair for each connection: those of the
    /// connections that the node dials, and of those that it gets.
    ///
    /// `write_imm`, `rfp`, `scale` and `send_recv` do so. A server thread of `datagram` has one queue pair for all clients, and so have the
    /// clients of one site that [share](crate::ConnectionOptions::share) it: two for each thread, whatever the plan.
    pub fn queue_pairs(self) -> usize {
        2 * self.connections_of_node()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plans(nodes: usize, threads: usize) -> impl Iterator<Item = MeshPlan> {
        let mesh = Mesh::new(nodes, threads).unwrap();
        let shared = (1..=mesh.threads()).map(|by| Plan::Shared { by });
        [Plan::AllToAll, Plan::SameNumber]
            .into_iter()
            .chain(shared)
            .map(move |it| mesh.plan(it).unwrap())
    }

    #[test]
    fn servers_expect_what_the_threads_dial_and_have_room_for_it() {
        for (nodes, threads) in [(2, 1), (2, 4), (5, 4), (6, 5), (9, 3)] {
            for plan in plans(nodes, threads) {
                let mut dialled = BTreeMap::<_, Vec<_>>::new();
                for node in 0..nodes {
                    let connections: Vec<_> = plan.connections(node).collect();
                    assert_eq!(connections.len(), plan.connections_of_node(), "{plan:?}");
                    for PlannedConnection { threads, to } in connections {
                        assert_ne!(to.node, node);
                        assert!(threads.clone().all(|it| plan.dials(node, it).any(|it| it == to)));
                        dialled.entry(to).or_default().push((node, threads));
                    }
                }
                for (node, thread) in
                    (0..nodes).flat_map(|it| (0..plan.mesh.threads).map(move |thread| (it, thread)))
                {
                    let mut expected: Vec<_> = plan.expects(node, thread).collect();
                    let mut dialled = dialled.remove(&Peer { node, thread }).unwrap_or_default();
                    expected.sort_by_key(|it| (it.0, it.1.start));
                    dialled.sort_by_key(|it| (it.0, it.1.start));
                    assert_eq!(expected, dialled, "thread {thread} of node {node} by {plan:?}");
                    assert!(expected.len() <= plan.most_expected(), "{plan:?}");
                }
                assert!(dialled.is_empty(), "{plan:?}: {dialled:?}");
                let most = (0..plan.mesh.threads).map(|thread| plan.expects(0, thread).count());
                assert_eq!(most.max(), Some(plan.most_expected()), "{plan:?}: room for no more");
            }
        }
    }

    #[test]
    fn a_thread_reaches_every_other_node_and_each_thread_serves() {
        for plan in plans(5, 4) {
            for node in 0..5 {
                for thread in 0..4 {
                    let mut reached: Vec<_> =
                        plan.dials(node, thread).map(|peer| peer.node).collect();
                    reached.dedup();
                    assert_eq!(reached, (0..5).filter(|it| *it != node).collect::<Vec<_>>());
                    assert!(plan.expects(node, thread).count() > 0, "thread {thread} by {plan:?}");
                }
            }
        }
    }

    #[test]
    fn queue_pairs_are_as_the_book_says() {
        let of = |plan| Mesh::new(100, 14).unwrap().plan(plan).unwrap().queue_pairs();
        assert_eq!(of(Plan::AllToAll), 2 * 99 * 14 * 14);
        assert_eq!(of(Plan::SameNumber), 2 * 99 * 14);
        assert_eq!(of(Plan::Shared { by: 2 }), 2 * 99 * 7);
        // The last one is shared by two.
        assert_eq!(of(Plan::Shared { by: 3 }), 2 * 99 * 5);
    }

    #[test]
    fn meshes_that_are_none_are_refused() {
        let error = |made: Result<Mesh, MeshError>| made.unwrap_err().to_string();
        assert!(error(Mesh::new(1, 4)).contains("1 nodes; it has 2 to 65536"));
        assert!(error(Mesh::new(4, 0)).contains("0 threads"));
        assert!(error(Mesh::new(4, 1025)).contains("1 to 1024"));
        for by in [0, 5] {
            let refused = Mesh::new(4, 4).unwrap().plan(Plan::Shared { by }).unwrap_err();
            assert!(refused.to_string().contains("share each by 1 to 4"), "{refused}");
        }
    }

    #[test]
    #[should_panic(expected = "no node 4 in a mesh of 4")]
    fn a_node_that_is_not_there_is_a_mistake() {
        let _ = Mesh::new(4, 4).unwrap().plan(Plan::SameNumber).unwrap().dials(4, 0);
    }
}
