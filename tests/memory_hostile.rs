//! Hostile clients of lent memory: they guess every part of the values that name it, flood, and keep operations under way across a revoke.
//! They get errors, nothing of what is not theirs changes, and honest clients go on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farcall::Server;
use farcall::memory::{
    MAX_BATCH_OPERATIONS, Memory, MemoryError, MemoryServer, Region, Remote, RemoteMemory, Rights,
    Until,
};
use futures_util::future::join_all;
use serde_json::json;

#[path = "support/addresses.rs"]
mod addresses;

const REGION_BYTES: usize = 1 << 16;

/// What hostile clients have: the first bytes, to read and write. What honest ones have is behind that, and then comes what nobody has.
const THEIRS: u64 = 1024;
const HONEST: u64 = 4096;

/// Rounds of the honest client: in each, its lend is revoked, and it gets another.
const ROUNDS: u64 = 30;

/// Longer than any operation takes on a busy machine.
const BOUND: Duration = Duration::from_secs(20);

/// Knuth's MMIX generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Any number, and often one at an edge.
    fn any(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => u64::MAX - self.below(9),
            1 => self.below(9),
            2 => near.wrapping_add(1 + self.below(3)),
            3 => near.wrapping_sub(1 + self.below(3)),
            4 => near ^ 1 << self.below(64),
            _ => self.below(1 << 31) << 32 | self.below(1 << 31),
        }
    }
}

/// A value with one part, or several, that is not what the owner said.
fn guess(lent: &Remote, dice: &mut Dice) -> Remote {
    let mut forged = serde_json::to_value(lent).unwrap();
    let near = |forged: &serde_json::Value, part: &str| forged[part].as_u64().unwrap_or(0);
    let in_32_bits = |number: u64| number as u32;
    match dice.below(6) {
        0 => forged["life"] = json!(dice.any(near(&forged, "life")) | 1 << 63),
        1 => forged["lend"] = json!(in_32_bits(dice.any(near(&forged, "lend"))) | 1 << 10),
        2 => forged["epoch"] = json!(in_32_bits(dice.any(near(&forged, "epoch"))) | 1 << 10),
        3 => {
            let key = near(&forged, "key");
            forged["key"] = json!(key ^ (1 << dice.below(64)));
        }
        4 => forged["len"] = json!(THEIRS + 1 + dice.below(16)),
        _ => {
            // From its last bytes on, over the end; or from before its begin.
            let over = dice.below(2) == 0;
            forged["offset"] = json!(if over { THEIRS - 4 } else { u64::MAX - 3 });
            forged["len"] = json!(8);
        }
    }
    serde_json::from_value(forged).unwrap()
}

/// Attacks until told to stop. Returns how many operations were refused.
fn attack(address: &str, lent: &Remote, seed: u64, is_over: &AtomicBool, one_sided: bool) -> u64 {
    let connect = || {
        let memory = RemoteMemory::connect(address).wait().unwrap();
        if one_sided { memory.one_sided() } else { memory }
    };
    let (mut memory, mut dice, mut refused) = (connect(), Dice(seed), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let guessed = guess(lent, &mut dice);
        let part = guessed.slice(0..8).unwrap_or(guessed);
        let what = dice.below(8);
        let done = match what {
            0 | 1 => memory.read(&guessed).wait().map(drop),
            2 => memory.write(&guessed, vec![0xee; guessed.len() as usize]).wait(),
            3 => memory.fetch_add(&guessed, 1).wait().map(drop),
            4 => memory.compare_and_swap(&guessed, 0, 1).wait().map(drop),
            5 => {
                // A batch as long as may be, whose last operation is a guess.
                let batch = (1..MAX_BATCH_OPERATIONS).fold(memory.batch(), |it, _| it.read(lent));
                batch
                    .write(&guessed, vec![0xee; guessed.len() as usize])
                    .post()
                    .wait()
                    .map(drop)
                    .map_err(|it| it.error)
            }
            6 => {
                // A flood of operations, which it may do.
                let reads = join_all((0..200).map(|_| memory.read(lent)));
                runtime.block_on(reads).into_iter().for_each(drop);
                continue;
            }
            _ => {
                // Guesses, given up when they are under way.
                drop(memory.write(&part, vec![0xee; part.len() as usize]));
                memory = connect();
                continue;
            }
        };
        match done {
            Err(MemoryError::Full { .. } | MemoryError::Gone { .. }) => memory = connect(),
            Err(_) => refused += 1,
            Ok(()) => panic!("{address}: operation {what} on {guessed:?} was done"),
        }
    }
    refused
}

