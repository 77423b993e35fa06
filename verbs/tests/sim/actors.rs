//! Actors: when they run, and what their turns cost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farcall_verbs::sim::{Actor, Costs, Fault, Next, NodeClock, Sim, SimConfig, Turn};
use farcall_verbs::{QpType, VerbsError, Wake, WorkRequest};

use crate::rig::{End, two};

/// A rack in which only costs that actors report use CPU time.
fn without_costs() -> SimConfig {
    let mut costs = Costs::default();
    (costs.post_ns, costs.doorbell_ns, costs.poll_ns, costs.completion_ns) = (0, 0, 0, 0);
    SimConfig::default().costs(costs)
}

/// Sends back every message that it receives, up to a limit.
struct Player {
    end: End,
    left: u32,
    turns: Rc<Cell<u32>>,
}

impl Actor for Player {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        self.turns.set(self.turns.get() + 1);
        for arrived in self.end.completions() {
            assert_eq!(arrived.status, farcall_verbs::Status::Success);
            if self.left > 0 {
                self.left -= 1;
                self.end.qp.post_recv(0, None).unwrap();
                self.end.post(WorkRequest::send(b"").unsignaled());
            }
        }
        Turn::then(Next::OnEvent)
    }
}

#[test]
fn actors_that_wait_for_events_get_one_turn_per_message() {
    let (mut sim, mut a, mut b) = two(1, SimConfig::default(), QpType::Rc);
    a.qp.post_recvs(0..4).unwrap();
    b.qp.post_recvs(0..4).unwrap();
    a.post(WorkRequest::send(b"").unsignaled());
    let turns = Rc::new(Cell::new(0));
    for end in [a, b] {
        let node = end.node;
        sim.spawn(node, Player { end, left: 500, turns: turns.clone() });
    }
    assert!(sim.run_until_idle(1_000_000_000));
    // Each arrival is a turn, and so is the first turn of either player.
    assert_eq!(turns.get(), 1001 + 2);
    let round_ns = sim.now_ns() / 500;
    assert!((1_000..4_000).contains(&round_ns), "{round_ns} ns for a round");
}

/// An actor that records the times of its turns.
fn noting(
    times: &Rc<RefCell<Vec<u64>>>,
    turn: impl Fn(u64) -> Turn + 'static,
) -> impl Actor + 'static {
    let times = times.clone();
    move |now_ns| {
        times.borrow_mut().push(now_ns);
        turn(now_ns)
    }
}

#[test]
fn a_turn_is_charged_to_its_core() {
    let mut sim = Sim::with_config(1, without_costs());
    let node = sim.add_node();
    let times: [Rc<RefCell<Vec<u64>>>; 3] = Default::default();
    let busy = |_| Turn::then(Next::Now).busy_ns(600).scanned(200);
    sim.spawn_pinned(node, 0, noting(&times[0], busy));
    sim.spawn_pinned(node, 0, noting(&times[1], busy));
    sim.spawn_pinned(node, 1, noting(&times[2], busy));
    sim.run_for(10_000);
    // 600 ns, and 2 ns for each of 200 cells.
    assert_eq!(*times[2].borrow(), (0..=10).map(|turn| 1000 * turn).collect::<Vec<_>>());
    let mut shared: Vec<_> = times[0].borrow().iter().chain(&*times[1].borrow()).copied().collect();
    shared.sort_unstable();
    assert_eq!(shared, (0..=10).map(|turn| 1000 * turn).collect::<Vec<_>>(), "one core");
    assert!((5..=6).contains(&times[0].borrow().len()), "both get turns");
}

#[test]
fn a_deadline_is_a_turn_if_no_event_is_earlier() {
    let mut sim = Sim::with_config(1, without_costs());
    let node = sim.add_node();
    let times = Rc::default();
    sim.spawn(node, noting(&times, |now_ns| Turn::then(Next::At(now_ns + 5_000))));
    sim.run_for(20_000);
    assert_eq!(*times.borrow(), [0, 5_000, 10_000, 15_000, 20_000]);
}

#[test]
fn an_actor_that_always_wants_to_run_does_not_stop_the_clock() {
    let mut sim = Sim::with_config(1, without_costs());
    let node = sim.add_node();
    sim.spawn(node, |_| Turn::then(Next::Now));
    sim.run_for(1_000);
    assert_eq!(sim.now_ns(), 1_000);
}

#[test]
fn a_write_into_a_watched_region_is_an_event() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let remote = b.region.remote();
    let (watching, other) = (Rc::default(), Rc::default());
    let actor = sim.spawn(b.node, noting(&watching, |_| Turn::then(Next::OnEvent)));
    sim.spawn(b.node, noting(&other, |_| Turn::then(Next::OnEvent)));
    assert!(sim.watch(actor, &remote));
    sim.run_for(1_000);
    a.post(WorkRequest::write(&[1; 8], remote.slice(0, 8).unwrap()).unsignaled());
    assert!(sim.run_until_idle(100_000));
    assert_eq!((watching.borrow().len(), other.borrow().len()), (2, 1));
}

