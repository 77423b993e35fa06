//! One-sided operations that fail, and that meet others: what is left in memory, and what each end learns.

use std::collections::BTreeSet;
use std::time::Duration;

use farcall_verbs::sim::{Fault, FaultRates, Landing, Sim, SimConfig};
use farcall_verbs::{Access, QpState, QpType, QueuePair, QueuePairConfig, Status, WorkRequest};

use crate::rig::{End, RETRY_TIMEOUT_NS, join, two};

const MS: u64 = 1_000_000;
const MTU: usize = 4096;
/// Packets of a long WRITE; the last one is short.
const PACKETS: usize = 8;
const LEN: usize = PACKETS * MTU - 100;
const LANDINGS: [Landing; 3] = [Landing::AtOnce, Landing::LeftToRight, Landing::AnyOrder];

/// Posts a long WRITE of ones from `a` into the zeroed memory of `b`.
fn post_long_write(a: &mut End, b: &End) {
    let here = a.pd.alloc_shared(LEN, Access::empty()).unwrap();
    here.copy_in(0, &[1; LEN]);
    let there = b.region.remote().slice(0, LEN as u64).unwrap();
    a.post(WorkRequest::write(here.slice(0, LEN), there).signaled(1));
}

/// The packets of a failed WRITE in memory: a prefix, each of them whole.
#[track_caller]
fn packets_landed(b: &End) -> usize {
    let mut bytes = vec![0; b.region.len()];
    b.region.copy_out(0, &mut bytes);
    let landed = bytes.iter().take_while(|byte| **byte == 1).count();
    assert!(bytes[landed..].iter().all(|byte| *byte == 0), "more than a prefix of {landed} bytes");
    assert!(landed.is_multiple_of(MTU) || landed == LEN, "{landed} bytes: a part of a packet");
    landed.div_ceil(MTU)
}

/// Posts a long WRITE and lets `end` happen after some time, for many times. Returns how many packets were left.
fn ended_in_the_midst(end: impl Fn(&mut Sim, &mut End, &mut End)) -> BTreeSet<usize> {
    let mut left = BTreeSet::new();
    for landing in LANDINGS {
        for step in 0..60 {
            let config = SimConfig::default().landing(landing);
            let (mut sim, mut a, mut b) = two(step, config, QpType::Rc);
            post_long_write(&mut a, &b);
            sim.run_for(200 * step);
            end(&mut sim, &mut a, &mut b);
            assert!(sim.run_until_idle(100 * MS));
            let packets = packets_landed(&b);
            if a.statuses() == [Status::Success] {
                assert_eq!(packets, PACKETS, "acknowledged");
            }
            left.insert(packets);
        }
    }
    left
}

fn is_any_number(left: &BTreeSet<usize>) -> bool {
    left.contains(&0) && left.contains(&PACKETS) && left.len() >= 5
}

/// One more queue pair of an end.
fn another_pair(end: &End) -> QueuePair {
    end.pd.create_qp(QueuePairConfig::new(QpType::Rc, &end.cq, &end.cq)).unwrap()
}

#[test]
fn a_write_to_a_queue_pair_that_is_destroyed_leaves_whole_packets() {
    let left = ended_in_the_midst(|sim, _, b| {
        b.qp = another_pair(b);
        let landed = packets_landed(b);
        sim.run_for(MS);
        assert_eq!(packets_landed(b), landed, "behind the end of its queue pair");
    });
    assert!(is_any_number(&left), "{left:?}");
}

#[test]
fn a_write_to_a_queue_pair_that_breaks_leaves_whole_packets() {
    let left = ended_in_the_midst(|sim, _, b| {
        sim.inject(Fault::BreakQueuePair { node: b.node, qp: b.qp.number() });
        packets_landed(b);
    });
    assert!(is_any_number(&left), "{left:?}");
}

#[test]
fn a_write_of_a_sender_that_dies_leaves_whole_packets() {
    let left = ended_in_the_midst(|sim, a, _| sim.inject(Fault::KillNode(a.node)));
    assert!(is_any_number(&left), "{left:?}");
    let left = ended_in_the_midst(|_, a, _| a.qp.to_error());
    assert!(is_any_number(&left), "{left:?}");
}