/// The honest client: what it has is read and written as ever, and each lend ends for certain.
fn go_on(address: &str, region: &Region, memory: &Memory) {
    let client = RemoteMemory::connect(address).wait().unwrap();
    for round in 0..ROUNDS {
        let rights = Rights::READ | Rights::WRITE | Rights::ATOMIC;
        let lent = region.lend(THEIRS..HONEST, rights, Until::REVOKED).unwrap();
        let begin = Instant::now();
        let bytes = vec![round as u8; (HONEST - THEIRS) as usize];
        client.write(&lent, bytes.clone()).wait().unwrap();
        assert_eq!(client.read(&lent).wait().unwrap(), bytes, "{address}");
        let word = lent.word(0).unwrap();
        let before = u64::from_ne_bytes([round as u8; 8]);
        assert_eq!(client.fetch_add(&word, 1).wait().unwrap(), before, "{address}");
        assert!(memory.revoke(&lent));
        assert_eq!(client.read(&lent).wait(), Err(MemoryError::Revoked), "{address}");
        assert!(
            begin.elapsed() < BOUND,
            "{address}: beside hostile clients, a round took too long"
        );
    }
}

/// Keeps writes under way across the revokes of its lends. Each must end in `Revoked`, and nothing may land behind that.
fn write_across_revokes(address: &str, region: &Region, memory: &Memory) {
    let begin = HONEST;
    for round in 0..ROUNDS {
        let lent = region.lend(begin..begin + 512, Rights::WRITE, Until::REVOKED).unwrap();
        let writes = AtomicU64::new(0);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let client = RemoteMemory::connect(address).wait().unwrap();
                loop {
                    match client.write(&lent, vec![0xdd; 512]).wait() {
                        Ok(()) => drop(writes.fetch_add(1, Ordering::Relaxed)),
                        Err(why) => return why,
                    }
                }
            });
            let started = Instant::now();
            while writes.load(Ordering::Relaxed) < 3 {
                assert!(started.elapsed() < BOUND, "{address}: no write lands");
                thread::yield_now();
            }
            assert!(memory.revoke(&lent));
            region.write(begin as usize, &[round as u8; 512]);
            assert_eq!(writer.join().unwrap(), MemoryError::Revoked, "{address}");
        });
        let mut bytes = [0; 512];
        region.read(begin as usize, &mut bytes);
        assert_eq!(bytes, [round as u8; 512], "{address}: a write behind a revoke");
    }
}

fn hostile_clients_get_nothing(address: &str, one_sided: bool) {
    let memory = Memory::new().unwrap();
    let region = memory.region(REGION_BYTES).unwrap();
    let server =
        Server::builder().service(MemoryServer::new(memory.clone())).listen(address).unwrap();
    let address = server.address().to_string();
    let theirs = region.lend(0..THEIRS, Rights::READ, Until::REVOKED).unwrap();
    let before = memory.snapshot();
    let secret = vec![0x5a; REGION_BYTES - HONEST as usize - 512];
    region.write(HONEST as usize + 512, &secret);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (address, is_over) = (&address, &is_over);
        let hostile: Vec<_> = (1..=3)
            .map(|seed| scope.spawn(move || attack(address, &theirs, seed, is_over, one_sided)))
            .collect();
        // Whatever becomes of the honest ones, the others end.
        let honest = scope.spawn(|| go_on(address, &region, &memory));
        let writing = scope.spawn(|| write_across_revokes(address, &region, &memory));
        let ended = [honest.join(), writing.join()];
        is_over.store(true, Ordering::Relaxed);
        for hostile in hostile {
            assert!(hostile.join().unwrap() > 10, "{address}: nothing was tried");
        }
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let mut bytes = vec![0; secret.len()];
    region.read(HONEST as usize + 512, &mut bytes);
    assert!(bytes == secret, "{address}: memory that nobody may change has changed");
    let mut bytes = [0xff; THEIRS as usize];
    region.read(0, &mut bytes);
    assert_eq!(
        bytes, [0; THEIRS as usize],
        "{address}: memory that is lent for reading has changed"
    );
    let after = memory.snapshot();
    assert_eq!((after.lends, after.regions), (before.lends, before.regions), "{address}");
}

#[test]
fn hostile_clients_get_nothing_by_calls() {
    for address in addresses::each_kind_of_address("memory-hostile") {
        hostile_clients_get_nothing(&address, false);
    }
}

#[test]
fn hostile_clients_get_nothing_one_sided() {
    let address = format!("shm://memory-hostile-one-sided-{}", std::process::id());
    hostile_clients_get_nothing(&address, true);
}
