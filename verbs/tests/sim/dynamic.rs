//! Dynamic connections: one initiator reaches any target, in order and once, at the price of a round trip per change.

use std::time::Duration;

use farcall_verbs::sim::{Costs, FaultRates, NodeId, Sim, SimConfig};
use farcall_verbs::{
    Access, ConnectError, ConnectOptions, Device, QpState, QpType, QueuePairConfig, Status,
    WorkRequest,
};

use crate::rig::{End, options};

const MS: u64 = 1_000_000;

const KEY: u64 = 0x5eed;

/// A rack of one initiator, which has named no target yet, and so many targets.
fn rack(seed: u64, config: SimConfig, targets: usize) -> (Sim, End, Vec<End>) {
    let mut sim = Sim::with_config(seed, config);
    let nodes: Vec<NodeId> = (0..=targets).map(|_| sim.add_node()).collect();
    let mut ends = nodes.iter().map(|node| End::new(&sim, *node, QpType::Rc));
    let initiator = ends.next().unwrap();
    let mut targets: Vec<_> = ends.collect();
    for target in &mut targets {
        target.qp.accept_dynamically(KEY).unwrap();
    }
    (sim, initiator, targets)
}

/// Posts an addition of 1 to the first word of that target. The old value goes to this place.
fn add(initiator: &mut End, target: &End, at: usize) {
    // Packets that are late do not look lost eight times.
    let patient = options().retry_timeout_ns(8 * MS);
    initiator.qp.connect_dynamically(&target.qp.endpoint(), KEY, &patient).unwrap();
    let word = target.region.remote().slice(0, 8).unwrap();
    let old = initiator.region.slice(8 * at, 8);
    initiator.post(WorkRequest::fetch_add(old, word, 1).signaled(at as u64));
}

#[test]
fn an_initiator_reaches_targets_by_turns_in_the_order_of_its_posts() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 3);
    for at in 0..90 {
        add(&mut a, &targets[at % 3], at);
    }
    assert!(sim.run_until_idle(MS));
    let ids: Vec<_> = a.completions().into_iter().map(|it| (it.status, it.id)).collect();
    assert_eq!(ids, (0..90).map(|id| (Status::Success, id)).collect::<Vec<_>>());
    for (number, target) in targets.iter().enumerate() {
        assert_eq!(target.region.load_u64(0), 30, "target {number}");
    }
    for at in 0..90 {
        assert_eq!(a.region.load_u64(8 * at), at as u64 / 3, "addition {at}");
    }
}

#[test]
fn what_is_posted_goes_to_the_target_that_was_named_last_before() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 2);
    for (number, target) in targets.iter().enumerate() {
        a.qp.connect_dynamically(&target.qp.endpoint(), KEY, &options()).unwrap();
        let there = target.region.remote().slice(0, 8).unwrap();
        // WRITEs, whose answers carry no bytes.
        a.post(WorkRequest::write(&(number as u64 + 7).to_ne_bytes(), there).signaled(1));
        a.post(WorkRequest::write(&(number as u64 + 8).to_ne_bytes(), there).signaled(2));
    }
    assert!(sim.run_until_idle(MS));
    assert_eq!(a.statuses(), [Status::Success; 4]);
    assert_eq!(targets.iter().map(|it| it.region.load_u64(0)).collect::<Vec<_>>(), [8, 9]);
}

/// How long one READ takes after one of target 0.
fn read_ns(target: usize) -> u64 {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default().costs(Costs::connect_ib()), 2);
    let mut took_ns = 0;
    for target in [0, 0, target] {
        sim.run_for(10_000);
        let begin_ns = sim.now_ns();
        let there = &targets[target];
        a.qp.connect_dynamically(&there.qp.endpoint(), KEY, &options()).unwrap();
        let from = there.region.remote().slice(0, 16).unwrap();
        let into = a.region.slice(0, 16);
        a.post(WorkRequest::read(into, from).signaled(1));
        while a.statuses().is_empty() {
            sim.run_for(10);
        }
        took_ns = sim.now_ns() - begin_ns;
    }
    took_ns
}