#[test]
fn a_write_beyond_its_region_leaves_the_packets_that_fit() {
    for landing in LANDINGS {
        let (mut sim, mut a, b) = two(1, SimConfig::default().landing(landing), QpType::Rc);
        let here = a.pd.alloc_shared(LEN, Access::empty()).unwrap();
        here.copy_in(0, &[1; LEN]);
        let begin = b.region.len() - 2 * MTU - 10;
        let mut there = b.region.remote();
        (there.addr, there.len) = (there.addr + begin as u64, LEN as u64);
        a.post(WorkRequest::write(here.slice(0, LEN), there.all()).signaled(1));
        assert!(sim.run_until_idle(MS));
        assert_eq!(a.statuses(), [Status::RemoteAccess]);
        let mut bytes = vec![0; b.region.len() - begin];
        b.region.copy_out(begin, &mut bytes);
        assert_eq!(bytes, [vec![1; 2 * MTU], vec![0; 10]].concat(), "{landing:?}");
    }
}

#[test]
fn a_write_whose_last_packets_are_lost_for_ever_leaves_those_before() {
    let mut left = BTreeSet::new();
    for seed in 0..60 {
        let config = SimConfig::default().faults(FaultRates::default().reliable_loss(1.0));
        let (mut sim, mut a, b) = two(seed, config, QpType::Rc);
        post_long_write(&mut a, &b);
        assert!(sim.run_until_idle(100 * MS));
        assert_eq!(a.statuses(), [Status::RetryExceeded]);
        left.insert(packets_landed(&b));
    }
    assert!(left.len() >= 4 && !left.contains(&PACKETS), "{left:?}");
}

#[test]
fn a_long_write_that_loses_packets_is_repeated_and_lands_whole() {
    for seed in 0..30 {
        let config = SimConfig::default().faults(FaultRates::default().reliable_loss(0.3));
        let (mut sim, mut a, mut b) = two(seed, config, QpType::Rc);
        b.qp.post_recvs(0..1).unwrap();
        post_long_write(&mut a, &b);
        a.post(WorkRequest::send(b"").imm(3).signaled(2));
        assert!(sim.run_until_idle(100 * MS));
        assert_eq!(a.statuses(), [Status::Success; 2], "seed {seed}");
        assert_eq!((packets_landed(&b), b.completions().len()), (PACKETS, 1), "seed {seed}");
    }
}

/// How a request fails after `end`, and how long it took.
fn failure_after(end: impl FnOnce(&mut End)) -> (Status, u64) {
    let (mut sim, mut a, mut b) = two(1, SimConfig::default(), QpType::Rc);
    let there = b.region.remote().slice(0, 8).unwrap();
    end(&mut b);
    let begin_ns = sim.now_ns();
    a.post(WorkRequest::write(&[1; 8], there).signaled(1));
    loop {
        sim.run_for(1_000);
        match a.statuses()[..] {
            [] => assert!(sim.now_ns() < begin_ns + 100 * MS, "no completion"),
            [status] => return (status, sim.now_ns() - begin_ns),
            _ => panic!("several completions"),
        }
    }
}

#[test]
fn what_a_dying_peer_takes_down_first_decides_what_the_other_learns() {
    let (status, after_ns) = failure_after(|b| b.qp = another_pair(b));
    assert!(status == Status::RetryExceeded && after_ns >= RETRY_TIMEOUT_NS, "{status:?}");
    let (status, after_ns) =
        failure_after(|b| b.region = b.pd.alloc_shared(8, Access::all()).unwrap());
    assert!(status == Status::RemoteAccess && after_ns < RETRY_TIMEOUT_NS / 10, "{status:?}");
}

#[test]
fn an_error_flushes_posted_work_and_a_destroyed_queue_pair_is_silent() {
    for destroys in [false, true] {
        let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
        sim.inject(Fault::Cut { from: a.node, to: b.node });
        for id in 0..5 {
            let there = b.region.remote().slice(0, 8).unwrap();
            a.post(WorkRequest::write(&[1; 8], there).signaled(id));
            a.qp.post_recv(id, None).unwrap();
        }
        sim.run_for(1_000);
        if destroys {
            a.qp = another_pair(&a);
        } else {
            a.qp.to_error();
        }
        assert!(sim.run_until_idle(100 * MS));
        let flushed = if destroys { 0 } else { 10 };
        assert_eq!(a.statuses(), vec![Status::Flushed; flushed]);
    }
}

