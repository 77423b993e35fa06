//! Time: which resource limits what.

use farcall_verbs::sim::{Costs, Next, Sim, SimConfig, Turn};
use farcall_verbs::{Access, QpType, WorkRequest};

use crate::rig::{End, join, two};

/// Nanoseconds from the post of the first of `count` WRITEs of `len` bytes until all have completed.
fn writes(count: usize, len: usize) -> u64 {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let there = b.region.remote().slice(0, len as u64).unwrap();
    let source = a.pd.alloc_shared(len, Access::empty()).unwrap();
    for _ in 1..count {
        a.post(WorkRequest::write(source.slice(0, len), there).unsignaled());
    }
    a.post(WorkRequest::write(source.slice(0, len), there).signaled(1));
    assert!(sim.run_until_idle(1_000_000_000));
    assert_eq!(a.completions().len(), 1);
    sim.now_ns()
}

#[test]
fn a_small_write_takes_one_trip_there_and_back() {
    let took_ns = writes(1, 8);
    assert!((1_000..2_500).contains(&took_ns), "{took_ns} ns");
}

#[test]
fn small_writes_of_one_queue_pair_are_bounded_by_its_processing_unit() {
    let each_ps = 1000 * (writes(1000, 8) - writes(1, 8)) / 999;
    let unit_ps = 1000 * Costs::default().queue_pair_ns;
    assert!((unit_ps..unit_ps + unit_ps / 10).contains(&each_ps), "{each_ps} ps each");
}

#[test]
fn long_writes_are_bounded_by_the_link() {
    let took_ns = writes(1000, 1 << 16) - writes(1, 1 << 16);
    let gbit_per_s = (999_u64 << 19) as f64 / took_ns as f64;
    assert!((90.0..100.0).contains(&gbit_per_s), "{gbit_per_s} Gbit/s");
}

#[test]
fn a_post_takes_effect_only_with_time() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let there = b.region.remote().slice(0, 8).unwrap();
    a.post(WorkRequest::write(&[1; 8], there).signaled(1));
    assert_eq!((b.region.load_u64(0), a.completions().len()), (0, 0));
    sim.run_for(400);
    assert_eq!(b.region.load_u64(0), 0, "it is still on the wire");
    assert!(sim.run_until_idle(100_000));
    assert_eq!((b.region.load_u64(0), a.completions().len()), (0x0101_0101_0101_0101, 1));
    assert_eq!(a.device.now_ns(), sim.now_ns());
}

#[test]
fn work_without_a_doorbell_waits() {
    let (mut sim, mut a, b) = two(1, SimConfig::default(), QpType::Rc);
    let there = b.region.remote().slice(0, 8).unwrap();
    let request = WorkRequest::write(&[1; 8], there).signaled(1);
    a.qp.post_unrung(request).map_err(|(error, _)| error).unwrap();
    assert!(sim.run_until_idle(1_000_000));
    assert!(a.completions().is_empty());
    a.qp.ring();
    assert!(sim.run_until_idle(1_000_000));
    assert_eq!(a.completions().len(), 1);
}

#[test]
fn a_doorbell_does_not_wait_for_one_that_another_core_rings_later() {
    let mut sim = Sim::new(1);
    let (node, peer) = (sim.add_node(), sim.add_node());
    let mut regions = Vec::new();
    // The first core has its turn first, and rings at the end of it.
    for busy_ns in [10_000, 0] {
        let (mut here, mut there) =
            (End::new(&sim, node, QpType::Rc), End::new(&sim, peer, QpType::Rc));
        join(&mut here, &mut there);
        let (handle, remote) = (sim.node(node), there.region.remote().slice(0, 8).unwrap());
        regions.push(there);
        let mut is_done = false;
        sim.spawn(node, move |_| {
            if !std::mem::replace(&mut is_done, true) {
                handle.busy(busy_ns);
                here.post(WorkRequest::write(&[1; 8], remote).unsignaled());
            }
            Turn::then(Next::OnEvent)
        });
    }
    let have_landed = |regions: &[End]| [0, 1].map(|at| regions[at].region.load_u64(0) != 0);
    sim.run_for(5_000);
    assert_eq!(have_landed(&regions), [false, true]);
    sim.run_for(10_000);
    assert_eq!(have_landed(&regions), [true, true]);
}
