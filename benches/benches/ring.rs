//! The rings of the shared-memory device with both ends in one thread: the CPU work of a message, without the
//! transfer of a cache line between cores.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, QpType, QueuePair, QueuePairConfig,
    SharedRegion, WorkCompletion, WorkRequest,
};

/// Receives posted at once, and used before more are posted.
const RECEIVES: u64 = 64;

struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    region: SharedRegion,
}

impl End {
    fn new(device: &Device) -> Self {
        let cq = device.create_cq(256, None).expect("a small queue");
        let pd = device.alloc_pd().expect("a protection domain");
        let region = pd.alloc_shared(4096, Access::REMOTE_WRITE).expect("a page");
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(128).max_recv_wr(128);
        let qp = pd.create_qp(config).expect("a queue pair");
        Self { qp, cq, region }
    }
}

impl End {
    fn poll_one(&mut self, completions: &mut [WorkCompletion]) {
        while self.cq.poll(completions).expect("no overrun") == 0 {}
    }
}

/// Two connected ends. Messages go from the first to the second, with a batch of receives at a time.
struct Pair {
    sender: End,
    receiver: End,
    receives: u64,
    completions: [WorkCompletion; 4],
}

impl Pair {
    fn new() -> Self {
        let device = Device::open("shm").expect("every machine has it");
        let (mut sender, mut receiver) = (End::new(&device), End::new(&device));
        let options = ConnectOptions::default();
        sender.qp.connect(&receiver.qp.endpoint(), &options).expect("it is in this process");
        receiver.qp.connect(&sender.qp.endpoint(), &options).expect("it is in this process");
        Self { sender, receiver, receives: 0, completions: Default::default() }
    }

    /// Sends one message. The last of each batch is signaled, which makes room in the send queue.
    fn pass(&mut self, message: &[u8]) -> Option<u32> {
        if self.receives == 0 {
            self.receiver.qp.post_recvs(0..RECEIVES).expect("there is room");
            self.receives = RECEIVES;
        }
        self.receives -= 1;
        let target = self.receiver.region.remote().slice(0, message.len() as u64);
        let write = WorkRequest::write(message, target.expect("it is in the page")).imm(1);
        let last = self.receives == 0;
        let request = if last { write.signaled(0) } else { write.unsignaled() };
        self.sender.qp.post_send_one(request).expect("there is room");
        self.receiver.poll_one(&mut self.completions);
        let imm = self.completions[0].imm;
        if last {
            self.sender.poll_one(&mut self.completions);
        }
        imm
    }
}

fn ring(criterion: &mut Criterion) {
    let mut pair = Pair::new();
    let mut group = criterion.benchmark_group("ring");
    for bytes in [8, 32, 48, 64] {
        let message = vec![7; bytes];
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("write with immediate, {bytes} bytes"), |bencher| {
            bencher.iter(|| pair.pass(&message));
        });
    }
    group.bench_function("empty poll", |bencher| {
        bencher.iter(|| pair.receiver.cq.poll(&mut pair.completions));
    });
    group.finish();
}

criterion_group!(benches, ring);
criterion_main!(benches);