#[test]
fn another_target_costs_a_round_trip() {
    // FaSST: 1.9 us and 2.9 us.
    let (same_ns, other_ns) = (read_ns(0), read_ns(1));
    let more_ns = other_ns - same_ns;
    assert!((600..1_600).contains(&more_ns), "{same_ns} ns, and {other_ns} ns of another target");
}

#[test]
fn lost_and_late_packets_neither_lose_nor_double_an_operation() {
    for seed in 0..100 {
        let rates = FaultRates::default()
            .reliable_loss(0.1)
            .connected_delay(0.1)
            .delay(Duration::from_micros(300));
        let (mut sim, mut a, targets) = rack(seed, SimConfig::default().faults(rates), 3);
        for at in 0..120 {
            // Runs of one target, and changes.
            add(&mut a, &targets[at * at / 5 % 3], at);
        }
        assert!(sim.run_until_idle(100_000 * MS), "seed {seed}");
        assert_eq!(a.statuses(), [Status::Success; 120], "seed {seed}");
        for (number, target) in targets.iter().enumerate() {
            let posted = (0..120).filter(|at| at * at / 5 % 3 == number).count();
            assert_eq!(target.region.load_u64(0), posted as u64, "seed {seed}, target {number}");
        }
    }
}

#[test]
fn a_target_has_one_responder_for_each_initiator_that_is_connected_to_it() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 2);
    let responders = |sim: &Sim| {
        let of = |target: &End| sim.node(target.node).nic_resources();
        targets
            .iter()
            .map(|target| (of(target).dynamic_responders, of(target).queue_pairs))
            .collect::<Vec<_>>()
    };
    for at in 0..41 {
        add(&mut a, &targets[at % 2], at);
    }
    assert!(sim.run_until_idle(MS));
    assert_eq!(responders(&sim), [(1, 1), (0, 1)]);
    let node = a.node;
    let b = {
        let mut b = End::new(&sim, node, QpType::Rc);
        add(&mut b, &targets[0], 0);
        b
    };
    assert!(sim.run_until_idle(MS));
    assert_eq!(responders(&sim), [(2, 1), (0, 1)]);
    drop((a, b));
    assert!(sim.run_until_idle(MS));
    assert_eq!(responders(&sim), [(0, 1), (0, 1)]);
}

#[test]
fn a_target_refuses_a_wrong_key_and_no_target_answers_nothing() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 1);
    let post = |a: &mut End| {
        let word = targets[0].region.remote().slice(0, 8).unwrap();
        let into = a.region.slice(0, 8);
        a.post(WorkRequest::read(into, word).signaled(1));
    };
    a.qp.connect_dynamically(&targets[0].qp.endpoint(), KEY + 1, &options()).unwrap();
    post(&mut a);
    assert!(sim.run_until_idle(MS));
    assert_eq!(a.statuses(), [Status::RemoteInvalidRequest]);
    assert_eq!(a.qp.state(), QpState::Error);

    // A queue pair that is no target, and a node that is dead.
    let plain = End::new(&sim, targets[0].node, QpType::Rc);
    let mut b = End::new(&sim, a.node, QpType::Rc);
    b.qp.connect_dynamically(&plain.qp.endpoint(), KEY, &options()).unwrap();
    post(&mut b);
    assert!(sim.run_until_idle(MS));
    assert_eq!(b.statuses(), [Status::RemoteInvalidRequest]);
    let mut c = End::new(&sim, a.node, QpType::Rc);
    c.qp.connect_dynamically(&targets[0].qp.endpoint(), KEY, &options()).unwrap();
    sim.node(targets[0].node).kill();
    post(&mut c);
    assert!(sim.run_until_idle(100 * MS));
    assert_eq!(c.statuses(), [Status::RetryExceeded]);
}

#[test]
fn what_was_sent_before_a_refused_target_is_done_first() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 2);
    add(&mut a, &targets[0], 0);
    a.qp.connect_dynamically(&targets[1].qp.endpoint(), KEY + 1, &options()).unwrap();
    let word = targets[1].region.remote().slice(0, 8).unwrap();
    for at in [1, 2] {
        let old = a.region.slice(8 * at, 8);
        a.post(WorkRequest::fetch_add(old, word, 1).signaled(1));
    }
    assert!(sim.run_until_idle(100 * MS));
    let ends = [Status::Success, Status::RemoteInvalidRequest, Status::Flushed];
    assert_eq!(a.statuses(), ends);
    assert_eq!([0, 1].map(|it: usize| targets[it].region.load_u64(0)), [1, 0]);
}

