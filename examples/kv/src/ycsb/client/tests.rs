//! Clients of a correct or faulty store in this process.

use bytes::Bytes;

use super::*;
use crate::store::Store;
use crate::ycsb::records::Fields;
use std::sync::Arc;

type Corrupt = fn(u64, &mut Option<Bytes>);

/// A store in this process that answers after some polls, and may answer incorrectly.
struct Local {
    store: Arc<Store>,
    polls: u64,
    gets: u64,
    in_flight: usize,
    corrupt: Corrupt,
    deaf: bool,
}

impl Local {
    fn new(store: &Arc<Store>) -> Self {
        Self {
            store: store.clone(),
            polls: 0,
            gets: 0,
            in_flight: 0,
            corrupt: |_, _| {},
            deaf: false,
        }
    }

    fn admit(&mut self) -> Result<u64, NotStarted> {
        if self.in_flight == 5 {
            return Err(NotStarted::Full);
        }
        self.in_flight += 1;
        Ok(self.polls + 1 + self.in_flight as u64 % 3)
    }
}

impl Link for Local {
    type Get = (u64, Option<Option<Bytes>>);
    type Put = (u64, bool);

    fn start_get(&mut self, key: &[u8]) -> Result<Self::Get, NotStarted> {
        let due = self.admit()?;
        let mut value = self.store.get(key).map_err(|e| NotStarted::Failed(e.into()))?;
        self.gets += 1;
        (self.corrupt)(self.gets, &mut value);
        Ok((due, Some(value)))
    }

    fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<Self::Put, NotStarted> {
        let due = self.admit()?;
        let replaced = self.store.put(key, value).map_err(|e| NotStarted::Failed(e.into()))?;
        Ok((due, replaced))
    }

    fn poll(&mut self) {
        self.polls += 1;
    }

    fn take_get(&mut self, get: &mut Self::Get) -> Option<Result<Option<Bytes>, LinkError>> {
        if get.0 > self.polls || self.deaf {
            return None;
        }
        self.in_flight -= 1;
        Some(Ok(get.1.take().expect("taken once")))
    }

    fn take_put(&mut self, put: &mut Self::Put) -> Option<Result<bool, LinkError>> {
        if put.0 > self.polls || self.deaf {
            return None;
        }
        self.in_flight -= 1;
        Some(Ok(put.1))
    }
}

fn config(workload: Workload, me: u32, clients: u32) -> ClientConfig {
    ClientConfig {
        workload,
        me,
        clients,
        window: 8,
        spins_before_yield: 0,
        timeout: Duration::from_secs(30),
        inserts_are_new: true,
        seed: 42,
    }
}

fn records() -> Records {
    Records::generated(5, 100, Fields::default())
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[test]
fn every_workload_passes_with_concurrent_clients() {
    for workload in [Workload::A, Workload::B, Workload::C, Workload::D, Workload::F] {
        let store = Arc::new(Store::new());
        let counters = Counters::default();
        let loaded = std::sync::Barrier::new(3);
        let ended = std::sync::Barrier::new(3);
        let findings: Vec<(u64, u64, u64)> = std::thread::scope(|scope| {
            let clients: Vec<_> = (1..=3)
                .map(|me| {
                    let (store, counters, loaded, ended) = (&store, &counters, &loaded, &ended);
                    scope.spawn(move || {
                        let config = config(workload, me, 3);
                        let mut client = Client::new(Local::new(store), records(), config);
                        client.load(counters).unwrap();
                        loaded.wait();
                        client.work(far(), 3000, counters).unwrap();
                        ended.wait();
                        client.audit(counters).unwrap();
                        let found = client.findings();
                        assert_eq!(found.reports, Vec::<String>::new());
                        let reads = found.latencies.count(Operation::Read);
                        (found.checked, found.wrong, reads)
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for (checked, wrong, reads) in findings {
            assert_eq!(wrong, 0, "{workload:?}");
            assert!(checked >= 3000);
            assert!(reads > 1300);
        }
    }
}

fn wrong_answers(corrupt: Corrupt) -> Vec<String> {
    let store = Arc::new(Store::new());
    let link = Local { corrupt, ..Local::new(&store) };
    let mut client = Client::new(link, records(), config(Workload::B, 1, 1));
    let counters = Counters::default();
    client.load(&counters).unwrap();
    client.work(far(), 500, &counters).unwrap();
    let found = client.findings();
    assert_eq!(counters.wrong.load(Ordering::Relaxed), found.wrong);
    assert_eq!(found.wrong, found.reports.len() as u64);
    found.reports.clone()
}

#[test]
fn a_planted_wrong_answer_is_detected() {
    let reports = wrong_answers(|n, value| {
        if n == 100 {
            let mut bytes = value.take().unwrap().to_vec();
            bytes[500] ^= 1;
            *value = Some(bytes.into());
        }
    });
    assert_eq!(reports.len(), 1);
    assert!(reports[0].contains("checksum"), "{reports:?}");

    let reports = wrong_answers(|n, value| {
        if n == 100 {
            *value = None;
        }
    });
    assert_eq!(reports.len(), 1);
    assert!(reports[0].contains("not found"), "{reports:?}");
}

#[test]
fn the_audit_detects_a_store_that_loses_a_write() {
    let store = Arc::new(Store::new());
    let mut client = Client::new(Local::new(&store), records(), config(Workload::A, 1, 2));
    let counters = Counters::default();
    for record in 0..records().loaded() {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        records().key(record, &mut key);
        records().value(record, LOADER, 1, &mut value);
        store.put(&key, &value).unwrap();
    }
    // The hottest record belongs to another client; its neighbour gets this client's updates.
    let record = client.checker.writable(crate::ycsb::keys::fnv_hash64(0) % 100);
    let (mut hottest, mut before) = (Vec::new(), Vec::new());
    records().key(record, &mut hottest);
    records().value(record, LOADER, 1, &mut before);
    client.work(far(), 500, &counters).unwrap();
    assert_eq!(client.findings().wrong, 0);
    store.put(&hottest, &before).unwrap();
    client.audit(&counters).unwrap();
    assert_eq!(client.findings().wrong, 1);
    assert!(client.findings().reports[0].contains("stale"), "{:?}", client.findings().reports);
}

#[test]
fn a_server_that_never_answers_causes_a_timeout() {
    let store = Arc::new(Store::new());
    let link = Local { deaf: true, ..Local::new(&store) };
    let config = ClientConfig { timeout: Duration::from_millis(20), ..config(Workload::C, 1, 1) };
    let mut client = Client::new(link, records(), config);
    let ended = client.work(far(), 10, &Counters::default());
    assert!(matches!(ended, Err(RunError::NoAnswer { operation: Operation::Read, .. })));
}
