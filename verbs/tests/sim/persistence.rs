//! Persistent memory after a power failure: durable bytes survive, and a random part of the others.

use std::time::Duration;

use farcall_verbs::sim::{Durability, Fault, Landing, Next, NodeId, Sim, SimConfig, Turn};
use farcall_verbs::{
    Access, PersistentRegion, PostError, QpType, RemoteRegion, Status, VerbsError, WorkRequest,
};

use crate::rig::{End, two};

const SLOTS: usize = 64;
/// A record ends in the middle of a line.
const RECORD_BYTES: usize = 136;
const LEN: usize = SLOTS * RECORD_BYTES;

fn open(end: &End) -> PersistentRegion {
    end.pd.open_persistent("log", LEN, Access::all()).unwrap()
}

/// The persistent memory of a node that lost its power and was restarted.
fn open_again(sim: &Sim, node: NodeId) -> PersistentRegion {
    sim.node(node).restart();
    let pd = sim.node(node).device().alloc_pd().unwrap();
    pd.open_persistent("log", LEN, Access::all()).unwrap()
}

/// The signal by which a client decides that its record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// The completion of the WRITE.
    Completion,
    /// The completion of a READ behind it.
    ReadAfterWrite,
    /// The completion of a flush behind it.
    Flush,
    /// A message of the server, which has made it durable.
    Server,
}

fn record(number: usize) -> [u8; RECORD_BYTES] {
    [number as u8 + 1; RECORD_BYTES]
}

/// The server's side of [`Signal::Server`].
fn serve(sim: &mut Sim, mut end: End, log: PersistentRegion, acknowledge: RemoteRegion) {
    end.qp.post_recvs(0..SLOTS as u64).unwrap();
    sim.spawn(end.node, move |_| {
        for arrived in end.completions() {
            if let (Status::Success, Some(slot)) = (arrived.status, arrived.imm) {
                let start = slot as usize * RECORD_BYTES;
                log.persist(start..start + RECORD_BYTES).unwrap();
                let count = (u64::from(slot) + 1).to_ne_bytes();
                end.post(WorkRequest::write(&count, acknowledge.slice(0, 8).unwrap()).unsignaled());
            }
        }
        Turn::then(Next::OnEvent)
    });
}

/// Writes records until the server loses its power. Returns how many were signaled as durable, and how many
/// of these are lost.
fn power_cut(seed: u64, signal: Signal, config: SimConfig) -> (usize, usize) {
    let (mut sim, mut a, b) = two(seed, config, QpType::Rc);
    let (server, log) = (b.node, open(&b));
    let there = log.remote();
    let at_ns = 3_000 + seed * 7_919 % 100_000;
    sim.schedule(at_ns, Fault::PowerLoss(server));
    let (into, heard) = (a.pd.alloc_shared(8, Access::empty()).unwrap(), a.region.clone());
    let mut kept = None;
    if signal == Signal::Server {
        serve(&mut sim, b, log, heard.remote());
    } else {
        kept = Some((b, log));
    }
    let (mut written, mut told) = (0, 0);
    loop {
        if written == told && written < SLOTS {
            let start = (written * RECORD_BYTES) as u64;
            let slot = there.slice(start, RECORD_BYTES as u64).unwrap();
            let bytes = record(written);
            let write = WorkRequest::write(&bytes, slot);
            match signal {
                Signal::Completion => a.post(write.signaled(1)),
                Signal::Server => a.post(write.imm(written as u32)),
                Signal::ReadAfterWrite => {
                    a.post(write);
                    // The READ matters, not which bytes it reads.
                    let first = there.slice(0, 8).unwrap();
                    a.post(WorkRequest::read(into.slice(0, 8), first).signaled(1));
                }
                Signal::Flush => {
                    a.post(write);
                    a.post(WorkRequest::flush(slot).signaled(1));
                }
            }
            written += 1;
        }
        let over = !sim.step();
        told += a.statuses().into_iter().filter(|status| *status == Status::Success).count();
        if signal == Signal::Server {
            told = heard.load_u64(0) as usize;
        }
        if over {
            break;
        }
    }
    drop(kept);
    let log = open_again(&sim, server);
    let lost = (0..told).filter(|number| {
        let mut found = [0; RECORD_BYTES];
        log.copy_out(number * RECORD_BYTES, &mut found);
        found != record(*number)
    });
    (told, lost.count())
}

