//! Compares WRITE_WITH_IMM with the machine's limit: round trips of 32 bytes between two pinned threads, and
//! of a bare cache line between the same threads, in alternating slices of one run.
//!
//! `cargo run --release -p farcall-verbs --example pingpong [SLICES] [WINDOW]`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;
use std::{hint, thread};

use farcall_verbs::{
    Access, CompletionOpcode, CompletionQueue, ConnectOptions, Device, QpType, QueuePair,
    QueuePairConfig, RemoteRegion, SharedRegion, WorkCompletion, WorkRequest,
};

const ROUNDS: u64 = 20_000;
const SIZE: u64 = 32;
const SLOT: u64 = 64;
const SLOTS: u64 = 32;
const SIGNAL_EVERY: u64 = 64;

struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    region: SharedRegion,
    remote: RemoteRegion,
    out: [WorkCompletion; 16],
    posted: u64,
    received: u64,
}

impl End {
    fn new() -> End {
        let device = Device::open("shm").expect("device shm");
        let pd = device.alloc_pd().expect("protection domain");
        let cq = device.create_cq(1024, None).expect("completion queue");
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
        let mut qp = pd.create_qp(config.max_send_wr(256).max_recv_wr(128)).expect("queue pair");
        qp.post_recvs(0..128).expect("receives");
        let length = (SLOT * SLOTS) as usize;
        let region = pd.alloc_shared(length, Access::REMOTE_WRITE).expect("region");
        let remote = region.remote();
        End {
            cq,
            qp,
            region,
            remote,
            out: std::array::from_fn(|_| WorkCompletion::default()),
            posted: 0,
            received: 0,
        }
    }

    /// Sends the same message `count` times with one doorbell.
    #[inline]
    fn send(&mut self, bytes: &[u8], count: u64) {
        let mut doorbell = self.qp.doorbell();
        for _ in 0..count {
            let slot = self.remote.slice(self.posted % SLOTS * SLOT, bytes.len() as u64);
            let request =
                WorkRequest::write(bytes, slot.expect("own slot")).imm(self.posted as u32);
            let request = match self.posted % SIGNAL_EVERY {
                0 => request.signaled(self.posted),
                _ => request.unsignaled(),
            };
            self.posted += 1;
            if let Err((error, _)) = doorbell.post(request) {
                panic!("post: {error}");
            }
        }
    }

    /// Polls once. Returns how many messages arrived, and copies the last one's bytes.
    #[inline]
    fn poll(&mut self, copy: &mut [u8]) -> u64 {
        let count = self.cq.poll(&mut self.out).expect("poll");
        let mut messages = 0;
        for completion in &self.out[..count] {
            if completion.opcode == CompletionOpcode::RecvWriteWithImm {
                copy.copy_from_slice(completion.payload().expect("carried"));
                messages += 1;
            }
        }
        self.received += messages;
        if self.received >= 64 {
            self.qp.post_recvs(0..self.received).expect("receives");
            self.received = 0;
        }
        messages
    }
}

/// Median and 99th percentile.
fn percentiles(samples: &mut [u64]) -> (u64, u64) {
    samples.sort_unstable();
    (samples[samples.len() / 2], samples[samples.len() * 99 / 100])
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).expect("two cores");
}

fn main() {
    let argument = |n: usize, or: u64| {
        std::env::args().nth(n).map_or(or, |text| text.parse().expect("a number"))
    };
    let (slices, window) = (argument(1, 50), argument(2, 32));
    let (mut near, mut far) = (End::new(), End::new());
    near.qp.connect(&far.qp.endpoint(), &ConnectOptions::default()).expect("connect");
    far.qp.connect(&near.qp.endpoint(), &ConnectOptions::default()).expect("connect");
    std::mem::swap(&mut near.remote, &mut far.remote);
    let line = Arc::new(crossbeam_utils::CachePadded::new(AtomicU64::new(0)));
    let barrier = Arc::new(Barrier::new(2));
    let stop = Arc::new(AtomicBool::new(false));

    let answering = {
        let (line, barrier, stop) = (line.clone(), barrier.clone(), stop.clone());
        thread::spawn(move || {
            pin(1);
            loop {
                barrier.wait();
                if stop.load(Ordering::Acquire) {
                    return;
                }
                for round in 0..ROUNDS {
                    while line.load(Ordering::Acquire) != 2 * round + 1 {
                        hint::spin_loop();
                    }
                    line.store(2 * round + 2, Ordering::Release);
                }
                let mut copy = [0; SIZE as usize];
                for _ in 0..2 {
                    barrier.wait();
                    let mut answered = 0;
                    while answered < ROUNDS {
                        match far.poll(&mut copy) {
                            0 => hint::spin_loop(),
                            count => {
                                far.send(&copy, count);
                                answered += count;
                            }
                        }
                    }
                }
            }
        })
    };
    pin(0);
    let clock = quanta::Clock::new();
    let (mut limits, mut trips, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..slices {
        line.store(0, Ordering::Release);
        barrier.wait();
        for round in 0..ROUNDS {
            let start = clock.raw();
            line.store(2 * round + 1, Ordering::Release);
            while line.load(Ordering::Acquire) != 2 * round + 2 {
                hint::spin_loop();
            }
            limits.push(clock.delta_as_nanos(start, clock.raw()));
        }
        barrier.wait();
        let (bytes, mut copy) = ([7; SIZE as usize], [0; SIZE as usize]);
        for _ in 0..ROUNDS {
            let start = clock.raw();
            near.send(&bytes, 1);
            while near.poll(&mut copy) == 0 {
                hint::spin_loop();
            }
            trips.push(clock.delta_as_nanos(start, clock.raw()));
        }
        barrier.wait();
        let start = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < ROUNDS {
            let count = (window - (sent - answered)).min(ROUNDS - sent);
            if count > 0 {
                near.send(&bytes, count);
                sent += count;
            }
            match near.poll(&mut copy) {
                0 => hint::spin_loop(),
                count => answered += count,
            }
        }
        rates.push((ROUNDS as f64 / start.elapsed().as_secs_f64()) as u64);
    }
    stop.store(true, Ordering::Release);
    barrier.wait();
    answering.join().expect("the other thread");
    let (limit, limit_99) = percentiles(&mut limits);
    let (trip, trip_99) = percentiles(&mut trips);
    let (rate, _) = percentiles(&mut rates);
    println!("bounced line:     p50 {limit} ns, p99 {limit_99} ns");
    println!("WRITE_WITH_IMM:   p50 {trip} ns, p99 {trip_99} ns ({SIZE} bytes each way)");
    println!("ratio:            {:.2}", trip as f64 / limit as f64);
    println!("window {window}:        {:.2} M round trips/s", rate as f64 / 1e6);
    assert!(near.region.len() as u64 >= SLOT);
}
