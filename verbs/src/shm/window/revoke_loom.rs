//! Models of a revoke that meets accesses under way, under every interleaving: the owner takes a window away and gives the memory to somebody
//! else, while a peer writes or reads through the window. The records, words and counts are those of the device; the memory is two words.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

use super::*;
use crate::shm::accesses::Accesses;

/// What memory holds.
const OLD: u64 = 1;
const WRITTEN: u64 = 2;
const NEXT_TENANT: u64 = 3;

/// What both ends share.
struct Shared {
    record: WindowRecord,
    accesses: Accesses,
    memory: AtomicU64,
}

impl Shared {
    /// Memory of the first tenant, and a window to it that the peer knows.
    fn bound() -> (Arc<Shared>, BoundTo) {
        let shared = Shared {
            record: WindowRecord::new(),
            accesses: Accesses::new(),
            memory: AtomicU64::new(OLD),
        };
        shared.record.bind(binding(1));
        let known = shared.record.load().expect("it is bound");
        (Arc::new(shared), known)
    }

    /// An access of the peer, as [`Sending`](crate::shm::send) has it. `None`: the window was gone.
    fn access<T>(&self, known: BoundTo, access: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        self.accesses.enter();
        let done = self.record.word().is_alive(known.generation).then(|| access(&self.memory));
        self.accesses.leave();
        done
    }

    /// Takes the window away, and waits for the access under way.
    fn revoke(&self) {
        self.record.invalidate();
        let mut first = None;
        while !self.accesses.have_ended(&mut first) {
            thread::yield_now();
        }
    }
}

fn binding(rkey: u32) -> BoundTo {
    BoundTo {
        generation: 0,
        rkey,
        qp: 7,
        region: 9,
        access: 2,
        addr: 4096 * u64::from(rkey),
        len: 64,
    }
}

/// Two WRITEs, one behind the other, meet a revoke: none lands in the memory of the next tenant.
#[test]
fn ring_no_write_lands_behind_a_revoke() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let writing = {
            let shared = shared.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    shared.access(known, |memory| memory.store(WRITTEN, Ordering::Relaxed));
                }
            })
        };
        shared.revoke();
        shared.memory.store(NEXT_TENANT, Ordering::Relaxed);
        writing.join().unwrap();
        assert_eq!(shared.memory.load(Ordering::Relaxed), NEXT_TENANT, "a WRITE behind the revoke");
    });
}

/// The model finds an owner that does not wait: so it can fail.
#[test]
#[should_panic(expected = "a WRITE behind the revoke")]
fn ring_a_revoke_that_does_not_wait_is_found() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let writing = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.access(known, |memory| memory.store(WRITTEN, Ordering::Relaxed));
            })
        };
        shared.record.invalidate();
        shared.memory.store(NEXT_TENANT, Ordering::Relaxed);
        writing.join().unwrap();
        assert_eq!(shared.memory.load(Ordering::Relaxed), NEXT_TENANT, "a WRITE behind the revoke");
    });
}

/// READs meet a revoke: none that succeeds has bytes of the next tenant, and none succeeds behind one that was refused.
#[test]
fn ring_no_read_has_bytes_of_the_next_tenant() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let reading = {
            let shared = shared.clone();
            thread::spawn(move || {
                [(); 2].map(|()| shared.access(known, |memory| memory.load(Ordering::Relaxed)))
            })
        };
        shared.revoke();
        shared.memory.store(NEXT_TENANT, Ordering::Relaxed);
        let read = reading.join().unwrap();
        assert!(
            read.iter().flatten().all(|word| *word == OLD),
            "bytes of the next tenant: {read:?}"
        );
        assert!(read[0].is_some() || read[1].is_none(), "access behind a refusal");
    });
}

/// An atomic meets a revoke: it is in the word that the owner finds behind the revoke, or it was refused.
#[test]
fn ring_an_atomic_is_done_before_a_revoke_or_refused() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let adding = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.access(known, |memory| memory.fetch_add(10, Ordering::Relaxed)).is_some()
            })
        };
        shared.revoke();
        let found = shared.memory.load(Ordering::Relaxed);
        let added = adding.join().unwrap();
        assert_eq!(found, if added { OLD + 10 } else { OLD });
        assert_eq!(shared.memory.load(Ordering::Relaxed), found, "an atomic behind the revoke");
    });
}

/// A peer looks at a record while its window is taken away and bound to other memory: it sees one binding whole, or none.
#[test]
fn ring_a_binding_is_seen_whole_or_not_at_all() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let looking = {
            let shared = shared.clone();
            thread::spawn(move || shared.record.load())
        };
        shared.record.invalidate();
        shared.record.bind(binding(2));
        if let Some(seen) = looking.join().unwrap() {
            let BoundTo { generation, rkey, addr, .. } = seen;
            assert_eq!(addr, 4096 * u64::from(rkey), "a mixture of two bindings");
            assert_eq!(generation == known.generation, rkey == 1, "a binding under another's word");
        }
    });
}

/// The same window is bound again right behind the revoke, to memory of another tenant. A peer that knows the old binding gets neither.
#[test]
fn ring_an_old_binding_gives_no_access_through_the_next() {
    loom::model(|| {
        let (shared, known) = Shared::bound();
        let refused = Arc::new(AtomicU32::new(0));
        let writing = {
            let (shared, refused) = (shared.clone(), refused.clone());
            thread::spawn(move || {
                let write = |memory: &AtomicU64| memory.store(WRITTEN, Ordering::Relaxed);
                refused.store(shared.access(known, write).is_none().into(), Ordering::Relaxed);
            })
        };
        shared.revoke();
        shared.memory.store(NEXT_TENANT, Ordering::Relaxed);
        shared.record.bind(binding(2));
        writing.join().unwrap();
        assert_eq!(shared.memory.load(Ordering::Relaxed), NEXT_TENANT);
        let late = shared.access(known, |memory| memory.load(Ordering::Relaxed));
        assert_eq!(late, None, "an old binding under the next word");
    });
}
