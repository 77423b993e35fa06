//! How WRITEs land: what a reader can observe meanwhile.

use std::time::Duration;

use farcall_verbs::sim::{Landing, Sim, SimConfig};
use farcall_verbs::{Access, QpType, Status, Visibility, WorkRequest, WriteOrder};

use crate::rig::{End, join, two};

const LINES: usize = 16;
const LEN: usize = 64 * LINES;

/// Writes one kilobyte, and returns the content of the target's memory after each event: `true` for each line
/// that has landed.
fn seen(landing: Landing, access: Access) -> Vec<[bool; LINES]> {
    let config = SimConfig::default().landing(landing);
    let mut sim = Sim::with_config(1, config);
    let nodes = [sim.add_node(), sim.add_node()];
    let mut a = End::new(&sim, nodes[0], QpType::Rc);
    let mut b = End::within(&sim, nodes[1], QpType::Rc, access);
    join(&mut a, &mut b);
    let mut buffer = a.pd.alloc_private(LEN).unwrap().into_buffer();
    buffer.fill(1);
    a.post(WorkRequest::write(buffer, b.region.remote().slice(0, LEN as u64).unwrap()).signaled(1));
    let mut all = Vec::new();
    while sim.step() {
        all.push(std::array::from_fn(|line| {
            let (first, last) = (b.region.load_u64(64 * line), b.region.load_u64(64 * line + 56));
            assert_eq!(first, last, "half a line");
            first != 0
        }));
    }
    assert_eq!(a.statuses(), [Status::Success]);
    assert_eq!(all.last(), Some(&[true; LINES]));
    all
}

const STRICT: Access = Access::all().difference(Access::RELAXED_ORDERING);

fn is_torn(lines: &[bool; LINES]) -> bool {
    lines.contains(&true) && lines.contains(&false)
}

fn in_order(lines: &[bool; LINES]) -> bool {
    lines.is_sorted_by(|a, b| a >= b)
}

#[test]
fn at_once_means_that_a_partial_write_is_never_visible() {
    assert!(!seen(Landing::AtOnce, STRICT).iter().any(is_torn));
}

#[test]
fn left_to_right_means_that_a_visible_line_implies_the_lines_before_it() {
    let all = seen(Landing::LeftToRight, STRICT);
    assert!(all.iter().any(is_torn) && all.iter().all(in_order));
}

#[test]
fn any_order_means_that_a_line_may_land_before_lower_ones() {
    assert!(!seen(Landing::AnyOrder, STRICT).iter().all(in_order));
    assert!(!seen(Landing::LeftToRight, Access::all()).iter().all(in_order), "a relaxed region");
}

#[test]
fn capabilities_say_how_writes_land() {
    for (landing, order) in [
        (Landing::AtOnce, WriteOrder::LeftToRight),
        (Landing::LeftToRight, WriteOrder::LeftToRight),
        (Landing::AnyOrder, WriteOrder::Unordered),
    ] {
        let (_, a, _) = two(1, SimConfig::default().landing(landing), QpType::Rc);
        assert_eq!(a.device.caps().write_order, order);
        assert_eq!(a.device.caps().visibility, Visibility::CompletionMeansVisible);
    }
}

#[test]
fn delivered_is_not_visible_until_a_read_or_a_message_behind_it_says_so() {
    let config = SimConfig::default().delivered_late(Duration::from_micros(50));
    let (mut early, mut seeds) = (0, 0);
    for seed in 0..20 {
        let (mut sim, mut a, mut b) = two(seed, config.clone(), QpType::Rc);
        assert_eq!(a.device.caps().visibility, Visibility::CompletionMeansDelivered);
        let there = b.region.remote().slice(0, 8).unwrap();
        a.post(WorkRequest::write(&[1; 8], there).signaled(1));
        while a.completions().is_empty() {
            assert!(sim.step(), "the WRITE never completed");
        }
        early += u32::from(b.region.load_u64(0) == 0);
        // Later work on the same queue pair observes that the WRITE has landed.
        let into = a.pd.alloc_shared(8, Access::empty()).unwrap();
        a.post(WorkRequest::read(into.slice(0, 8), there).signaled(2));
        b.qp.post_recvs(0..1).unwrap();
        a.post(WorkRequest::send(b"").signaled(3));
        while b.completions().is_empty() {
            assert!(sim.step(), "the SEND never arrived");
        }
        assert_ne!(b.region.load_u64(0), 0, "seed {seed}: a SEND overtook a WRITE");
        assert!(sim.run_until_idle(1_000_000));
        assert_ne!(into.load_u64(0), 0, "seed {seed}: a READ overtook a WRITE");
        seeds += 1;
    }
    assert!(early > seeds / 2, "only {early} of {seeds} completions came before their bytes");
}
