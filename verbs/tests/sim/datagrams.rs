//! Faults of datagrams: what each does, and what it does not affect.

use std::time::Duration;

use farcall_verbs::sim::{Fault, FaultRates, Sim, SimConfig};
use farcall_verbs::{GRH_BYTES, QpState, QpType, Status, WorkRequest};

use crate::rig::End;

const QKEY: u32 = 7;
const MS: u64 = 1_000_000;

/// Sends that many datagrams with these fault rates, one every 200 ns. Returns the immediates of those that
/// arrive, in order.
fn arrived(seed: u64, sent: u32, rates: FaultRates) -> Vec<u32> {
    arrived_on(&mut rack(seed, rates), sent)
}

fn rack(seed: u64, rates: FaultRates) -> Sim {
    Sim::with_config(seed, SimConfig::default().faults(rates))
}

fn arrived_on(sim: &mut Sim, sent: u32) -> Vec<u32> {
    let nodes = [sim.add_node(), sim.add_node()];
    let [mut a, mut b] = nodes.map(|node| End::new(sim, node, QpType::Ud));
    a.qp.activate(QKEY).unwrap();
    b.qp.activate(QKEY).unwrap();
    let way = a.pd.create_address_handle(&b.qp.endpoint()).unwrap();
    let pool = b.pd.alloc_private(500 * GRH_BYTES).unwrap().into_pool(GRH_BYTES);
    while let Some(buffer) = pool.take() {
        b.qp.post_recv(1, Some(buffer)).unwrap();
    }
    let (mut arrived, mut told) = (Vec::new(), 0);
    let mut look = |a: &mut End, b: &mut End| {
        for mut completion in b.completions() {
            arrived.extend(completion.imm);
            b.qp.post_recv(1, completion.buffer.take()).unwrap();
        }
        let statuses = a.statuses();
        assert!(statuses.iter().all(|status| *status == Status::Success));
        told += statuses.len();
    };
    for imm in 0..sent {
        a.post(WorkRequest::send(b"").imm(imm).to(&way, b.qp.number(), QKEY).signaled(1));
        sim.run_for(200);
        if imm % 200 == 0 {
            look(&mut a, &mut b);
        }
    }
    assert!(sim.run_until_idle(1_000 * MS));
    look(&mut a, &mut b);
    assert_eq!(told, sent as usize, "the sender is told that each has left, and nothing else");
    arrived
}

