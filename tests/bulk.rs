//! Bulk calls over every backend: clients that move data, forget to, take too long, or are not those that were meant.

#[path = "support/addresses.rs"]
mod addresses;

use std::ops::Range;
use std::time::{Duration, Instant};

use farcall::bulk::{Bulk, BulkClient, BulkError, BulkServer, Download, MAX_PARTS, Upload};
use farcall::memory::{Memory, MemoryError, MemoryServer, Region, RemoteMemory};
use farcall::{Bytes, CallError, RunningServer, Server};

const REGION_BYTES: usize = 12 << 20;

#[farcall::service]
trait Files {
    /// The number of parts, and the parts themselves.
    fn load(&self, parts: Vec<(u64, u64)>, lease_ms: u64) -> Result<Download<u64>, BulkError>;
    /// Gives the sum of the bytes that were put.
    fn store(&self, parts: Vec<(u64, u64)>, lease_ms: u64) -> Result<Upload<u64>, BulkError>;
}

#[derive(Clone)]
struct Store {
    bulk: Bulk,
    region: Region,
}

impl Store {
    fn parts(&self, parts: &[(u64, u64)]) -> Vec<(&Region, Range<u64>)> {
        parts.iter().map(|&(begin, end)| (&self.region, begin..end)).collect()
    }
}

impl Files for Store {
    fn load(&self, parts: Vec<(u64, u64)>, lease_ms: u64) -> Result<Download<u64>, BulkError> {
        let lease = Duration::from_millis(lease_ms);
        self.bulk.offer(parts.len() as u64, self.parts(&parts), lease)
    }

    fn store(&self, parts: Vec<(u64, u64)>, lease_ms: u64) -> Result<Upload<u64>, BulkError> {
        let (region, ranges) = (self.region.clone(), parts.clone());
        let lease = Duration::from_millis(lease_ms);
        self.bulk.accept(self.parts(&parts), lease, move || {
            let sum = |(begin, end): (u64, u64)| {
                let mut bytes = vec![0; (end - begin) as usize];
                region.read(begin as usize, &mut bytes);
                bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>()
            };
            ranges.into_iter().map(sum).sum()
        })
    }
}

struct Bench {
    server: RunningServer,
    store: Store,
    memory: Memory,
}

impl Bench {
    fn new(address: &str) -> Bench {
        let memory = Memory::new().unwrap();
        let region = memory.region(REGION_BYTES).unwrap();
        let store = Store { bulk: Bulk::new(&memory), region };
        let server = Server::builder()
            .service(FilesServer::new(store.clone()))
            .service(MemoryServer::new(memory.clone()))
            .service(BulkServer::new(store.bulk.clone()))
            .listen(address)
            .unwrap();
        Bench { server, store, memory }
    }

    fn connect(&self) -> (FilesClient, BulkClient) {
        let dialling = FilesClient::connect(self.server.address()).also::<RemoteMemory>();
        let files = dialling.also::<BulkClient>().wait().unwrap();
        let bulk = BulkClient::of(files.channel()).unwrap();
        (files, bulk)
    }

    fn assert_nothing_lent(&self) {
        assert_eq!(self.memory.snapshot().lends, 0);
        assert_eq!(self.store.bulk.snapshot().under_way, 0);
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed).wrapping_mul(0x9e37_79b9) >> 8) as u8).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

const LONG: u64 = 60_000;

#[test]
fn clients_move_the_data_of_several_parts_over_every_backend() {
    for address in addresses::each_kind_of_address("bulk-parts") {
        let bench = Bench::new(&address);
        let (files, bulk) = bench.connect();
        // Of more than one operation, of one, and of a byte.
        let ranges = vec![(100, 9_000_100), (10_000_000, 10_000_001), (9_000_100, 9_500_000)];
        let part =
            |(seed, (begin, end)): (usize, &(u64, u64))| pattern(seed, (end - begin) as usize);
        let parts: Vec<_> = ranges.iter().enumerate().map(part).collect();
        let upload = files.store(ranges.clone(), LONG).wait().unwrap();
        assert_eq!(upload.lens().collect::<Vec<_>>(), [9_000_000, 1, 499_900]);
        let stored = upload.write(&bulk, parts.clone()).wait().unwrap();
        assert_eq!(stored, parts.iter().map(|part| sum(part)).sum::<u64>(), "{address}");
        bench.assert_nothing_lent();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let load = async {
            let download = files.load(ranges.clone(), LONG).await.unwrap();
            download.read(&bulk).await.unwrap()
        };
        let (count, loaded) = runtime.block_on(load);
        assert_eq!(count, 3);
        assert!(loaded.iter().zip(&parts).all(|(loaded, part)| loaded == part), "{address}");
        bench.assert_nothing_lent();
        assert_eq!(bench.store.bulk.snapshot().finished, 2);
    }
}

fn bench(name: &str) -> Bench {
    Bench::new(&format!("shm://bulk-{name}-{}", std::process::id()))
}

