//! A program that changes one word by atomics of its CPU and of peers: right on shared memory, noticed on a device that is to be used like a
//! NIC.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farcall_verbs::{
    Access, ConnectOptions, Device, QpType, QueuePairConfig, Status, WorkCompletion, WorkRequest,
};

/// Adds 1 to a word by a peer's atomic, and then by the owner's CPU.
fn both_sides_add(device: &str) -> u64 {
    let device = Device::open(device).unwrap();
    let (pd, mut cq) = (device.alloc_pd().unwrap(), device.create_cq(16, None).unwrap());
    let pair = || pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq)).unwrap();
    let (mut a, mut b) = (pair(), pair());
    a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
    b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
    let region = pd.alloc_shared(16, Access::all()).unwrap();
    let word = region.remote().slice(8, 8).unwrap();
    a.post_send_one(WorkRequest::fetch_add(region.slice(0, 8), word, 1).signaled(1)).unwrap();
    let mut done: [WorkCompletion; 1] = Default::default();
    while cq.poll(&mut done).unwrap() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(done[0].status, Status::Success);
    region.fetch_add_u64(8, 1);
    region.load_u64(8)
}

#[test]
fn a_word_that_both_sides_change_is_noticed_where_it_would_lose_updates() {
    assert_eq!(both_sides_add("shm"), 2);
    if cfg!(debug_assertions) {
        let noticed = catch_unwind(AssertUnwindSafe(|| both_sides_add("shm-plain")));
        let said = noticed.expect_err("nobody noticed").downcast::<&str>().map(|said| *said);
        assert!(said.is_ok_and(|said| said.contains("atomics_include_cpu")));
    }
}
