//! Posting and polling do not allocate in the steady state.

use std::alloc::System;

use farcall_verbs::{
    Access, CompletionOpcode, CompletionQueue, ConnectOptions, Device, QpType, QueuePair,
    QueuePairConfig, Status, WorkCompletion, WorkRequest,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts allocations of all threads, including the device's control thread.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn queue_pair(
    device: &Device,
    pd: &farcall_verbs::ProtectionDomain,
) -> (CompletionQueue, QueuePair) {
    let cq = device.create_cq(1024, None).unwrap();
    let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
    let qp = pd.create_qp(config.max_send_wr(64).max_recv_wr(64)).unwrap();
    (cq, qp)
}

fn drain(cq: &mut CompletionQueue, out: &mut [WorkCompletion], mut wanted: usize) -> usize {
    let mut receives = 0;
    while wanted > 0 {
        let count = cq.poll(out).unwrap();
        for completion in &mut out[..count] {
            assert_eq!(completion.status, Status::Success);
            receives += usize::from(completion.opcode == CompletionOpcode::RecvWriteWithImm);
            receives += usize::from(completion.opcode == CompletionOpcode::Recv);
        }
        wanted -= count;
    }
    receives
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let device = Device::open("shm").unwrap();
    let pd = device.alloc_pd().unwrap();
    let (mut a_cq, mut a) = queue_pair(&device, &pd);
    let (mut b_cq, mut b) = queue_pair(&device, &pd);
    let options = ConnectOptions::default();
    a.connect(&b.endpoint(), &options).unwrap();
    b.connect(&a.endpoint(), &options).unwrap();
    let region = pd.alloc_shared(1 << 16, Access::all()).unwrap();
    let remote = region.remote();
    let pool = pd.alloc_private(16 * 4096).unwrap().into_pool(4096);
    let mut out: [WorkCompletion; 16] = std::array::from_fn(|_| WorkCompletion::default());
    b.post_recvs(0..32).unwrap();

    let mut counted = Region::new(ALLOCATOR);
    for round in 0..1000u64 {
        if round == 100 {
            counted.reset();
        }
        // Small inline WRITEs with one doorbell; larger ones from a buffer; a READ; an atomic; a SEND.
        let bytes = [round as u8; 32];
        let mut doorbell = a.doorbell();
        for i in 0..3 {
            let slot = remote.slice(i * 64, 32).unwrap();
            let request = WorkRequest::write(&bytes, slot).imm(i as u32);
            assert!(doorbell.post(request).is_ok());
        }
        let write = WorkRequest::write(pool.take().unwrap(), remote.slice(4096, 4096).unwrap());
        assert!(doorbell.post(write.imm(3)).is_ok());
        drop(doorbell);
        let read = WorkRequest::read(pool.take().unwrap(), remote.slice(0, 4096).unwrap());
        assert!(a.post_send_one(read).is_ok());
        let mut word = pool.take().unwrap();
        word.set_len(8);
        let add = WorkRequest::fetch_add(word, remote.slice(8192, 8).unwrap(), 1);
        assert!(a.post_send_one(add).is_ok());
        b.post_recv(round, pool.take()).unwrap();
        assert_eq!(drain(&mut b_cq, &mut out, 4), 4);
        b.post_recvs(0..4).unwrap();
        // The receives without buffers are used first; only an empty SEND fits them.
        for _ in 0..33 {
            assert!(a.post_send_one(WorkRequest::send(b"").signaled(round)).is_ok());
            assert_eq!(drain(&mut a_cq, &mut out, 1), 0);
            assert_eq!(drain(&mut b_cq, &mut out, 1), 1);
            out.iter_mut().for_each(|completion| completion.buffer = None);
        }
        b.post_recvs(0..32).unwrap();
        a.reclaim(&mut drop);
        assert_eq!(pool.available(), 16);
    }
    let change = counted.change();
    assert_eq!(change.allocations + change.reallocations, 0, "allocations in 900 rounds");
}
