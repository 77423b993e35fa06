//! Memory that is published in further protection domains: whose peers may READ what, and how long.

use farcall_verbs::sim::SimConfig;
use farcall_verbs::{QpType, RemoteRegion, Status, VerbsError, WorkRequest};

use crate::rig::{End, two};

const LEN: usize = 8192;

/// What a READ of these bytes comes to.
fn read(sim: &mut farcall_verbs::sim::Sim, end: &mut End, remote: RemoteRegion) -> Status {
    let len = remote.len as usize;
    let into = end.pd.alloc_private(len).unwrap().into_buffer();
    end.post(WorkRequest::read(into, remote.slice(0, remote.len).unwrap()).signaled(1));
    while sim.step() {}
    end.statuses()[0]
}

#[test]
fn a_publication_gives_its_bytes_and_no_others_until_it_is_dropped() {
    let other_key = |remote: RemoteRegion, add: u64, len| {
        RemoteRegion::new(remote.addr.wrapping_add(add), remote.rkey, len)
    };
    for (name, expected) in [
        ("its bytes", Status::Success),
        ("bytes behind them", Status::RemoteAccess),
        ("after its end", Status::RemoteAccess),
        ("its own domain's key", Status::RemoteAccess),
    ] {
        let (mut sim, mut reader, owner) = two(3, SimConfig::default(), QpType::Rc);
        // The pool is in a domain of its own, and the peer's queue pair in another.
        let pool = owner.device.alloc_pd().unwrap().alloc_published(4 * LEN).unwrap();
        let pool = pool.into_pool(LEN);
        let buffer = pool.take().unwrap();
        let publication = owner.pd.publish(&pool, &buffer[100..500]).unwrap();
        let remote = publication.remote(&buffer[100..500]).unwrap();
        assert!(publication.remote(&buffer[99..500]).is_none(), "more than is published");
        let status = match name {
            "its bytes" => read(&mut sim, &mut reader, remote),
            "bytes behind them" => read(&mut sim, &mut reader, other_key(remote, 1, 400)),
            "after its end" => {
                drop(publication);
                read(&mut sim, &mut reader, remote)
            }
            _ => read(&mut sim, &mut reader, buffer.remote().unwrap()),
        };
        assert_eq!(status, expected, "{name}");
    }
}

#[test]
fn memory_of_another_node_is_not_published() {
    let (_sim, one, other) = two(3, SimConfig::default(), QpType::Rc);
    let pool = one.pd.alloc_published(LEN).unwrap().into_pool(LEN);
    let buffer = pool.take().unwrap();
    let refused = other.pd.publish(&pool, &buffer).map(drop);
    assert!(matches!(refused, Err(VerbsError::Foreign(_))), "{refused:?}");
}