/// The number of 150 power cuts that lost a record signaled as durable.
fn cuts_that_lost(signal: Signal, config: &SimConfig) -> u32 {
    let mut cuts = 0;
    let mut told_in_all = 0;
    for seed in 0..150 {
        let (told, lost) = power_cut(seed, signal, config.clone());
        told_in_all += told;
        cuts += u32::from(lost > 0);
    }
    assert!(told_in_all > 1_000, "{signal:?}: {told_in_all} records are too few");
    cuts
}

#[test]
fn acknowledged_records_survive_power_cuts_exactly_if_the_signal_means_durable() {
    let of = Durability::default;
    // What survives, and whether a READ, and a flush, behind a WRITE mean durable there.
    for (durability, after_read, flushed) in [
        (of(), false, true),
        (of().ddio(false), true, true),
        (of().eadr(true), true, true),
        (of().ddio(false).eadr(true), true, true),
        (of().flush_through_caches(false), false, false),
        (of().ddio(false).flush_through_caches(false), true, true),
        (of().battery(true), true, true),
        (Durability::file(Duration::from_micros(1)), false, false),
    ] {
        let visible = SimConfig::default().durability(durability);
        let torn = visible.clone().landing(Landing::AnyOrder);
        let delivered = torn.delivered_late(Duration::from_micros(3));
        for config in [visible, delivered] {
            for (signal, is_true) in [
                (Signal::Completion, config.durability.battery),
                (Signal::ReadAfterWrite, after_read),
                (Signal::Flush, flushed),
                (Signal::Server, true),
            ] {
                let cuts = cuts_that_lost(signal, &config);
                let what = format!("{signal:?}, {:?}: {cuts} cuts lost data", config.durability);
                assert_eq!(cuts == 0, is_true, "{what}");
                assert!(is_true || cuts >= 5, "{what}: too rare to be detected");
            }
        }
    }
}

/// A node with persistent memory and no clients.
fn alone(seed: u64, durability: Durability) -> (Sim, NodeId, PersistentRegion) {
    let mut sim = Sim::with_config(seed, SimConfig::default().durability(durability));
    let node = sim.add_node();
    let pd = sim.node(node).device().alloc_pd().unwrap();
    let log = pd.open_persistent("log", LEN, Access::all()).unwrap();
    (sim, node, log)
}

#[test]
fn cpu_stores_may_be_lost_unless_it_is_persisted_or_caches_are_durable() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..50 {
        let (sim, node, log) = alone(seed, Durability::default());
        log.store_release_u64(0, 1);
        log.persist(0..8).unwrap();
        log.store_release_u64(128, 1);
        sim.node(node).power_loss();
        let log = open_again(&sim, node);
        assert_eq!(log.load_u64(0), 1, "seed {seed}: it was persisted");
        *(if log.load_u64(128) == 0 { &mut lost } else { &mut kept }) += 1;

        let (sim, node, log) = alone(seed, Durability::default().eadr(true));
        log.store_release_u64(128, 1);
        sim.node(node).power_loss();
        assert_eq!(open_again(&sim, node).load_u64(128), 1, "seed {seed}: eADR");
    }
    assert!(lost > 10 && kept > 10, "{lost} lost, {kept} kept by an eviction in time");
}

#[test]
fn a_power_cut_tears_lines_and_never_a_word() {
    let (mut torn_lines, mut torn_records) = (0, 0);
    for seed in 0..50 {
        let (sim, node, log) = alone(seed, Durability::default());
        log.copy_in(0, &[0x11; LEN]);
        log.persist(0..LEN).unwrap();
        log.copy_in(0, &[0x22; LEN]);
        sim.node(node).power_loss();
        let log = open_again(&sim, node);
        let words: Vec<_> = (0..LEN / 8).map(|word| log.load_u64(8 * word)).collect();
        let (old, new) = (0x1111_1111_1111_1111, 0x2222_2222_2222_2222);
        assert!(words.iter().all(|word| [old, new].contains(word)), "seed {seed}: a torn word");
        let is_torn = |part: &[u64]| part.contains(&old) && part.contains(&new);
        torn_lines += words.chunks(8).filter(|line| is_torn(line)).count();
        torn_records += usize::from(is_torn(&words));
    }
    assert!(torn_lines > 100 && torn_records == 50, "{torn_lines} lines, {torn_records} records");
}

