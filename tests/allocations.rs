//! Calls through generated code over shared memory do not allocate on either side in the steady state.

use std::alloc::System;
use std::fs::{DirEntry, read_dir, read_to_string};
use std::time::{Duration, Instant};

use farcall::memory::{Carrier, Memory, MemoryServer, PollMemory, Rights, Until};
use farcall::{Authentication, CallContext, CallError, Key, Server};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: u32 = 500;

#[farcall::service]
trait Steady {
    fn array(&self, data: [u8; 32]) -> [u8; 32];
    fn borrowed(&self, key: &[u8], name: &str, part: Option<&[u8]>) -> usize;
    fn fallible(&self, number: u64) -> Result<(u64, bool), u32>;
    async fn later(&self, number: u64) -> u64;
    fn grown(&self, limits: Limits) -> Level;
    /// Takes longer than a client stays awake.
    fn slow(&self);
}

/// A version of it with a new argument, for a client of an older server.
#[allow(dead_code)]
mod newer {
    #[farcall::service]
    pub(crate) trait Steady {
        fn fallible(
            &self,
            number: u64,
            #[rpc(since = 2, default = 3)] limit: u64,
        ) -> Result<(u64, bool), u32>;
    }
}

#[derive(farcall::Grow)]
struct Limits {
    rows: u64,
    #[rpc(since = 2, default = 9)]
    bytes: u64,
}

#[derive(Debug, PartialEq, farcall::Grow)]
enum Level {
    At(u64),
    #[rpc(unknown)]
    Unknown,
}

struct Plain;

fn is_steady_calling() -> bool {
    let caller = CallContext::current().and_then(|call| call.identity());
    caller.is_some_and(|caller| caller.name() == "steady")
}

impl Steady for Plain {
    fn array(&self, data: [u8; 32]) -> [u8; 32] {
        assert!(is_steady_calling());
        data
    }

    fn borrowed(&self, key: &[u8], name: &str, part: Option<&[u8]>) -> usize {
        key.len() + name.len() + part.map_or(0, <[u8]>::len)
    }

    fn fallible(&self, number: u64) -> Result<(u64, bool), u32> {
        if number.is_multiple_of(2) { Ok((number, true)) } else { Err(7) }
    }

    async fn later(&self, number: u64) -> u64 {
        assert!(is_steady_calling());
        number
    }

    fn grown(&self, limits: Limits) -> Level {
        Level::At(limits.rows + limits.bytes)
    }

    fn slow(&self) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the server's threads that shook hands have ended: what they do last is no part of a call.
fn handshakes_end() {
    const BOUND: Duration = Duration::from_secs(10);
    let begin = Instant::now();
    let is_one = |thread: DirEntry| {
        // The system keeps the first 15 bytes of a name.
        read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with("farcall-handsha"))
    };
    while read_dir("/proc/self/task").unwrap().flatten().any(is_one) {
        assert!(begin.elapsed() < BOUND, "a handshake does not end");
        std::thread::yield_now();
    }
}

/// Runs the work once to warm up, then counts allocations of all threads.
fn allocations(mut work: impl FnMut()) -> usize {
    work();
    handshakes_end();
    let region = Region::new(GLOBAL);
    work();
    let change = region.change();
    change.allocations + change.reallocations
}

/// One test, so that no other thread of the test program allocates at the same time.
#[test]
fn the_steady_state_does_not_allocate() {
    let address = format!("shm://farcall-allocations-{}", std::process::id());
    let key = Key::new("steady", [7; 32]).unwrap();
    let authentication = Authentication::new().key(key.clone());
    let builder = Server::builder().service(SteadyServer::new(Plain)).authenticate(authentication);
    let server = builder.listen(&address).unwrap();
    let mut client = SteadyPollClient::connect(&address).key(key.clone()).wait().unwrap();

    let one_by_one = allocations(|| {
        for round in 0..ROUNDS {
            assert_eq!(client.array([round as u8; 32]), Ok([round as u8; 32]));
            assert_eq!(client.borrowed(b"key", "name", Some(b"part")), Ok(11));
            let fallible = client.fallible(u64::from(round));
            assert!(matches!(fallible, Ok((_, true)) | Err(CallError::Service(7))));
            assert_eq!(client.later(u64::from(round)), Ok(u64::from(round)));
            let limits = Limits { rows: u64::from(round), bytes: 1 };
            assert_eq!(client.grown(limits), Ok(Level::At(u64::from(round) + 1)));
        }
    });
    assert_eq!(one_by_one, 0, "calls one after the other");

    // It may not have slept so far.
    let region = Region::new(GLOBAL);
    assert_eq!(client.slow(), Ok(()));
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "a client's first sleep");

    let mut newer = newer::SteadyPollClient::connect(&address).key(key.clone()).wait().unwrap();
    let older_server = allocations(|| {
        for round in 0..ROUNDS {
            assert!(matches!(newer.fallible(u64::from(2 * round), 3), Ok((_, true))));
        }
    });
    assert_eq!(older_server, 0, "calls at a server that knows an older version");

    let mut outstanding = Vec::with_capacity(16);
    let together = allocations(|| {
        for round in 0..ROUNDS {
            outstanding.extend((0..16_u8).map(|call| client.start_array([call; 32]).unwrap()));
            while let Some(call) = outstanding.last_mut() {
                client.poll();
                if let Some(answer) = client.take(call) {
                    assert!(answer.is_ok(), "{round}: {:?}", answer.err());
                    outstanding.pop();
                }
            }
        }
    });
    assert_eq!(together, 0, "calls outstanding together");
    server.shutdown();
    polled_memory_does_not_allocate();
}

/// One-sided operations of a polling client: one by one, and in batches.
fn polled_memory_does_not_allocate() {
    let memory = Memory::new().unwrap();
    let region = memory.region(64 << 10).unwrap();
    let address = format!("shm://farcall-allocations-memory-{}", std::process::id());
    let server = Server::builder().service(MemoryServer::new(memory)).listen(&address).unwrap();
    let mut client = PollMemory::connect(&address).wait().unwrap().one_sided();
    let lent = region.lend(.., Rights::all(), Until::REVOKED).unwrap();
    let (row, word) = (lent.slice(64..96).unwrap(), lent.word(0).unwrap());
    let (mut bytes, mut long) = ([0; 32], vec![0; 40_000]);
    while client.caps().carrier != Carrier::OneSided {
        client.read(&row, &mut bytes).unwrap();
    }
    let mut count = 0;
    let allocated = allocations(|| {
        for round in 0..ROUNDS {
            client.write(&row, &[round as u8; 32]).unwrap();
            client.read(&row, &mut bytes).unwrap();
            assert_eq!(bytes, [round as u8; 32]);
            assert_eq!(client.fetch_add(&word, 1), Ok(count));
            assert_eq!(client.compare_and_swap(&word, 0, 1), Ok(count + 1));
            count += 1;
            client.read(&lent.slice(100..40_100).unwrap(), &mut long).unwrap();
            let reads = (0..16).fold(client.batch(), |batch, _| batch.read(&row));
            let mut batch = reads.write(&row, &[9; 32]).fence().read(&row).start().unwrap();
            loop {
                client.poll();
                let Some(outcomes) = client.take(&mut batch) else { continue };
                assert_eq!(outcomes.unwrap().bytes(17), [9; 32]);
                break;
            }
        }
    });
    assert_eq!(allocated, 0, "one-sided operations of a polling client");
    server.shutdown();
}
