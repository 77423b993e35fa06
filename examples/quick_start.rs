//! A service, its server and its two clients, in one program.
//!
//! ```sh
//! cargo run --release --example quick_start
//! ```

use std::collections::BTreeMap;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use farcall::{Bytes, CallError, Server, Shape};
use serde::{Deserialize, Serialize};

/// A store of byte strings.
#[farcall::service]
trait Store {
    /// The value of a key. A plain `fn` runs where its request arrived, and borrows its arguments from there.
    fn get(&self, key: &[u8]) -> Result<Bytes, StoreError>;

    /// Gives a key a value. The value is kept, so it is not borrowed.
    fn put(&self, key: &[u8], value: Bytes) -> Result<(), StoreError>;

    /// All keys that begin so. An `async fn` may wait for something without keeping other calls from its thread.
    async fn scan(&self, prefix: Bytes) -> Vec<Bytes>;
}

/// An error of the service's own travels like a value.
#[derive(Debug, PartialEq, thiserror::Error, Serialize, Deserialize, Shape)]
enum StoreError {
    #[error("there is no such key")]
    NoSuchKey,
    #[error("a key has at most {max} bytes")]
    KeyTooLong { max: usize },
}

/// An implementation is an ordinary one: nothing in it knows how calls travel.
#[derive(Default)]
struct InMemory {
    values: RwLock<BTreeMap<Bytes, Bytes>>,
}

const MAX_KEY_BYTES: usize = 1024;

impl InMemory {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Bytes, Bytes>> {
        self.values.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Bytes, Bytes>> {
        self.values.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Store for InMemory {
    fn get(&self, key: &[u8]) -> Result<Bytes, StoreError> {
        self.read().get(key).cloned().ok_or(StoreError::NoSuchKey)
    }

    fn put(&self, key: &[u8], value: Bytes) -> Result<(), StoreError> {
        if key.len() > MAX_KEY_BYTES {
            return Err(StoreError::KeyTooLong { max: MAX_KEY_BYTES });
        }
        self.write().insert(Bytes::copy_from_slice(key), value);
        Ok(())
    }

    async fn scan(&self, prefix: Bytes) -> Vec<Bytes> {
        let values = self.read();
        let from = values.range(prefix.clone()..);
        from.map(|(key, _)| key).take_while(|key| key.starts_with(&prefix)).cloned().collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The clients could as well be other processes of this user.
    let address = format!("shm://quick-start-{}", std::process::id());
    let server =
        Server::builder().service(StoreServer::new(InMemory::default())).listen(&address)?;

    // A client for any thread and any executor: await its calls, or wait for them.
    let client = StoreClient::connect(&address).wait()?;
    client.put(b"tea/green", Bytes::from_static(b"sencha")).wait()?;
    client.put(b"tea/black", Bytes::from_static(b"assam")).wait()?;
    let tea = client.get(b"tea/green").timeout(Duration::from_secs(1)).wait()?;
    println!("tea/green: {}", String::from_utf8_lossy(&tea));

    // The service's own error is told from an error of the call.
    match client.get(b"coffee").wait() {
        Err(CallError::Service(error)) => println!("coffee: {error}"),
        Err(CallError::Rpc(error)) => return Err(error.into()),
        Ok(coffee) => println!("coffee: {}", String::from_utf8_lossy(&coffee)),
    }

    // A client for a thread that owns its connection and spins: one call after the other ...
    let mut poll = StorePollClient::connect(&address).wait()?;
    let teas = poll.scan(Bytes::from_static(b"tea/"))?;
    println!("{} teas", teas.len());

    // ... or many outstanding together.
    let mut calls = Vec::new();
    for tea in &teas {
        calls.push(poll.start_get(tea)?);
    }
    while !calls.is_empty() {
        poll.poll();
        let mut outstanding = Vec::new();
        for mut call in calls {
            match poll.take(&mut call) {
                Some(tea) => println!("{}", String::from_utf8_lossy(&tea?)),
                None => outstanding.push(call),
            }
        }
        calls = outstanding;
    }

    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