#[test]
fn a_target_that_is_gone_takes_its_responders_along() {
    let (mut sim, mut a, mut targets) = rack(1, SimConfig::default(), 2);
    add(&mut a, &targets[0], 0);
    assert!(sim.run_until_idle(MS));
    let gone = targets.remove(0);
    let (node, word) = (gone.node, gone.region.remote().slice(0, 8).unwrap());
    drop(gone);
    assert_eq!(sim.node(node).nic_resources(), farcall_verbs::sim::NicResources::default());
    let into = a.region.slice(0, 8);
    a.post(WorkRequest::read(into, word).signaled(1));
    assert!(sim.run_until_idle(100 * MS));
    assert_eq!(a.statuses(), [Status::Success, Status::RetryExceeded]);
}

#[test]
fn sends_to_a_target_come_by_its_shared_queue_and_name_it() {
    let (mut sim, mut a, targets) = rack(1, SimConfig::default(), 1);
    let there = &targets[0];
    let mut cq = there.device.create_cq(16, None).unwrap();
    let mut srq = there.pd.create_srq(16).unwrap();
    srq.post_recv(7, None).unwrap();
    let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).srq(&srq);
    let mut target = there.pd.create_qp(config).unwrap();
    target.accept_dynamically(KEY).unwrap();
    a.qp.connect_dynamically(&target.endpoint(), KEY, &options()).unwrap();
    a.post(WorkRequest::send(b"").imm(5).signaled(1));
    assert!(sim.run_until_idle(MS));
    let mut arrived: [farcall_verbs::WorkCompletion; 2] = Default::default();
    assert_eq!(cq.poll(&mut arrived).unwrap(), 1);
    assert_eq!((arrived[0].id, arrived[0].imm, arrived[0].qp), (7, Some(5), target.number()));
}

#[test]
fn ends_are_of_one_kind() {
    let (sim, mut a, mut targets) = rack(1, SimConfig::default(), 1);
    let to = targets[0].qp.endpoint();
    let usual = ConnectOptions::default();
    assert!(a.qp.connect_dynamically(&to, KEY, &usual).is_ok());
    assert!(matches!(a.qp.connect(&to, &usual), Err(ConnectError::State(_))));
    assert!(matches!(a.qp.accept_dynamically(KEY), Err(ConnectError::State(_))));
    let target = &mut targets[0].qp;
    assert!(matches!(target.connect_dynamically(&to, KEY, &usual), Err(ConnectError::State(_))));
    let posted = target.post_send_one(WorkRequest::send(b""));
    assert!(posted.is_err(), "a target sends nothing");
    let mut datagrams = End::new(&sim, a.node, QpType::Ud);
    assert!(matches!(datagrams.qp.accept_dynamically(KEY), Err(ConnectError::Type(QpType::Ud))));
}

#[cfg(feature = "faults")]
#[test]
fn an_injector_of_faults_refuses_what_it_cannot_follow() {
    use std::sync::Arc;

    use farcall_verbs::faults::RandomFaults;

    let (sim, a, _targets) = rack(1, SimConfig::default(), 1);
    let device = sim.node(a.node).device().with_faults(Arc::new(RandomFaults::new(1)));
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap());
    let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq)).unwrap();
    let refused = qp.accept_dynamically(KEY).unwrap_err();
    assert!(refused.to_string().contains("injector"), "{refused}");
}

#[test]
fn a_device_without_them_says_so() {
    let device = Device::open("shm").unwrap();
    assert!(!device.caps().dynamic_connections);
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap());
    let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq)).unwrap();
    let to = qp.endpoint();
    let refused = qp.connect_dynamically(&to, KEY, &ConnectOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("caps().dynamic_connections"), "{refused}");
    assert!(matches!(qp.accept_dynamically(KEY), Err(ConnectError::NotDynamic)));
    assert!(pd.alloc_shared(64, Access::empty()).is_ok());
}
