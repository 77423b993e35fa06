use farcall_core::error::TransportFailure;
use farcall_core::time::Instant;
use farcall_core::transport::*;
use farcall_transports::*;
use farcall_verbs::Device;
use std::time::Duration;

struct Echo;
impl RequestSink for Echo {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        let bytes: &[u8] = match &message {
            Message::Borrowed(b) => b,
            _ => panic!(),
        };
        let len = bytes.len();
        replies.reserve(&call, len).unwrap().copy_from_slice(bytes);
        replies.post(call, len);
    }
    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn disconnected(&mut self, _: u32, _: u32) {}
}
struct Got(usize);
impl ReplySink for Got {
    fn reply(&mut self, _: SlotId, _: Message<'_>) {
        self.0 += 1;
    }
    fn failed(&mut self, _: SlotId, _: TransportFailure) {
        panic!()
    }
    fn closed(&mut self, why: TransportFailure) {
        panic!("{why:?}")
    }
}
fn main() {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (len, window, calls) = (args[0], args[1], args[2]);
    let device = Device::open(&std::env::var("DEV").unwrap_or("shm".into())).unwrap();
    let limits = "shm://x".parse::<Address>().unwrap().limits();
    let backend = if std::env::var("BK").as_deref() == Ok("write_imm") {
        BackendKind::WriteImm
    } else {
        BackendKind::Datagram
    };
    let ServerHalf { mut transport, intake } = backend.serve(&device, &limits, 16).unwrap();
    let pending = backend.prepare(&device, &limits, None).unwrap();
    let terms = limits.terms();
    let accepted = intake.accept(&terms, &pending.setup(), Duration::from_secs(5)).unwrap();
    let mut client = pending.finish(&terms, &accepted.setup, Duration::from_secs(5)).unwrap();
    let mut done = Got(0);
    let mut server_ns = 0;
    let mut client_ns = 0;
    let start = std::time::Instant::now();
    let mut sent = 0;
    while done.0 < calls {
        let t = std::time::Instant::now();
        let now = client.now();
        client.poll(now, &mut done);
        while sent - done.0 < window {
            let (slot, bytes) = client.reserve(len).unwrap();
            bytes.fill(7);
            client.post(slot, now);
            sent += 1;
        }
        client.flush(now);
        let u = std::time::Instant::now();
        let now = transport.now();
        transport.poll(now, &mut Echo);
        transport.flush(now);
        client_ns += (u - t).as_nanos();
        server_ns += u.elapsed().as_nanos();
    }
    println!(
        "{:.1} ns per call, client {:.1}, server {:.1}",
        start.elapsed().as_nanos() as f64 / calls as f64,
        client_ns as f64 / calls as f64,
        server_ns as f64 / calls as f64
    );
    let _ = Instant::ZERO;
}
