//! The service as a library: server and clients in one process.

mod common;

use std::sync::Arc;

use farcall::{CallError, Server};
use farcall_kv::limits::{KvError, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use farcall_kv::service::{KvClient, KvPollClient, KvServer, StoreService};
use farcall_kv::store::Store;

#[test]
fn the_longest_key_and_value_are_stored_unchanged() {
    let address = common::address();
    let store = Arc::new(Store::new());
    let service = KvServer::new(StoreService::new(store.clone()));
    let server = Server::builder().service(service).listen(address.as_str()).unwrap();

    let key: Vec<u8> = (0..MAX_KEY_BYTES as u32).map(|i| (i ^ (i >> 9)) as u8).collect();
    let value: Vec<u8> = key.iter().map(|byte| !byte).collect();
    assert_eq!(value.len(), MAX_VALUE_BYTES);

    let client = KvClient::connect(&address).wait().unwrap();
    assert_eq!(client.put(&key, &value).wait(), Ok(false));
    assert!(client.get(&key).wait().unwrap().unwrap() == value);
    let page = client.scan(b"", false, 10).wait().unwrap();
    assert_eq!(page.len(), 1);
    assert!(page[0].0 == key && page[0].1 == value);
    assert!(client.scan(&key, true, 10).wait().unwrap().is_empty());

    let mut poll = KvPollClient::connect(&address).wait().unwrap();
    assert_eq!(poll.del(&key), Ok(true));
    assert_eq!(poll.get(b""), Err(CallError::Service(KvError::EmptyKey)));
    assert_eq!(store.size().keys, 0);
    server.shutdown();
}

#[test]
fn a_scan_of_a_changing_store_finds_every_entry_that_stays() {
    let address = common::address();
    let store = Arc::new(Store::new());
    let service = KvServer::new(StoreService::new(store.clone()));
    let server = Server::builder().service(service).threads(2).listen(address.as_str()).unwrap();
    for i in 0..2000u32 {
        store.put(&(2 * i).to_be_bytes(), b"stays").unwrap();
    }

    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = KvPollClient::connect(&address).wait().unwrap();
            for i in (0..4000u32).filter(|i| i % 2 == 1) {
                client.put(&i.to_be_bytes(), b"comes").unwrap();
                if i % 3 == 0 {
                    client.del(&i.to_be_bytes()).unwrap();
                }
            }
        });
        let client = KvClient::connect(&address).wait().unwrap();
        let mut rounds = 0;
        while rounds < 2 || !writer.is_finished() {
            let (mut from, mut stayed) = (Vec::new(), 0);
            loop {
                let page = client.scan(&from, true, 700).wait().unwrap();
                let Some((last, _)) = page.last() else { break };
                assert!(page.iter().map(|(key, _)| key).is_sorted());
                assert!(page[0].0 > from);
                stayed += page.iter().filter(|(_, value)| &value[..] == b"stays").count();
                from = last.to_vec();
            }
            assert_eq!(stayed, 2000);
            rounds += 1;
        }
        writer.join().unwrap();
    });
    server.shutdown();
}
