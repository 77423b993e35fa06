//! Buffers that programs own, over every backend: what is sent from them, what is received, and who keeps it.

#[path = "support/addresses.rs"]
mod addresses;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcall::buffers::{BufferError, Buffers, LargeMessageCounts};
use farcall::{Bytes, RunningServer, Server};

#[farcall::service]
trait Echo {
    /// Gives the bytes back where they arrived.
    fn same(&self, bytes: Bytes) -> Bytes;
    /// Gives a copy of them, in a buffer of the server's.
    fn copy(&self, bytes: Bytes) -> Bytes;
    /// Keeps the bytes, and gives their number.
    fn keep(&self, bytes: Bytes) -> u64;
}

#[derive(Clone)]
struct Service {
    buffers: Buffers,
    kept: Arc<Mutex<Vec<Bytes>>>,
}

impl Echo for Service {
    fn same(&self, bytes: Bytes) -> Bytes {
        bytes
    }

    fn copy(&self, bytes: Bytes) -> Bytes {
        self.buffers.copy_of(&bytes).unwrap().freeze()
    }

    fn keep(&self, bytes: Bytes) -> u64 {
        let len = bytes.len() as u64;
        self.kept.lock().unwrap().push(bytes);
        len
    }
}

fn serve(address: &str) -> (RunningServer, Service) {
    let service = Service { buffers: Buffers::new().unwrap(), kept: Arc::default() };
    let server = Server::builder().service(EchoServer::new(service.clone())).listen(address);
    (server.unwrap(), service)
}

/// Bytes that differ from their neighbours.
fn fill(bytes: &mut [u8], seed: usize) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = ((at + seed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn filled(buffers: &Buffers, len: usize, seed: usize) -> Bytes {
    let mut buffer = buffers.buffer(len).unwrap();
    fill(&mut buffer, seed);
    buffer.freeze()
}

/// Waits until the pool has all of its buffers back.
fn wait_until_free(buffers: &Buffers) {
    let until = Instant::now() + Duration::from_secs(20);
    while buffers.snapshot().used > 0 {
        assert!(Instant::now() < until, "{:?}", buffers.snapshot());
        std::thread::yield_now();
    }
}

#[test]
fn what_is_in_buffers_arrives_over_every_backend() {
    for address in addresses::each_kind_of_address("buffers-arrive") {
        let (server, service) = serve(&address);
        let client = EchoClient::connect(server.address()).wait().unwrap();
        let mut polling = EchoPollClient::connect(server.address()).wait().unwrap();
        let buffers = Buffers::new().unwrap();
        for (seed, len) in [1, 100, 5000, 65_528, 300_000, 5 << 20].into_iter().enumerate() {
            let sent = filled(&buffers, len, seed);
            assert!(client.same(sent.clone()).wait().unwrap() == sent, "{address}: {len}");
            assert!(client.copy(sent.clone()).wait().unwrap() == sent, "{address}: {len}");
            assert!(polling.copy(sent.clone()).unwrap() == sent, "{address}: {len}");
            // A part of it, and memory that is no buffer's.
            let part = sent.slice(len / 3..);
            assert!(client.copy(part.clone()).wait().unwrap() == part, "{address}: {len}");
            let heap = Bytes::from(sent.to_vec());
            assert!(client.copy(heap.clone()).wait().unwrap() == heap, "{address}: {len}");
        }
        drop((client, polling));
        wait_until_free(&buffers);
        wait_until_free(&service.buffers);
    }
}

#[test]
fn many_calls_send_the_same_buffer_at_once() {
    let (server, _service) = serve(&format!("shm://buffers-many-{}", std::process::id()));
    let buffers = Buffers::new().unwrap();
    let sent = filled(&buffers, 1 << 20, 7);
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let client = EchoClient::connect(address).wait().unwrap();
                for _ in 0..20 {
                    assert!(client.copy(sent.clone()).wait().unwrap() == sent);
                }
            });
        }
    });
    drop(sent);
    wait_until_free(&buffers);
}

#[test]
fn a_buffer_goes_back_when_its_call_was_given_up() {
    for address in addresses::each_kind_of_address("buffers-given-up") {
        let (server, service) = serve(&address);
        let client = EchoClient::connect(server.address()).wait().unwrap();
        let buffers = Buffers::new().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for micros in [0, 20, 100, 500, 2000] {
            let sent = filled(&buffers, 1 << 20, micros as usize);
            let call = client.copy(sent);
            let late = async { tokio::time::timeout(Duration::from_micros(micros), call).await };
            drop(runtime.block_on(late));
            // The connection goes on, and the memory is used again.
            let next = filled(&buffers, 1 << 20, 3);
            assert!(client.copy(next.clone()).wait().unwrap() == next, "{address}: {micros} us");
        }
        wait_until_free(&buffers);
        drop(client);
        wait_until_free(&service.buffers);
    }
}

#[test]
fn a_buffer_goes_back_when_the_server_is_gone() {
    let (server, _) = serve(&format!("shm://buffers-gone-{}", std::process::id()));
    let client = EchoClient::connect(server.address()).wait().unwrap();
    let buffers = Buffers::new().unwrap();
    let first = filled(&buffers, 1 << 20, 1);
    assert!(client.same(first.clone()).wait().unwrap() == first);
    server.shutdown();
    assert!(client.same(first).timeout(Duration::from_millis(300)).wait().is_err());
    drop(client);
    wait_until_free(&buffers);
}

/// The address limits the memory to that of few messages.
#[test]
fn who_keeps_what_has_arrived_stalls_nobody() {
    const LEN: usize = 1 << 20;
    const CALLS: usize = 60;
    for address in addresses::each_kind_of_address("buffers-kept") {
        let separator = if address.contains('?') { '&' } else { '?' };
        let limits = format!("{address}{separator}max_message=1m&memory=19m");
        let (server, service) = serve(&limits);
        let client = EchoClient::connect(server.address()).wait().unwrap();
        let before = LargeMessageCounts::now();
        let mut sent = vec![0; LEN - 100];
        let mut received = Vec::new();
        for call in 0..CALLS {
            fill(&mut sent, call);
            assert_eq!(client.keep(Bytes::from(sent.clone())).wait().unwrap(), sent.len() as u64);
            received.push(client.same(Bytes::from(sent.clone())).wait().unwrap());
        }
        let copied = LargeMessageCounts::now().copied_for_keepers - before.copied_for_keepers;
        assert!(copied >= CALLS as u64, "{address}: {copied}");
        let kept = std::mem::take(&mut *service.kept.lock().unwrap());
        for (call, (kept, received)) in kept.iter().zip(&received).enumerate() {
            fill(&mut sent, call);
            assert!(*kept == sent && *received == sent, "{address}: {call}");
        }
    }
}

#[test]
fn a_pool_that_is_empty_says_so_and_others_go_on() {
    let buffers = Buffers::with_limit(2 << 20).unwrap();
    let held = [(); 2].map(|()| buffers.buffer(1 << 20).unwrap());
    let error = buffers.buffer(1 << 20).unwrap_err();
    assert!(matches!(error, BufferError::Exhausted { .. }), "{error}");
    let [first, second] = held;
    drop(first);
    assert!(buffers.buffer(1 << 20).is_ok());
    drop(second);
}