#[test]
fn a_fetch_and_add_that_failed_may_have_run_and_a_repetition_runs_twice() {
    let (mut sim, mut a, mut b) = two(1, SimConfig::default(), QpType::Rc);
    let into = a.pd.alloc_shared(8, Access::empty()).unwrap();
    let word = b.region.remote().slice(0, 8).unwrap();
    sim.inject(Fault::Cut { from: b.node, to: a.node });
    a.post(WorkRequest::fetch_add(into.slice(0, 8), word, 1).signaled(1));
    assert!(sim.run_until_idle(100 * MS));
    assert_eq!(a.statuses(), [Status::RetryExceeded]);
    sim.inject(Fault::Heal { from: b.node, to: a.node });
    let mut again = End::new(&sim, a.node, QpType::Rc);
    b.qp = another_pair(&b);
    join(&mut again, &mut b);
    let into = again.pd.alloc_shared(8, Access::empty()).unwrap();
    again.post(WorkRequest::fetch_add(into.slice(0, 8), word, 1).signaled(1));
    assert!(sim.run_until_idle(100 * MS));
    assert_eq!(again.statuses(), [Status::Success]);
    assert_eq!((into.load_u64(0), b.region.load_u64(0)), (1, 2), "it ran twice");
}

/// Counts up all lines of memory while they are READ. Returns the READs whose lines differ, and those with a younger line first.
fn reads_under_stores(landing: Landing) -> (u32, u32) {
    const LINES: usize = 16;
    let (mut sim, mut a, b) = two(4, SimConfig::default().landing(landing), QpType::Rc);
    let into = a.pd.alloc_shared(64 * LINES, Access::empty()).unwrap();
    let there = b.region.remote().slice(0, 64 * LINES as u64).unwrap();
    let (mut torn, mut reordered, mut version) = (0, 0, 0);
    for _ in 0..100 {
        a.post(WorkRequest::read(into.slice(0, 64 * LINES), there).signaled(1));
        while a.completions().is_empty() {
            version += 1;
            for line in 0..LINES {
                b.region.store_release_u64(64 * line, version);
                b.region.store_release_u64(64 * line + 56, version);
            }
            assert!(sim.step());
        }
        let lines: Vec<_> = (0..LINES).map(|line| into.load_u64(64 * line)).collect();
        for (line, version) in lines.iter().enumerate() {
            assert_eq!(into.load_u64(64 * line + 56), *version, "half a line");
        }
        torn += u32::from(lines.iter().any(|line| *line != lines[0]));
        reordered += u32::from(!lines.is_sorted());
    }
    (torn, reordered)
}

#[test]
fn a_long_read_sees_its_lines_in_any_order() {
    assert_eq!(reads_under_stores(Landing::AtOnce), (0, 0));
    let (torn, reordered) = reads_under_stores(Landing::AnyOrder);
    assert!(torn > 90 && reordered > 90, "{torn} torn, {reordered} out of order");
}

/// The owner stores the first word of the line last.
#[test]
fn a_read_sees_the_words_of_a_line_in_any_order_where_the_device_says_so() {
    let torn = |config: SimConfig| {
        let (mut sim, mut a, b) = two(4, config, QpType::Rc);
        let into = a.pd.alloc_shared(64, Access::empty()).unwrap();
        let there = b.region.remote().slice(0, 64).unwrap();
        let (mut torn, mut version) = (0, 0);
        for _ in 0..100 {
            a.post(WorkRequest::read(into.slice(0, 64), there).signaled(1));
            while a.completions().is_empty() {
                version += 1;
                (0..8).rev().for_each(|word| b.region.store_release_u64(8 * word, version));
                assert!(sim.step());
            }
            let first = into.load_u64(0);
            torn += u32::from((1..8).any(|word| into.load_u64(8 * word) < first));
        }
        (a.device.caps().reads_first_word_first, torn)
    };
    for landing in LANDINGS {
        let config = SimConfig::default().landing(landing);
        assert_eq!(torn(config.clone()), (true, 0), "{landing:?}");
        let (first_word_first, torn) = torn(config.reads_words_in_any_order(true));
        assert!(!first_word_first && torn > 50, "{landing:?}: {torn} torn");
    }
}

