//! Long messages by WRITE_WITH_IMM, which no cell carries.

use crate::{Access, ConnectOptions, Device, QpType, WorkCompletion, WorkRequest};

/// In a line that the sender opens, in one in which it answers, and in the ring.
#[test]
fn long_messages_arrive_whole_wherever_their_cell_is() {
    let device = Device::open("shm").unwrap();
    let (cq, peers_cq) =
        (device.create_cq(400, None).unwrap(), device.create_cq(400, None).unwrap());
    let pd = device.alloc_pd().unwrap();
    let make = |cq: &crate::CompletionQueue| {
        let handle = cq.handle();
        let config = crate::QueuePairConfig::new(QpType::Rc, &handle, &handle);
        pd.create_qp(config.max_send_wr(200).max_recv_wr(200)).unwrap()
    };
    let mut ends = [(make(&cq), cq), (make(&peers_cq), peers_cq)];
    let endpoints = [ends[1].0.endpoint(), ends[0].0.endpoint()];
    for ((qp, _), endpoint) in ends.iter_mut().zip(&endpoints) {
        qp.connect(endpoint, &ConnectOptions::default()).unwrap();
        qp.post_recvs(0..200).unwrap();
    }
    // Into one of them in order, into the other in any.
    let accesses = [Access::REMOTE_WRITE, Access::REMOTE_WRITE | Access::RELAXED_ORDERING];
    let regions = accesses.map(|access| pd.alloc_shared(1 << 16, access).unwrap());
    let (mut sent, mut in_parts) = ([0_u32; 2], 0);
    // Alternating messages go into lines, and those of one end alone into the ring, when it has opened all of its lines.
    for (turn, from) in (0..40).map(|turn| turn % 2).chain([0; 60]).enumerate() {
        let (len, to) = (3000 + turn * 97, 1 - from);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + turn) as u8).collect();
        let (front, rest) = bytes.split_at(turn % 70);
        let remote = regions[to].remote().slice(0, len as u64).unwrap();
        let (qp, imm) = (&mut ends[from].0, sent[from]);
        if qp.try_post_write_imm_parts(front, rest, remote, imm, None) {
            in_parts += 1;
        } else {
            qp.post_write_imm(&bytes, remote, imm, None).unwrap();
        }
        qp.ring();
        let mut out = [WorkCompletion::default()];
        while ends[to].1.poll(&mut out).unwrap() == 0 {}
        assert_eq!((out[0].byte_len as usize, out[0].imm), (len, Some(sent[from])), "{turn}");
        let mut arrived = vec![0; len];
        regions[to].copy_out(0, &mut arrived);
        assert_eq!(arrived, bytes, "{turn}");
        sent[from] += 1;
    }
    assert_eq!(in_parts, 98, "the first message of each end has to find its region");
    // The same as one piece that the device takes from its caller.
    let long = vec![3; 9000];
    let remote = regions[1].remote().slice(0, 9000).unwrap();
    let request = WorkRequest::write(&long[..], remote).imm(1);
    ends[0].0.post_send_one(request).unwrap_or_else(|(error, _)| panic!("{error}"));
    let mut arrived = vec![0; 9000];
    let mut out = [WorkCompletion::default()];
    while ends[1].1.poll(&mut out).unwrap() == 0 {}
    regions[1].copy_out(0, &mut arrived);
    assert_eq!(arrived, long);
}
