//! WRITE_WITH_IMM between two threads, each with its own device.

use std::thread;
use std::time::Duration;

use farcall_verbs::{
    Access, CompletionOpcode, CompletionQueue, ConnectError, ConnectOptions, Device, Endpoint,
    ProtectionDomain, QpType, QueuePair, QueuePairConfig, RemoteRegion, SharedRegion, Status,
    WorkCompletion, WorkRequest,
};

struct End {
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    region: SharedRegion,
}

impl End {
    fn new(receives: usize) -> End {
        let device = Device::open("shm").unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024, None).unwrap();
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_recv_wr(receives);
        let qp = pd.create_qp(config).unwrap();
        let region = pd.alloc_shared(1 << 20, Access::REMOTE_WRITE).unwrap();
        End { _pd: pd, cq, qp, region }
    }

    fn connect(&mut self, peer: &Endpoint) {
        self.qp.connect(peer, &ConnectOptions::default()).unwrap();
    }

    /// The next `out.len()` completions.
    fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        let mut out: Vec<_> = (0..count).map(|_| WorkCompletion::default()).collect();
        let mut got = 0;
        for _ in 0..2_000_000_000u64 {
            got += self.cq.poll(&mut out[got..]).unwrap();
            if got == count {
                return out;
            }
            std::hint::spin_loop();
        }
        panic!("only {got} of {count} completions arrived");
    }
}

fn pair() -> (End, End) {
    pair_with(128)
}

fn pair_with(receives: usize) -> (End, End) {
    let (mut a, mut b) = (End::new(receives), End::new(receives));
    b.qp.post_recvs(0..receives as u64).unwrap();
    a.qp.post_recvs(0..receives as u64).unwrap();
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    a.connect(&to_b);
    b.connect(&to_a);
    (a, b)
}

#[test]
fn any_time_is_a_time_to_connect_in() {
    for timeout in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
        let (mut a, mut b) = (End::new(1), End::new(1));
        let options = ConnectOptions::default().setup_timeout(timeout);
        // The first one connects to a device that it does not know yet; no time may be too little for that.
        let connected = a.qp.connect(&b.qp.endpoint(), &options);
        let is_in_time = connected.is_ok();
        assert!(
            is_in_time || timeout.is_zero() && matches!(connected, Err(ConnectError::Timeout(_))),
            "{timeout:?}: {connected:?}"
        );
        if is_in_time {
            b.connect(&a.qp.endpoint());
        }
    }
}

#[test]
fn every_length_arrives_in_memory_and_small_ones_in_the_completion() {
    let (mut a, mut b) = pair();
    for len in 0..=256usize {
        for offset in [0, 3] {
            let message: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            let remote = b.region.remote().slice(offset, len as u64).unwrap();
            let request = WorkRequest::write(&message[..], remote).imm(len as u32).signaled(9);
            a.qp.post_send_one(request).unwrap();
            let sent = a.completions(1).remove(0);
            assert_eq!(
                (sent.id, sent.status, sent.opcode),
                (9, Status::Success, CompletionOpcode::Write)
            );
            let got = b.completions(1).remove(0);
            assert_eq!(got.opcode, CompletionOpcode::RecvWriteWithImm);
            assert_eq!((got.imm, got.byte_len), (Some(len as u32), len as u32));
            assert_eq!(got.payload(), (len <= 48).then_some(&message[..]));
            let mut landed = vec![0; len];
            b.region.copy_out(offset as usize, &mut landed);
            assert_eq!(landed, message);
            b.qp.post_recvs(0..1).unwrap();
        }
    }
}

#[test]
fn two_threads_answer_each_other() {
    const ROUNDS: u64 = 20_000;
    let (mut a, mut b) = pair();
    let to_a: RemoteRegion = a.region.remote();
    let to_b: RemoteRegion = b.region.remote();
    let answering = thread::spawn(move || {
        let (mut round, mut retired) = (0, 0);
        while round < ROUNDS {
            let got = b.completions(1).remove(0);
            if got.opcode == CompletionOpcode::Write {
                retired += 1;
                continue;
            }
            b.qp.post_recvs(round..round + 1).unwrap();
            let slot = to_a.slice(round % 64 * 64, 32).unwrap();
            let request = WorkRequest::write(got.payload().unwrap(), slot).imm(got.imm.unwrap());
            b.qp.post_send_one(match round % 32 {
                31 => request.signaled(round),
                _ => request.unsignaled(),
            })
            .unwrap();
            round += 1;
        }
        assert!(retired >= ROUNDS / 32 - 1);
    });
    for round in 0..ROUNDS {
        let message = [round.to_ne_bytes(); 4].concat();
        let slot = to_b.slice(round % 64 * 64, 32).unwrap();
        let request = WorkRequest::write(&message[..], slot).imm(round as u32);
        a.qp.post_send_one(request.signaled(round)).unwrap();
        let mut got = a.completions(2);
        got.sort_by_key(|completion| completion.imm);
        assert_eq!(got[0].opcode, CompletionOpcode::Write);
        assert_eq!((got[1].imm, got[1].payload()), (Some(round as u32), Some(&message[..])));
        a.qp.post_recvs(round..round + 1).unwrap();
    }
    answering.join().unwrap();
}

/// An end that hears nothing from its peer learns only by looking how much of its stream has been taken.
#[test]
fn a_long_stream_in_one_direction_arrives_in_order() {
    // The smallest ring is overwritten first.
    const RECEIVES: usize = 56;
    const IN_FLIGHT: u32 = 40;
    let (mut a, mut b) = pair_with(RECEIVES);
    let remote = b.region.remote().slice(0, 0).unwrap();
    for number in 0..(1 << 17) + 2 * IN_FLIGHT {
        a.qp.post_send_one(WorkRequest::write(&[], remote).imm(number).signaled(0)).unwrap();
        a.completions(1);
        if let Some(oldest) = number.checked_sub(IN_FLIGHT) {
            let mut got = [WorkCompletion::default()];
            assert_eq!(b.cq.poll(&mut got).unwrap(), 1, "message {oldest} is lost");
            assert_eq!(got[0].imm, Some(oldest));
            b.qp.post_recvs(0..1).unwrap();
        }
    }
}

#[test]
fn a_queue_pair_shows_its_kind_and_its_peer() {
    let (a, _b) = pair();
    let shown = format!("{:?}", a.qp);
    assert!(shown.contains("pair") && shown.contains("Rc"), "{shown}");
}