#[test]
fn two_reads_are_no_snapshot() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let into = a.pd.alloc_shared(16, Access::empty()).unwrap();
    let there = b.region.remote();
    for place in [0, 8] {
        let word = there.slice(place, 8).unwrap();
        a.post(WorkRequest::read(into.slice(place as usize, 8), word).signaled(place));
    }
    let mut version = 0;
    while a.qp.state() == QpState::ReadyToSend && into.load_u64(8) == 0 {
        version += 1;
        b.region.store_release_u64(0, version);
        b.region.store_release_u64(8, version);
        assert!(sim.step());
    }
    assert!(into.load_u64(8) > into.load_u64(0));
}

#[test]
fn a_short_write_that_crosses_a_line_is_seen_in_part() {
    let mut torn = 0;
    for seed in 0..10 {
        let config = SimConfig::default().landing(Landing::AnyOrder);
        let (mut sim, mut a, b) = two(seed, config, QpType::Rc);
        a.post(WorkRequest::write(&[1; 16], b.region.remote().slice(56, 16).unwrap()).signaled(1));
        while sim.step() {
            torn += u32::from((b.region.load_u64(56) == 0) != (b.region.load_u64(64) == 0));
        }
        assert_eq!((b.region.load_u64(56) & 1, b.region.load_u64(64) & 1), (1, 1));
    }
    assert!(torn > 0);
}

/// Adds 1 by two peers' atomics and by the owner's CPU, 200 times each. Returns the sums of the peers and of all, in words of their own.
fn sums(gap: Duration) -> (u64, u64) {
    const EACH: usize = 200;
    let config = SimConfig::default().atomic_gap(gap);
    let (mut sim, mut a, mut b) = two(9, config, QpType::Rc);
    let mut c = End::new(&sim, a.node, QpType::Rc);
    let for_c = another_pair(&b);
    let for_a = std::mem::replace(&mut b.qp, for_c);
    join(&mut c, &mut b);
    assert_eq!(b.device.caps().atomics_include_cpu, gap.is_zero());
    let (ours, all) =
        (b.region.remote().slice(0, 8).unwrap(), b.region.remote().slice(8, 8).unwrap());
    for end in [&mut a, &mut c] {
        let into = end.pd.alloc_shared(8, Access::empty()).unwrap();
        for _ in 0..EACH {
            end.post(WorkRequest::fetch_add(into.slice(0, 8), ours, 1));
            end.post(WorkRequest::fetch_add(into.slice(0, 8), all, 1).signaled(1));
        }
    }
    for _ in 0..EACH {
        b.region.fetch_add_u64(8, 1);
        sim.run_for(100);
    }
    assert!(sim.run_until_idle(100 * MS));
    for end in [&mut a, &mut c] {
        assert_eq!(end.statuses(), vec![Status::Success; EACH]);
    }
    drop(for_a);
    (b.region.load_u64(0), b.region.load_u64(8))
}

#[test]
fn atomics_of_peers_are_atomic_with_each_other_and_only_by_configuration_with_the_cpu() {
    assert_eq!(sums(Duration::ZERO), (400, 600));
    let (peers, all) = sums(Duration::from_nanos(300));
    assert_eq!(peers, 400, "peers lose no addition of each other");
    assert!(all < 600, "no addition of the CPU was lost");
}

#[test]
fn an_atomic_is_over_before_its_queue_pair_is_gone() {
    let config = SimConfig::default().atomic_gap(Duration::from_micros(5));
    let mut added = BTreeSet::new();
    for step in 0..40 {
        let (mut sim, mut a, mut b) = two(1, config.clone(), QpType::Rc);
        let into = a.pd.alloc_shared(8, Access::empty()).unwrap();
        let word = b.region.remote().slice(0, 8).unwrap();
        a.post(WorkRequest::fetch_add(into.slice(0, 8), word, 1).signaled(1));
        sim.run_for(step * 100);
        b.qp = another_pair(&b);
        let now = b.region.load_u64(0);
        assert!(sim.run_until_idle(100 * MS));
        assert_eq!(b.region.load_u64(0), now, "it landed behind the end of its queue pair");
        added.insert(now);
    }
    assert_eq!(added.len(), 2, "{added:?}");
}