#[test]
fn one_sided_operations_move_the_data_too() {
    let bench = bench("one-sided");
    let (files, bulk) = bench.connect();
    let memory = RemoteMemory::on(files.channel()).unwrap().one_sided();
    let bulk = bulk.with_memory(memory);
    for seed in 0..3 {
        let bytes = pattern(seed, 50_000);
        let upload = files.store(vec![(0, 50_000)], LONG).wait().unwrap();
        assert_eq!(upload.write(&bulk, [bytes.clone()]).wait().unwrap(), sum(&bytes));
        let (_, loaded) =
            files.load(vec![(0, 50_000)], LONG).wait().unwrap().read(&bulk).wait().unwrap();
        assert!(loaded[0] == bytes);
    }
    bench.assert_nothing_lent();
}

#[test]
fn parts_that_overlap_or_are_empty_or_too_many_are_refused() {
    let bench = bench("refused");
    let (files, _) = bench.connect();
    let refused = |parts: Vec<(u64, u64)>| match files.store(parts, LONG).wait() {
        Err(CallError::Service(error)) => error,
        other => panic!("{other:?}"),
    };
    let overlap = |first, second| BulkError::Overlap { first, second };
    assert_eq!(refused(vec![(0, 10), (20, 30), (9, 20)]), overlap(0, 2));
    assert_eq!(refused(vec![(0, 10), (2, 3)]), overlap(0, 1));
    assert_eq!(refused(vec![(5, 5)]), BulkError::Parts { parts: 1 });
    assert_eq!(refused(vec![]), BulkError::Parts { parts: 0 });
    let many: Vec<_> = (0..=MAX_PARTS as u64).map(|at| (at, at + 1)).collect();
    assert_eq!(refused(many), BulkError::Parts { parts: MAX_PARTS as u64 + 1 });
    let beyond = refused(vec![(0, 10), (10, REGION_BYTES as u64 + 1)]);
    assert!(matches!(beyond, BulkError::Memory(MemoryError::OutOfRange { .. })), "{beyond}");
    bench.assert_nothing_lent();
    // Two readers of the same bytes are no harm.
    assert!(files.load(vec![(0, 10), (5, 15)], LONG).wait().is_ok());
}

#[test]
fn a_client_writes_as_much_as_may_be_put() {
    let bench = bench("lengths");
    let (files, bulk) = bench.connect();
    for (parts, part, len, expected) in [
        (vec![vec![1; 9], vec![2; 20]], 0, 9, 10),
        (vec![vec![1; 10]], 1, 0, 20),
        (vec![vec![1; 10], vec![2; 20], vec![3; 5]], 2, 5, 0),
    ] {
        let upload = files.store(vec![(0, 10), (10, 30)], LONG).wait().unwrap();
        let error = upload.write(&bulk, parts).wait().unwrap_err();
        assert_eq!(error, BulkError::Length { part, len, expected });
    }
}

#[test]
fn a_transfer_that_is_skipped_ends_its_lends() {
    let bench = bench("skipped");
    let (files, bulk) = bench.connect();
    assert_eq!(files.load(vec![(0, 10)], LONG).wait().unwrap().skip(&bulk).wait(), Ok(1));
    assert_eq!(files.store(vec![(0, 10)], LONG).wait().unwrap().skip(&bulk).wait(), Ok(()));
    bench.assert_nothing_lent();
}

/// The client is gone, or stopped: what it still holds gives no access.
#[test]
fn the_lease_ends_a_transfer_whose_client_takes_too_long() {
    let bench = bench("lease");
    let (files, bulk) = bench.connect();
    let forgotten = files.store(vec![(0, 1000)], 50).wait().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while bench.memory.snapshot().lends > 0 {
        assert!(Instant::now() < until, "the lease does not end");
        std::thread::yield_now();
    }
    let late = forgotten.write(&bulk, [Bytes::from(vec![7; 1000])]).wait().unwrap_err();
    let ended = [MemoryError::Expired, MemoryError::Revoked].map(BulkError::Memory);
    assert!(ended.contains(&late), "{late}");
    let mut bytes = [1; 1000];
    bench.store.region.read(0, &mut bytes);
    assert_eq!(bytes, [0; 1000], "nothing has landed");
    // The next one finds that it is over.
    files.load(vec![(0, 10)], LONG).wait().unwrap().skip(&bulk).wait().unwrap();
    assert_eq!(bench.store.bulk.snapshot().expired, 1);
    bench.assert_nothing_lent();
}

#[test]
fn a_transfer_is_dropped_in_every_phase_and_its_lease_ends_it() {
    let bench = bench("dropped");
    let (files, bulk) = bench.connect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for micros in [0, 50, 300, 1000, 5000] {
        let bytes = pattern(1, 8 << 20);
        let upload = files.store(vec![(0, 8 << 20)], 200).wait().unwrap();
        let transfer = upload.write(&bulk, [bytes]);
        let late = async { tokio::time::timeout(Duration::from_micros(micros), transfer).await };
        drop(runtime.block_on(late));
        let (count, _) =
            files.load(vec![(0, 10)], LONG).wait().unwrap().read(&bulk).wait().unwrap();
        assert_eq!(count, 1);
    }
    let until = Instant::now() + Duration::from_secs(20);
    while bench.memory.snapshot().lends > 0 {
        assert!(Instant::now() < until, "the leases do not end");
        std::thread::yield_now();
    }
}
