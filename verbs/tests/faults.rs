//! Injectors around the shared-memory device: each fault does what it says, and ownership stays as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farcall_verbs::faults::{
    DropEvery, DropWhen, FaultInjector, Incoming, Outgoing, Reception, Recorder, Verdict,
};
use farcall_verbs::{
    Access, AddressHandle, Buffer, BufferPool, CompletionOpcode, CompletionQueue, ConnectOptions,
    CqError, Device, GRH_BYTES, Operation, PostError, ProtectionDomain, QpState, QpType, QueuePair,
    QueuePairConfig, RemoteRegion, SharedRegion, Status, WorkCompletion, WorkRequest,
};

const QKEY: u32 = 0x11;
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue pair with its completion queue and memory.
struct End {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    pool: BufferPool,
}

impl End {
    fn new(device: &Device, ty: QpType) -> End {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(256, None).unwrap();
        let config = QueuePairConfig::new(ty, &cq, &cq).max_send_wr(32).max_recv_wr(32);
        let qp = pd.create_qp(config).unwrap();
        let pool = pd.alloc_private(64 << 10).unwrap().into_pool(256);
        End { device: device.clone(), pd, cq, qp, pool }
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().unwrap();
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn post_receives(&mut self, ids: std::ops::Range<u64>) {
        for id in ids {
            self.qp.post_recv(id, self.pool.take()).unwrap();
        }
    }

    /// What completes next.
    fn completion(&mut self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        let count = self.cq.poll(&mut out).unwrap();
        let [completion] = out;
        (count == 1).then_some(completion)
    }

    fn sent(&mut self) -> (u64, Status, CompletionOpcode) {
        let completion = self.completion();
        (completion.id, completion.status, completion.opcode)
    }

    fn reclaimed(&mut self) -> Vec<u8> {
        let mut first_bytes = Vec::new();
        self.qp.reclaim(&mut |buffer| first_bytes.push(buffer[0]));
        first_bytes
    }
}

/// A sender of datagrams through an injector, and a receiver without one.
struct Datagrams {
    sender: End,
    receiver: End,
    to: AddressHandle,
}

impl Datagrams {
    fn new(injector: impl FaultInjector + 'static) -> Datagrams {
        let device = Device::open("shm").unwrap();
        Datagrams::between(&device.with_faults(Arc::new(injector)), &device)
    }

    fn between(sender: &Device, receiver: &Device) -> Datagrams {
        let mut sender = End::new(sender, QpType::Ud);
        let mut receiver = End::new(receiver, QpType::Ud);
        sender.qp.activate(QKEY).unwrap();
        receiver.qp.activate(QKEY).unwrap();
        receiver.post_receives(0..32);
        let to = sender.pd.create_address_handle(&receiver.qp.endpoint()).unwrap();
        Datagrams { sender, receiver, to }
    }

    /// Sends one byte in a buffer, and waits for its completion.
    fn send(&mut self, byte: u8) {
        let buffer = self.sender.buffer(&[byte]);
        let request = WorkRequest::send(buffer).to(&self.to, self.receiver.qp.number(), QKEY);
        self.sender.qp.post_send_one(request.signaled(byte.into())).unwrap();
        let sent = self.sender.sent();
        assert_eq!(sent, (byte.into(), Status::Success, CompletionOpcode::Send));
    }