#[test]
fn a_write_into_an_armed_region_is_an_event_of_its_channel() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let (remote, times) = (b.region.remote(), Rc::default());
    let channel = b.device.create_completion_channel().unwrap();
    assert_eq!(b.region.watch(&channel).unwrap(), Wake::Event);
    let region = b.region.clone();
    let arms_twice = move |_| {
        if region.load_u64(0) < 2 {
            region.arm();
        }
        Turn::then(Next::OnEvent)
    };
    sim.spawn(b.node, noting(&times, arms_twice));
    sim.run_for(1_000);
    for (word, woken) in [(1_u64, true), (2, true), (3, false)] {
        let slice = remote.slice(0, 8).unwrap();
        a.post(WorkRequest::write(&word.to_ne_bytes(), slice).unsignaled());
        assert!(sim.run_until_idle(100_000));
        assert_eq!(channel.wait(Duration::ZERO).unwrap(), woken, "WRITE {word}");
    }
    assert_eq!(times.borrow().len(), 3);
    let elsewhere = a.device.create_completion_channel().unwrap();
    let watched = b.region.watch(&elsewhere).map(|_| ());
    assert!(
        matches!(watched, Err(VerbsError::Foreign(_))),
        "a channel of another node: {watched:?}"
    );
}

#[test]
fn an_actor_can_watch_a_region_in_its_turn() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let (node, remote, times) = (sim.node(b.node), b.region.remote(), Rc::default());
    assert!(!node.watch(&remote), "no actor has a turn");
    let watches = move |_| {
        assert!(node.watch(&remote));
        Turn::then(Next::OnEvent)
    };
    sim.spawn(b.node, noting(&times, watches));
    sim.run_for(10);
    a.post(WorkRequest::write(&[1; 8], remote.slice(0, 8).unwrap()).unsignaled());
    assert!(sim.run_until_idle(100_000));
    assert_eq!(times.borrow().len(), 2);
}

/// Records that it was dropped.
struct RecordsDrop(Rc<Cell<bool>>, Next);

impl Actor for RecordsDrop {
    fn turn(&mut self, _now_ns: u64) -> Turn {
        Turn::then(self.1)
    }
}

impl Drop for RecordsDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn an_actor_is_dropped_when_it_has_finished_or_its_node_dies() {
    let mut sim = Sim::new(1);
    let node = sim.add_node();
    let (finished, killed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    sim.spawn(node, RecordsDrop(finished.clone(), Next::Never));
    sim.spawn(node, RecordsDrop(killed.clone(), Next::Now));
    sim.schedule(500, Fault::KillNode(node));
    sim.run_until(499);
    assert_eq!((finished.get(), killed.get()), (true, false));
    sim.run_until(500);
    assert!(killed.get());
    assert!(sim.run_until_idle(1_000), "nothing of it is left");
}

#[test]
fn what_a_timed_turn_publishes_is_there_when_the_core_has_come_to_it() {
    let shown_at_ns = |config: SimConfig| {
        let mut sim = Sim::with_config(1, config);
        let node = sim.add_node();
        let region = End::new(&sim, node, QpType::Rc).region;
        let shown = Rc::new(region);
        let (published, handle, clock) = (shown.clone(), sim.node(node), Rc::new(Cell::new(0)));
        let told = clock.clone();
        let mut is_done = false;
        sim.spawn(node, move |_| {
            if !std::mem::replace(&mut is_done, true) {
                handle.busy(700);
                published.publish_u64(8, 5);
                told.set(handle.clock_ns());
                handle.busy(300);
            }
            Turn::then(Next::OnEvent)
        });
        sim.run_for(0);
        while shown.load_u64(8) != 5 {
            sim.run_for(10);
        }
        (sim.now_ns(), clock.get())
    };
    assert_eq!(shown_at_ns(without_costs().timed_turns()), (700, 700));
    assert_eq!(shown_at_ns(without_costs()), (0, 0));
}

#[test]
fn a_node_may_have_another_clock_and_each_of_its_starts_is_a_process() {
    let mut sim = Sim::new(1);
    let (node, other) = (sim.add_node(), sim.add_node());
    sim.set_clock(node, NodeClock { ahead_ns: 5_000, drift_ppb: 100_000_000 });
    sim.run_for(1_000);
    let (node, other) = (sim.node(node), sim.node(other));
    assert_eq!((node.clock_ns(), node.clock_at(2_000), other.clock_ns()), (6_100, 7_200, 1_000));
    assert_eq!((node.rack_ns_when(7_200), other.rack_ns_when(7_200)), (2_000, 7_200));
    let number = node.device().process_number();
    assert_eq!(node.device().process_number(), number);
    assert_ne!(other.device().process_number(), number);
    node.kill();
    node.restart();
    assert_ne!(node.device().process_number(), number);
    assert_eq!(node.clock_ns(), 6_100, "its clock goes on");
}