#[test]
fn caches_hold_a_limited_number_of_dirty_lines() {
    let (sim, node, log) = alone(1, Durability::default().dirty_lines(4));
    let lines = LEN / 64;
    (0..lines).for_each(|line| log.store_release_u64(64 * line, 1));
    sim.node(node).power_loss();
    let log = open_again(&sim, node);
    let lost = (0..lines).filter(|line| log.load_u64(64 * line) == 0).count();
    assert!((1..=4).contains(&lost), "{lost} of {lines} lines were lost");
}

#[test]
fn a_node_that_stops_without_losing_power_keeps_its_visible_bytes() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let log = open(&b);
    log.store_release_u64(64, 5);
    a.post(WorkRequest::write(&[7; 8], log.remote().slice(0, 8).unwrap()).signaled(1));
    while a.statuses().is_empty() {
        assert!(sim.step());
    }
    sim.node(b.node).kill();
    let again = open_again(&sim, b.node);
    assert_eq!((again.load_u64(0), again.load_u64(64)), (0x0707_0707_0707_0707, 5));
    log.store_release_u64(64, 6);
    assert_eq!(again.load_u64(64), 5, "memory opened before the restart is separate");
    let error = log.persist(0..8).expect_err("its node was killed");
    assert!(error.to_string().contains("was killed"), "{error}");
}

#[test]
fn a_read_into_persistent_memory_is_no_more_durable_than_a_write() {
    let mut lost = 0;
    for seed in 0..50 {
        let (mut sim, mut a, b) = two(seed, SimConfig::default(), QpType::Rc);
        let log = open(&a);
        b.region.store_release_u64(0, 9);
        for (offset, id) in [(0, 1), (64, 2)] {
            let there = b.region.remote().slice(0, 8).unwrap();
            a.post(WorkRequest::read(log.slice(offset, 8), there).signaled(id));
        }
        assert!(sim.run_until_idle(1_000_000));
        assert_eq!(a.statuses(), [Status::Success; 2]);
        log.persist(64..72).unwrap();
        sim.node(a.node).power_loss();
        let log = open_again(&sim, a.node);
        assert_eq!(log.load_u64(64), 9, "seed {seed}");
        lost += u32::from(log.load_u64(0) == 0);
    }
    assert!(lost > 10, "lost in {lost} of 50");
}

#[test]
fn only_rc_flushes() {
    let (_, mut a, b) = two(1, SimConfig::default(), QpType::Uc);
    let refused = a.qp.post_send_one(WorkRequest::flush(b.region.remote().all()));
    assert!(matches!(refused, Err((PostError::Unsupported { .. }, _))), "{refused:?}");
}

#[test]
fn persisting_takes_time() {
    let costs_ns = |lines: usize| {
        let (mut sim, node, log) = alone(1, Durability::default());
        let done = std::rc::Rc::new(std::cell::Cell::new(0));
        let (seen, mut first) = (done.clone(), true);
        sim.spawn(node, move |now_ns| {
            if !std::mem::take(&mut first) {
                seen.set(now_ns);
                return Turn::then(Next::Never);
            }
            log.copy_in(0, &[1; LEN][..64 * lines]);
            log.persist(0..64 * lines).unwrap();
            Turn::then(Next::Now)
        });
        assert!(sim.run_until_idle(1_000_000));
        done.get()
    };
    let Durability { write_back_ns, fence_ns, .. } = Durability::default();
    assert_eq!(
        (costs_ns(1), costs_ns(10)),
        (fence_ns + write_back_ns, fence_ns + 10 * write_back_ns)
    );
}

#[test]
fn a_name_can_be_open_once_and_has_one_length() {
    let (sim, node, log) = alone(1, Durability::default());
    log.store_release_u64(0, 3);
    let pd = sim.node(node).device().alloc_pd().unwrap();
    let refused = pd.open_persistent("log", LEN, Access::empty());
    assert!(matches!(refused, Err(VerbsError::Persistent { .. })), "{refused:?}");
    drop(log);
    let refused = pd.open_persistent("log", LEN + 1, Access::empty());
    assert!(matches!(refused, Err(VerbsError::Persistent { .. })), "{refused:?}");
    assert_eq!(pd.open_persistent("log", LEN, Access::empty()).unwrap().load_u64(0), 3);
    assert_eq!(pd.open_persistent("other", 8, Access::empty()).unwrap().load_u64(0), 0);
}