    /// Receives datagrams with these bytes, and no more.
    fn arrive(&mut self, bytes: &[u8]) {
        let mut found = Vec::new();
        for _ in bytes {
            let arrived = self.receiver.completion();
            assert_eq!(arrived.status, Status::Success);
            found.push(arrived.buffer.unwrap()[GRH_BYTES]);
        }
        assert_eq!(found, bytes);
        assert!(self.receiver.poll().is_none(), "more has arrived than {bytes:?}");
    }
}

/// What becomes of a datagram, by its first byte.
fn by_byte(verdict: impl Fn(u8) -> Verdict) -> impl Fn(&Outgoing<'_>) -> Verdict {
    move |request| verdict(request.payload[0])
}

/// Two connected queue pairs, the first through an injector.
fn connected(ty: QpType, injector: impl FaultInjector + 'static) -> (End, End) {
    let device = Device::open("shm").unwrap();
    let mut a = End::new(&device.with_faults(Arc::new(injector)), ty);
    let mut b = End::new(&device, ty);
    let options = ConnectOptions::default();
    let (of_a, of_b) = (a.qp.endpoint(), b.qp.endpoint());
    a.qp.connect(&of_b, &options).unwrap();
    b.qp.connect(&of_a, &options).unwrap();
    (a, b)
}

fn exposed(end: &End) -> (SharedRegion, RemoteRegion) {
    let region = end.pd.alloc_shared(64, Access::all()).unwrap();
    let remote = region.remote();
    (region, remote)
}

#[test]
fn a_dropped_datagram_completes_and_never_arrives() {
    let mut datagrams = Datagrams::new(DropWhen::new(|request| request.payload == [2]));
    for byte in 1..=3 {
        datagrams.send(byte);
    }
    assert_eq!(datagrams.sender.reclaimed(), [1, 2, 3], "buffers, in order");
    datagrams.arrive(&[1, 3]);
}

#[test]
fn every_third_is_dropped() {
    let mut datagrams = Datagrams::new(DropEvery::new(3));
    for byte in 1..=7 {
        datagrams.send(byte);
    }
    datagrams.arrive(&[1, 2, 4, 5, 7]);
}

#[test]
fn a_duplicated_datagram_arrives_twice() {
    let mut datagrams = Datagrams::new(by_byte(|byte| match byte {
        2 => Verdict::Duplicate,
        _ => Verdict::Pass,
    }));
    for byte in 1..=3 {
        datagrams.send(byte);
    }
    datagrams.arrive(&[1, 2, 2, 3]);
    assert_eq!(datagrams.sender.reclaimed(), [1, 2, 3], "the copy is not the sender's");
    assert!(datagrams.sender.poll().is_none(), "a copy completes silently");
}

#[test]
fn a_delayed_datagram_is_overtaken() {
    let mut datagrams = Datagrams::new(by_byte(|byte| match byte {
        1 => Verdict::Delay(2),
        4 => Verdict::Delay(1),
        _ => Verdict::Pass,
    }));
    for byte in 1..=5 {
        datagrams.send(byte);
    }
    datagrams.arrive(&[2, 3, 1, 5, 4]);
    assert_eq!(datagrams.sender.reclaimed(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_held_datagram_waits_for_its_release() {
    let mut datagrams = Datagrams::new(by_byte(|byte| match byte {
        1 | 3 => Verdict::Hold,
        _ => Verdict::Pass,
    }));
    for byte in 1..=4 {
        datagrams.send(byte);
    }
    datagrams.arrive(&[2, 4]);
    datagrams.sender.qp.release_delayed();
    datagrams.arrive(&[1, 3]);
    datagrams.sender.qp.release_delayed();
    datagrams.arrive(&[]);
}

#[test]
fn copies_come_free_again() {
    let mut datagrams = Datagrams::new(|_: &Outgoing<'_>| Verdict::Duplicate);
    for round in 0..100 {
        datagrams.send(round);
        datagrams.arrive(&[round, round]);
        datagrams.receiver.post_receives(0..2);
    }
    assert_eq!(datagrams.sender.reclaimed().len(), 100);
}

#[test]
fn datagrams_from_inline_and_shared_memory_have_faults_too() {
    let verdicts = by_byte(|byte| match byte {
        1 => Verdict::Duplicate,
        2 => Verdict::Delay(1),
        _ => Verdict::Drop,
    });
    let mut datagrams = Datagrams::new(verdicts);
    let number = datagrams.receiver.qp.number();
    let region = datagrams.sender.pd.alloc_shared(8, Access::empty()).unwrap();
    region.copy_in(0, &[2, 3]);
    for request in [
        WorkRequest::send(region.slice(0, 1)),
        WorkRequest::send(&[1]),
        WorkRequest::send(region.slice(1, 1)),
    ] {
        let request = request.imm(9).to(&datagrams.to, number, QKEY).unsignaled();
        datagrams.sender.qp.post_send_one(request).unwrap();
    }
    for byte in [1, 1, 2] {
        let arrived = datagrams.receiver.completion();
        assert_eq!((arrived.buffer.unwrap()[GRH_BYTES], arrived.imm), (byte, Some(9)));
    }
    assert!(datagrams.receiver.poll().is_none());
}

#[test]
fn a_refused_datagram_comes_back_as_it_was() {
    let mut datagrams = Datagrams::new(|_: &Outgoing<'_>| Verdict::Drop);
    let number = datagrams.receiver.qp.number();
    let mut refused = None;
    for byte in 0..=255 {
        let buffer = datagrams.sender.buffer(&[byte]);
        let request = WorkRequest::send(buffer).to(&datagrams.to, number, QKEY).unsignaled();
        if let Err((error, request)) = datagrams.sender.qp.post_send_one(request) {
            assert!(matches!(error, PostError::QueueFull), "{error}");
            refused = Some(format!("{request:?}"));
            break;
        }
    }
    let key = format!("qkey: {QKEY}");
    assert!(refused.as_ref().is_some_and(|request| request.contains(&key)), "{refused:?}");
}

#[test]
fn a_dropped_message_of_an_unreliable_connection_never_arrives() {
    let named = |request: &Outgoing<'_>| request.imm == Some(2) || request.payload == [22];
    let (mut a, mut b) = connected(QpType::Uc, DropWhen::new(named));
    let (memory, there) = exposed(&b);
    b.post_receives(0..8);
    let slice = |offset| there.slice(offset, 1).unwrap();
    let bytes: Vec<Buffer> = (1..=2).map(|byte| a.buffer(&[byte])).collect();
    let mut requests: Vec<_> = bytes
        .into_iter()
        .zip(1..)
        .map(|(buffer, imm)| WorkRequest::send(buffer).imm(imm).signaled(imm.into()))
        .collect();
    requests.push(WorkRequest::write(&[21], slice(0)).signaled(3));
    requests.push(WorkRequest::write(&[22], slice(1)).signaled(4));
    requests.push(WorkRequest::write(&[23], slice(2)).imm(2).signaled(5));
    requests.push(WorkRequest::send(&[9]).imm(6).signaled(6));
    a.qp.post_send(&mut requests).unwrap();
    let opcodes = [0, 0, 1, 1, 1, 0].map(|write| match write {
        0 => CompletionOpcode::Send,
        _ => CompletionOpcode::Write,
    });
    for (id, opcode) in (1..).zip(opcodes) {
        assert_eq!(a.sent(), (id, Status::Success, opcode));
    }
    assert_eq!(a.reclaimed(), [1, 2]);
    let arrived: Vec<_> = [b.completion(), b.completion()].map(|one| one.imm).into();
    assert_eq!(arrived, [Some(1), Some(6)]);
    assert!(b.poll().is_none(), "no receive is used by what is lost");
    let mut words = [0; 3];
    memory.copy_out(0, &mut words);
    assert_eq!(words, [21, 0, 0]);
}

#[test]
fn a_message_dropped_from_a_reliable_connection_loses_the_connection() {
    let (mut a, mut b) = connected(QpType::Rc, DropWhen::new(|request| request.payload == [2]));
    b.post_receives(0..4);
    a.post_receives(70..71);
    let mut requests: Vec<_> =
        (1..=3).map(|byte| WorkRequest::send(a.buffer(&[byte])).signaled(byte.into())).collect();
    a.qp.post_send(&mut requests).unwrap();
    let mut ended: Vec<_> = (0..4).map(|_| a.sent()).map(|(id, status, _)| (id, status)).collect();
    ended.sort_by_key(|(id, _)| *id);
    assert_eq!(
        ended,
        [
            (1, Status::Success),
            (2, Status::RetryExceeded),
            (3, Status::Flushed),
            (70, Status::Flushed)
        ]
    );
    assert_eq!(a.reclaimed(), [1, 2, 3]);
    assert_eq!(a.qp.state(), QpState::Error);
    assert_eq!(b.completion().status, Status::Success, "what was sent before");
    assert_eq!(b.completion().status, Status::Flushed, "the other end notices");
}

#[test]
fn a_broken_connection_flushes_all() {
    let (mut a, _b) = connected(QpType::Rc, |request: &Outgoing<'_>| match request.operation {
        Operation::Read => Verdict::Break,
        _ => Verdict::Pass,
    });
    let (_memory, there) = exposed(&_b);
    let into = a.buffer(&[0; 8]);
    a.qp.post_send_one(WorkRequest::read(into, there.slice(0, 8).unwrap()).signaled(1)).unwrap();
    a.qp.post_send_one(WorkRequest::send(&[1]).signaled(2)).unwrap();
    for id in [1, 2] {
        let (ended, status, _) = a.sent();
        assert_eq!((ended, status), (id, Status::Flushed));
    }
    assert_eq!(a.reclaimed().len(), 1);
    assert_eq!(a.qp.state(), QpState::Error);
}

/// Drops datagrams that arrive and begin with an even byte.
struct DropEven;

impl FaultInjector for DropEven {
    fn incoming(&self, datagram: &Incoming<'_>) -> Reception {
        assert_eq!((datagram.len, datagram.payload.len()), (1, 1));
        match datagram.payload[0].is_multiple_of(2) {
            true => Reception::Drop,
            false => Reception::Deliver,
        }
    }
}

/// A receiver that drops half of what arrives, and the count of what did.
fn dropping_even() -> (Datagrams, Arc<Recorder>) {
    let device = Device::open("shm").unwrap();
    let recorder = Arc::new(Recorder::default());
    let faulty = device.with_faults(Arc::new(DropEven)).with_faults(recorder.clone());
    (Datagrams::between(&device, &faulty), recorder)
}

impl Datagrams {
    /// Sends one that is dropped on arrival, and waits until it was.
    fn send_in_vain(&mut self, byte: u8, recorder: &Recorder) {
        let before = recorder.received();
        self.send(byte);
        let deadline = Instant::now() + PATIENCE;
        while recorder.received() == before {
            assert!(self.receiver.poll().is_none(), "it was not dropped");
            assert!(Instant::now() < deadline, "it did not arrive");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_datagram_dropped_on_arrival_uses_no_receive() {
    let (mut datagrams, recorder) = dropping_even();
    // More are lost than there are receives.
    for _ in 0..100 {
        datagrams.send_in_vain(2, &recorder);
    }
    let odd: Vec<u8> = (0..32).map(|number| 2 * number + 1).collect();
    for byte in &odd {
        datagrams.send(*byte);
    }
    datagrams.arrive(&odd);
    assert_eq!((recorder.received(), recorder.received_bytes()), (132, 132));
}

#[test]
fn a_sleeper_is_not_disarmed_by_what_it_does_not_see() {
    let (mut datagrams, recorder) = dropping_even();
    let receiver = &mut datagrams.receiver;
    let channel = receiver.device.create_completion_channel().unwrap();
    receiver.cq = receiver.device.create_cq(256, Some(&channel)).unwrap();
    let config = QueuePairConfig::new(QpType::Ud, &receiver.cq, &receiver.cq);
    receiver.qp = receiver.pd.create_qp(config).unwrap();
    receiver.qp.activate(QKEY).unwrap();
    receiver.post_receives(0..4);
    datagrams.send_in_vain(2, &recorder);
    datagrams.receiver.cq.arm();
    datagrams.send_in_vain(4, &recorder);
    while channel.wait(Duration::ZERO).unwrap() {}
    datagrams.send(5);
    assert!(channel.wait(PATIENCE).unwrap(), "not woken");
    datagrams.arrive(&[5]);
}

#[test]
fn the_recorder_sees_every_operation() {
    let device = Device::open("shm").unwrap();
    let (before, after) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let faulty = device
        .with_faults(after.clone())
        .with_faults(Arc::new(DropWhen::new(|request| request.operation == Operation::SendWithImm)))
        .with_faults(before.clone());
    let (mut a, mut b) = (End::new(&faulty, QpType::Rc), End::new(&device, QpType::Rc));
    let (of_a, of_b) = (a.qp.endpoint(), b.qp.endpoint());
    a.qp.connect(&of_b, &ConnectOptions::default()).unwrap();
    b.qp.connect(&of_a, &ConnectOptions::default()).unwrap();
    b.post_receives(0..8);
    let (_memory, there) = exposed(&b);
    let word = || there.slice(0, 8).unwrap();
    let room = || a.buffer(&[0; 8]);
    let mut requests: Vec<WorkRequest<'_>> = vec![
        WorkRequest::send(&[1; 5]).into(),
        WorkRequest::write(&[1; 8], word()).into(),
        WorkRequest::read(room(), word()),
        WorkRequest::compare_and_swap(room(), word(), 0, 1),
        WorkRequest::fetch_add(room(), word(), 1),
        WorkRequest::write(&[1; 8], word()).imm(1).into(),
    ];
    a.qp.post_send(&mut requests).unwrap();
    a.qp.post_write_imm(&[1; 8], word(), 2, None).unwrap();
    a.qp.ring();
    a.qp.post_send_one(WorkRequest::send(&[]).imm(3)).unwrap();
    for (operation, count, bytes) in [
        (Operation::Send, 1, 5),
        (Operation::Write, 1, 8),
        (Operation::Read, 1, 8),
        (Operation::CompareAndSwap, 1, 8),
        (Operation::FetchAdd, 1, 8),
        (Operation::WriteWithImm, 2, 16),
        (Operation::SendWithImm, 1, 0),
    ] {
        let seen = (before.posted(operation), before.posted_bytes(operation));
        assert_eq!(seen, (count, bytes), "{operation:?}");
        let passed = if operation == Operation::SendWithImm { 0 } else { count };
        assert_eq!(after.posted(operation), passed, "{operation:?}, passed");
    }
    assert!(a.device.is_same(&device), "a layer around a device is the same device");
}

/// Loses the device when it is told to.
#[derive(Default)]
struct LoseWhenTold(AtomicBool);

impl FaultInjector for LoseWhenTold {
    fn is_lost(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_lost_device_completes_nothing_any_more() {
    let injector = Arc::new(LoseWhenTold::default());
    let plain = Device::open("shm").unwrap();
    let device = plain.with_faults(injector.clone());
    let (mut polled, mut other) =
        (device.create_cq(16, None).unwrap(), device.create_cq(16, None).unwrap());
    let mut out = [WorkCompletion::default()];
    assert_eq!(polled.poll(&mut out), Ok(0));
    injector.0.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(polled.poll(&mut out), Err(CqError::DeviceLost));
    }
    injector.0.store(false, Ordering::SeqCst);
    assert_eq!(polled.poll(&mut out), Err(CqError::DeviceLost), "it is another device then");
    assert_eq!(other.poll(&mut out), Ok(0), "nobody has asked meanwhile");
}
