//! What the software of both ends costs per call: client and server in one thread, in CPU time, so
//! that neither the other core nor other programs take part.
//!
//! ```text
//! cargo run --release -p farcall-transports --example cost -- [SIZE [WINDOW [CALLS]]]
//! ```

mod support;

use std::time::Duration;

use farcall_core::error::TransportFailure;
use farcall_core::time::Instant;
use farcall_core::transport::{Message, ReplySink, SlotId};
use farcall_transports::{Accepted, BackendKind, Limits};
use farcall_verbs::Device;
use rustix::time::{ClockId, clock_gettime};
use support::Echo;

#[derive(Default)]
struct Count(u64);

impl ReplySink for Count {
    #[inline]
    fn reply(&mut self, _: SlotId, _: Message<'_>) {
        self.0 += 1;
    }
    fn failed(&mut self, _: SlotId, why: TransportFailure) {
        eprintln!("failed: {why}");
    }
    fn closed(&mut self, why: TransportFailure) {
        eprintln!("closed: {why}");
    }
}

fn cpu_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let size = arguments.next().transpose()?.unwrap_or(40) as usize;
    let window = arguments.next().transpose()?.unwrap_or(1);
    let calls = arguments.next().transpose()?.unwrap_or(2_000_000);
    let device = Device::open("shm")?;
    let limits = Limits::default();
    let mut half = BackendKind::WriteImm.serve(&device, &limits, 1)?;
    let pending = BackendKind::WriteImm.prepare(&device, &limits)?;
    let bound = Duration::from_secs(5);
    let terms = limits.terms();
    let Accepted { setup, .. } = half.intake.accept(&terms, &pending.setup(), bound)?;
    let mut client = pending.finish(&terms, &setup, bound)?;
    let payload = vec![7; size];
    let now = Instant::ZERO;
    for _ in 0..5 {
        let mut count = Count::default();
        let begun = cpu_nanos();
        let mut sent = 0;
        while count.0 < calls {
            while sent < calls && sent - count.0 < window {
                let Ok((slot, room)) = client.reserve(size) else { break };
                room.copy_from_slice(&payload);
                client.post(slot, now);
                sent += 1;
            }
            client.flush(now);
            half.transport.poll(now, &mut Echo);
            half.transport.flush(now);
            client.poll(now, &mut count);
        }
        let time = (cpu_nanos() - begun) / calls as f64;
        println!("{size} bytes, window {window}: {time:.1} ns of CPU per call, both ends");
    }
    Ok(())
}
