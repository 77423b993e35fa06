//! What a node does with what peers and clients must not ask for.

use std::time::Duration;

use super::replica::{Memory, RING_BYTES};
use crate::level::Level;
use crate::log::Origins;
use crate::membership::{Configuration, Member, ReplicaId};
use crate::node::{
    Action, Enter, Entered, GroupError, Join, Node, NodeOptions, Refusal, Reply, RoleName,
};
use crate::record::{Epoch, Lsn};
use crate::store::{Command, Query, Request, Store};

const NOW: Duration = Duration::from_secs(1);

fn member(id: u64) -> Member {
    Member { id: ReplicaId(id), address: format!("{id}") }
}

fn configuration(epoch: u64, members: &[u64]) -> Configuration {
    let primary = ReplicaId(members[0]);
    Configuration {
        epoch: Epoch(epoch),
        primary,
        members: members.iter().map(|id| member(*id)).collect(),
    }
}

/// Replica 1, which leads these members, or is about to.
fn leader(members: &[u64]) -> (Node, Memory) {
    let options = NodeOptions { ring_bytes: RING_BYTES, ..NodeOptions::default() };
    let mut memory = Memory::new();
    let mut node = Node::founder(member(1), options, Store::default(), Epoch(0), NOW);
    node.on_proposed(NOW, Some(&configuration(1, &[1])), &mut memory);
    assert_eq!(node.status().role, RoleName::Primary);
    if members.len() > 1 {
        node.on_configuration(NOW, &configuration(2, members), &mut memory);
        assert_eq!(node.status().role, RoleName::Entering);
    }
    drop(node.take_actions());
    (node, memory)
}

fn enter(epoch: u64) -> Enter {
    let origins = Origins { runs: Vec::new(), end: Lsn(0) };
    Enter { epoch: Epoch(epoch), primary: ReplicaId(2), commit: Lsn(99), origins }
}

fn put() -> Request {
    let command = Command::Put { key: "k".into(), value: "v".into() };
    Request { client: 1, sequence: 1, command }
}

#[test]
fn an_epoch_is_entered_once_and_never_an_earlier_one() {
    let (mut node, mut memory) = leader(&[1]);
    for (epoch, expected) in [(1, false), (0, false), (3, true), (3, false), (2, false)] {
        let entered = node.enter(NOW, &enter(epoch), &mut memory);
        match entered {
            Ok(entered) => assert_eq!((entered.end, expected), (Lsn(0), true)),
            Err(why) => assert_eq!((why, expected), (Refusal::Stale(node.status().epoch), false)),
        }
    }
    assert_eq!(node.status().role, RoleName::Backup);
}

#[test]
fn a_member_that_lends_what_is_no_ring_is_excluded() {
    for (ring_bytes, end) in [(0, 0), (7, 0), (u64::MAX, 0), (2048, 1), (2048, u64::MAX)] {
        let (mut node, mut memory) = leader(&[1, 2]);
        let entered = Entered { end: Lsn(end), ring_bytes, syncs: false };
        node.on_entered(NOW, ReplicaId(2), Epoch(2), Some(entered));
        node.turn(NOW, &mut memory);
        assert_eq!(node.status().role, RoleName::Entering);
        let alone = Action::Propose(configuration(3, &[1]));
        assert_eq!(node.take_actions(), [alone], "{ring_bytes} bytes, end {end}");
    }
    let (mut node, _) = leader(&[1]);
    let join = Join { member: member(2), ring_bytes: 12, syncs: false };
    assert_eq!(node.join(NOW, join), Err(Refusal::Invalid));
}

#[test]
fn a_group_of_one_commits_at_once_and_by_the_same_path() {
    let (mut node, _) = leader(&[1]);
    node.submit(NOW, 1, put(), Level::Replicated(1));
    let [Action::Reply(1, Reply::Command(Ok(ack)))] = &node.take_actions()[..] else {
        panic!("it does not answer");
    };
    assert!(ack.reached.covers(Level::Visible) && !ack.reached.covers(Level::Persistent));
    node.submit(NOW, 2, put(), Level::Replicated(2));
    let error = GroupError::NotEnoughReplicas { level: Level::Replicated(2), copies: 1, synced: 0 };
    assert_eq!(node.take_actions(), [Action::Reply(2, Reply::Command(Err(error)))]);
}

#[test]
fn what_waits_has_a_bound_and_each_is_answered_when_another_one_leads() {
    let (mut node, mut memory) = leader(&[1, 2]);
    let entered = Entered { end: Lsn(0), ring_bytes: RING_BYTES as u64, syncs: false };
    node.on_entered(NOW, ReplicaId(2), Epoch(2), Some(entered));
    drop(node.take_actions());
    let most = NodeOptions::default().max_waiting as u64;
    for token in 0..most + 10 {
        let request = Request { sequence: token, ..put() };
        node.submit(NOW, token, request, Level::Visible);
    }
    let ends = |node: &mut Node| {
        let mut ends = [0; 3];
        for action in node.take_actions() {
            match action {
                Action::Reply(_, Reply::Command(Err(GroupError::Overloaded))) => ends[0] += 1,
                Action::Reply(_, Reply::Command(Err(GroupError::Unknown))) => ends[1] += 1,
                Action::Reply(_, Reply::Command(Err(GroupError::NotPrimary(_)))) => ends[2] += 1,
                Action::Reply(_, reply) => panic!("{reply:?}"),
                _ => {}
            }
        }
        ends
    };
    assert_eq!(ends(&mut node), [10, 0, 0]);
    node.enter(NOW, &enter(3), &mut memory).unwrap();
    let [_, unknown, not_run] = ends(&mut node);
    // Those that had room in the ring may be committed by another primary.
    assert!(unknown > 0 && not_run > 0 && unknown + not_run == most, "{unknown} {not_run}");
    node.read(NOW, 1, Query::Get("k".into()));
    assert!(matches!(
        &node.take_actions()[..],
        [Action::Reply(1, Reply::View(Err(GroupError::NotPrimary(_))))]
    ));
}
