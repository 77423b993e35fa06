//! The bare transport's echo between two pinned threads, beside what limits it: a bounced cache
//! line, and `memcpy`.
//!
//! ```text
//! cargo run --release -p farcall-transports --example echo -- [SIZE [WINDOW [CALLS]]]
//! ```

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant as Clock;

use crossbeam_utils::CachePadded;
use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{
    BindOptions, Binding, ClientTransport, Dial, DialOptions, Message, ReplySink, ServerTransport,
    SlotId,
};
use farcall_transports::Address;
use support::Echo;

static ECHO: ServiceDescription = ServiceDescription { name: "Echo", fingerprint: 1, methods: &[] };

/// How often a spinning thread reads the clock.
const TURNS_PER_CLOCK: u32 = 1024;

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned to core {core}: {error}");
    }
}

#[derive(Default)]
struct Count {
    replies: u64,
    bytes: u64,
    over: bool,
}

impl ReplySink for Count {
    #[inline]
    fn reply(&mut self, _: SlotId, message: Message<'_>) {
        self.replies += 1;
        self.bytes += message.len() as u64;
    }
    fn failed(&mut self, _: SlotId, why: TransportFailure) {
        eprintln!("failed: {why}");
    }
    fn closed(&mut self, why: TransportFailure) {
        eprintln!("closed: {why}");
        self.over = true;
    }
}

fn serve(mut transport: Box<dyn ServerTransport>, stop: &AtomicBool) {
    pin(1);
    let mut now = transport.now();
    let mut turns = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let progress = transport.poll(now, &mut Echo);
        if progress.worked > 0 {
            transport.flush(now);
        } else {
            std::hint::spin_loop();
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_CLOCK) {
            now = transport.now();
        }
    }
}

fn run(client: &mut dyn ClientTransport, payload: &[u8], window: u64, calls: u64) -> f64 {
    let mut count = Count::default();
    let (mut sent, mut turns) = (0, 0u32);
    let mut now = client.now();
    let begun = Clock::now();
    while count.replies < calls && !count.over {
        let before = sent;
        while sent < calls && sent - count.replies < window {
            match client.reserve(payload.len()) {
                Ok((slot, room)) => {
                    room.copy_from_slice(payload);
                    client.post(slot, now);
                    sent += 1;
                }
                Err(ReserveError::Backpressure(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if sent > before {
            client.flush(now);
        }
        if client.poll(now, &mut count).worked == 0 {
            std::hint::spin_loop();
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_PER_CLOCK) {
            now = client.now();
        }
    }
    assert_eq!(count.bytes, calls * payload.len() as u64);
    begun.elapsed().as_nanos() as f64 / calls as f64
}

/// Round trip of one cache line, in nanoseconds.
fn bounce() -> f64 {
    const ROUNDS: u64 = 1_000_000;
    let line = Arc::new(CachePadded::new(AtomicU64::new(0)));
    let other = Arc::clone(&line);
    let thread = std::thread::spawn(move || {
        pin(1);
        for round in 0..ROUNDS {
            while other.load(Ordering::Acquire) != 2 * round + 1 {
                std::hint::spin_loop();
            }
            other.store(2 * round + 2, Ordering::Release);
        }
    });
    let begun = Clock::now();
    for round in 0..ROUNDS {
        line.store(2 * round + 1, Ordering::Release);
        while line.load(Ordering::Acquire) != 2 * round + 2 {
            std::hint::spin_loop();
        }
    }
    let time = begun.elapsed().as_nanos() as f64 / ROUNDS as f64;
    if thread.join().is_err() {
        eprintln!("the other thread of the bounce ended early");
    }
    time
}

/// Nanoseconds to copy so many bytes.
fn copy(bytes: usize) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![0u8; bytes];
    let rounds = ((4usize << 30) / bytes).clamp(1, 1_000_000);
    let begun = Clock::now();
    for _ in 0..rounds {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
    }
    begun.elapsed().as_nanos() as f64 / rounds as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let size = arguments.next().transpose()?.unwrap_or(40) as usize;
    let window = arguments.next().transpose()?.unwrap_or(1);
    let calls = arguments.next().transpose()?.unwrap_or(2_000_000);
    let address: Address = format!("shm://echo-{}", std::process::id()).parse()?;
    let mut bound = address.bind(1, &[&ECHO], &BindOptions::default())?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let Some(transport) = bound.transports.pop() else { return Ok(()) };
    let server = std::thread::spawn(move || serve(transport, &told));
    let mut client = address.dial(&ECHO, &DialOptions::default())?;
    pin(0);
    let payload = vec![7; size];
    run(&mut *client, &payload, window, calls / 10 + 1);
    for _ in 0..3 {
        let time = run(&mut *client, &payload, window, calls);
        let (limit, memcpy) = (bounce(), copy(size.max(1)));
        println!(
            "{size} bytes, window {window}: {time:.0} ns per call, {:.2} M/s, {:.2} x bounce ({limit:.0} ns); \
             {:.2} GB/s, {:.2} x memcpy ({:.1} GB/s)",
            1e3 / time,
            time / limit,
            2.0 * size as f64 / time,
            2.0 * memcpy / time,
            size as f64 / memcpy
        );
    }
    drop(client);
    stop.store(true, Ordering::Relaxed);
    if server.join().is_err() {
        eprintln!("the server thread panicked");
    }
    Ok(())
}
