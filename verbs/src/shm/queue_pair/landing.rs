//! Long messages that are announced before they have landed.

use std::time::Duration;

use super::hostile::{RECEIVES, connect, queue_pair};
use super::*;
use crate::shm::cell::{CellKind, Header, LANDING, Landing, Next, second_word};
use crate::shm::completion_queue::CompletionQueue;
use crate::shm::context::Context;
use crate::shm::events::Channel;
use crate::{Access, ConnectOptions, Device, Status, WorkCompletion, WorkRequest};

const IMM: u32 = 7;

struct Ends {
    cq: CompletionQueue,
    channel: Arc<Channel>,
    receiver: QueuePair,
    _peers_cq: CompletionQueue,
    _sender: QueuePair,
}

impl Ends {
    fn new() -> Ends {
        let domain = Domain { context: Context::open(false).unwrap(), number: 1, sole: None };
        let channel = Arc::new(Channel::new().unwrap());
        let cq = CompletionQueue::new(1024, Some(Arc::clone(&channel)), false);
        let peers_cq = CompletionQueue::new(1024, None, false);
        let mut receiver = queue_pair(&domain, &cq);
        let mut sender = queue_pair(&domain, &peers_cq);
        connect(&mut receiver, &mut sender);
        receiver.post_recvs(0..RECEIVES as u64).unwrap();
        Ends { cq, channel, receiver, _peers_cq: peers_cq, _sender: sender }
    }

    /// Announces the message in the ring, as a sender does that has no free line.
    fn announce(&self, landing: Landing) {
        let ring = self.receiver.pair.inbox().unwrap().ring();
        ring.cell(0).fill(second_word(0, IMM), &landing.words());
        let header = Header::new(ring.tag(0), CellKind::WriteImm, Next::Adjacent, LANDING, 0);
        ring.cell(0).publish(header);
    }

    fn set_landed(&self, landed: u64) {
        self.receiver.pair.inbox().unwrap().ring().cell(0).set_landed(landed);
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        let count = self.cq.poll(&mut out).unwrap();
        (count > 0).then(|| out.map(Some)[0].take()).flatten()
    }

    /// Whether a thread that arms now would be kept awake.
    fn stays_awake(&mut self) -> bool {
        self.cq.arm();
        let is_awake = self.channel.wait(Duration::ZERO).unwrap();
        self.cq.disarm();
        is_awake
    }
}

#[test]
fn a_message_completes_when_all_of_it_has_landed() {
    let mut ends = Ends::new();
    while ends.poll().is_some() {}
    let bytes = [0u8; 5000];
    ends.announce(Landing { len: 5000, address: bytes.as_ptr().addr() as u64, landed: 0 });
    for landed in [0, 1024, 4999] {
        ends.set_landed(landed);
        assert!(ends.poll().is_none(), "{landed} bytes have landed");
        assert!(!ends.stays_awake(), "its sender rings when the rest has landed");
    }
    ends.set_landed(5000);
    assert!(ends.stays_awake());
    let completion = ends.poll().expect("it has landed");
    assert_eq!((completion.byte_len, completion.imm), (5000, Some(IMM)));
    assert!(completion.payload().is_none());
    assert!(ends.poll().is_none());
}

#[test]
fn what_a_peer_says_of_its_message_is_not_believed() {
    for (len, address, landed) in
        [(u64::MAX, 0, u64::MAX - 1), (u64::MAX, u64::MAX, 1 << 40), (5000, 8, u64::MAX), (0, 0, 0)]
    {
        let mut ends = Ends::new();
        ends.announce(Landing { len, address, landed });
        let completed: Vec<_> = std::iter::from_fn(|| ends.poll()).take(9).collect();
        let is_whole = landed >= len;
        assert_eq!(completed.len(), usize::from(is_whole), "{len}, {landed}");
        for completion in completed {
            assert_eq!(completion.status, Status::Success);
            assert!(u64::from(completion.byte_len) <= len);
        }
    }
}

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
    let regions = [(); 2].map(|()| pd.alloc_shared(1 << 16, Access::REMOTE_WRITE).unwrap());
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
        let mut landed = vec![0; len];
        regions[to].copy_out(0, &mut landed);
        assert_eq!(landed, bytes, "{turn}");
        sent[from] += 1;
    }
    assert_eq!(in_parts, 98, "the first message of each end has to find its region");
    // The same as one piece that the device takes from its caller.
    let long = vec![3; 9000];
    let remote = regions[1].remote().slice(0, 9000).unwrap();
    let request = WorkRequest::write(&long[..], remote).imm(1);
    ends[0].0.post_send_one(request).unwrap_or_else(|(error, _)| panic!("{error}"));
    let mut landed = vec![0; 9000];
    let mut out = [WorkCompletion::default()];
    while ends[1].1.poll(&mut out).unwrap() == 0 {}
    regions[1].copy_out(0, &mut landed);
    assert_eq!(landed, long);
}