/// The immediates without duplicates.
fn without_copies(arrived: &[u32]) -> Vec<u32> {
    let mut all = arrived.to_vec();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn datagrams_are_lost_at_the_configured_rate_and_the_others_arrive_once_in_order() {
    for (loss, expected) in [(0.3, 300..400), (0.01, 485..500)] {
        let arrived = arrived(1, 500, FaultRates::default().datagram_loss(loss));
        assert!(expected.contains(&arrived.len()), "{} of 500 arrived", arrived.len());
        assert!(arrived.is_sorted_by(|a, b| a < b), "{arrived:?}");
    }
    assert_eq!(arrived(1, 500, FaultRates::default()).len(), 500, "none without the fault");
}

#[test]
fn delayed_datagrams_are_overtaken_but_neither_lost_nor_duplicated() {
    let rates = FaultRates::default().datagram_delay(0.5).delay(Duration::from_micros(20));
    let mut arrived = arrived(2, 500, rates);
    assert!(!arrived.is_sorted(), "nothing was overtaken");
    arrived.sort_unstable();
    assert_eq!(arrived, (0..500).collect::<Vec<_>>());
}

#[test]
fn stragglers_arrive_once_after_thousands_of_later_ones_and_the_others_in_order() {
    let rates = FaultRates::default().datagram_straggle(0.002, Duration::from_millis(4));
    let mut arrived = arrived(3, 20_000, rates);
    // The others keep their order, so a late one is less than one of those just before it.
    let is_late = |at: usize| arrived[..at].iter().rev().take(8).any(|other| *other > arrived[at]);
    let late = |at: usize| arrived[..at].iter().filter(|other| **other > arrived[at]).count();
    let overtaken: Vec<_> = (0..arrived.len()).filter(|at| is_late(*at)).map(late).collect();
    assert!((20..80).contains(&overtaken.len()), "{overtaken:?}");
    assert!(overtaken.iter().any(|by| *by > 5_000), "{overtaken:?}");
    arrived.sort_unstable();
    assert_eq!(arrived, (0..20_000).collect::<Vec<_>>());
}

#[test]
fn copies_arrive_at_the_configured_rate_next_to_their_originals() {
    let arrived = arrived(4, 500, FaultRates::default().datagram_copy(0.2));
    assert!((570..630).contains(&arrived.len()), "{} arrived", arrived.len());
    assert!(arrived.is_sorted(), "{arrived:?}");
    assert_eq!(without_copies(&arrived), (0..500).collect::<Vec<_>>());
    assert!(arrived.windows(3).all(|three| three[0] != three[2]), "one arrived three times");
}

#[test]
fn a_copy_may_be_delayed_like_the_original() {
    let rates =
        FaultRates::default().datagram_copy(0.2).datagram_straggle(0.5, Duration::from_micros(100));
    let arrived = arrived(5, 500, rates);
    assert_eq!(without_copies(&arrived), (0..500).collect::<Vec<_>>());
    let seen_again = |imm: &u32| {
        let mut places = arrived.iter().enumerate().filter(|(_, it)| *it == imm).map(|(at, _)| at);
        Some((places.next()?, places.next()?))
    };
    let apart = (0..500).filter_map(|imm| seen_again(&imm)).map(|(one, two)| two - one).max();
    assert!(apart > Some(100), "{apart:?}");
}

#[test]
fn a_lost_datagram_has_no_copy() {
    let rates = FaultRates::default().datagram_loss(1.0).datagram_copy(1.0);
    assert_eq!(arrived(6, 100, rates), []);
}

#[test]
fn the_trace_shows_all_faults_of_datagrams() {
    let rates = FaultRates::default()
        .datagram_loss(0.1)
        .datagram_copy(0.1)
        .datagram_delay(0.1)
        .delay(Duration::from_micros(1))
        .datagram_straggle(0.1, Duration::from_micros(100));
    let mut sim = rack(7, rates);
    sim.record_trace(10_000);
    let arrived = arrived_on(&mut sim, 300);
    let trace = sim.trace();
    let count = |what: &str| trace.iter().filter(|line| line.contains(what)).count();
    let (lost, copied) = (count("loses what it sends"), count("duplicates what it sends"));
    assert!(lost > 10 && copied > 10 && count("ns for the wire to") > 40);
    assert_eq!(arrived.len(), 300 - lost + copied);
    // The same happens without a trace.
    assert_eq!(arrived_on(&mut rack(7, rates), 300), arrived);
}

#[test]
fn faults_of_datagrams_do_not_affect_connections() {
    let rates = FaultRates::default()
        .datagram_loss(1.0)
        .datagram_copy(1.0)
        .datagram_delay(1.0)
        .datagram_straggle(1.0, Duration::from_millis(1));
    let config = SimConfig::default().faults(rates);
    let (mut sim, mut a, mut b) = crate::rig::two(8, config, QpType::Uc);
    b.qp.post_recvs(0..100).unwrap();
    for imm in 0..100 {
        a.post(WorkRequest::send(b"").imm(imm).signaled(1));
    }
    assert!(sim.run_until_idle(MS));
    let arrived: Vec<_> = b.completions().into_iter().filter_map(|arrived| arrived.imm).collect();
    assert_eq!(arrived, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_datagram_queue_pair_can_break_like_others() {
    let mut sim = rack(10, FaultRates::default());
    let node = sim.add_node();
    let mut end = End::new(&sim, node, QpType::Ud);
    sim.inject(Fault::BreakSomeQueuePair(node));
    end.qp.activate(QKEY).expect("it was not ready, and so was left alone");
    end.qp.post_recv(1, None).unwrap();
    sim.inject(Fault::BreakSomeQueuePair(node));
    assert!(sim.run_until_idle(MS));
    assert_eq!((end.qp.state(), end.statuses()), (QpState::Error, vec![Status::Flushed]));
}

/// A datagram in flight arrives even if its sender dies.
#[test]
fn a_straggler_outlives_its_sender() {
    let rates = FaultRates::default().datagram_straggle(1.0, Duration::from_millis(1));
    let mut sim = rack(9, rates);
    let nodes = [sim.add_node(), sim.add_node()];
    let [mut a, mut b] = nodes.map(|node| End::new(&sim, node, QpType::Ud));
    a.qp.activate(QKEY).unwrap();
    b.qp.activate(QKEY).unwrap();
    let way = a.pd.create_address_handle(&b.qp.endpoint()).unwrap();
    let buffer = b.pd.alloc_private(GRH_BYTES).unwrap().into_pool(GRH_BYTES).take();
    b.qp.post_recv(1, buffer).unwrap();
    a.post(WorkRequest::send(b"").imm(1).to(&way, b.qp.number(), QKEY).signaled(1));
    sim.run_for(10_000);
    assert_eq!(b.completions().len(), 0);
    sim.inject(Fault::KillNode(nodes[0]));
    sim.inject(Fault::RestartNode(nodes[0]));
    assert!(sim.run_until_idle(10 * MS));
    assert_eq!(b.completions().len(), 1);
}
