//! Several services at one address, with shared state; a client of both over one connection, and many clients on one thread.
//!
//! ```sh
//! cargo run --release --example services
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall::{Bytes, Endpoint, Server};

#[farcall::service]
trait Store {
    fn get(&self, key: &[u8]) -> Option<Bytes>;
    fn put(&self, key: &[u8], value: Bytes);
}

#[farcall::service]
trait Statistics {
    /// How many keys there are.
    fn keys(&self) -> u64;
    /// How many values were asked for.
    fn reads(&self) -> u64;
}

/// What both services work on. Handlers take `&self`, and run on any thread of the server.
#[derive(Default)]
struct State {
    values: Mutex<HashMap<Vec<u8>, Bytes>>,
    reads: AtomicU64,
}

impl State {
    fn values(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Bytes>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for State {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.values().get(key).cloned()
    }

    fn put(&self, key: &[u8], value: Bytes) {
        self.values().insert(key.to_vec(), value);
    }
}

impl Statistics for State {
    fn keys(&self) -> u64 {
        self.values().len() as u64
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = Arc::new(State::default());
    // The generated servers are made of an `Arc`, of which the program keeps one.
    let server = Server::builder()
        .service(StoreServer::from(state.clone()))
        .service(StatisticsServer::from(state.clone()))
        .threads(2)
        .listen(format!("shm://services-{}", std::process::id()))?;

    // One connection for both services.
    let store = StoreClient::connect(server.address()).also::<StatisticsClient>().wait()?;
    let statistics = StatisticsClient::on(store.channel())?;
    store.put(b"tea", Bytes::from_static(b"sencha")).wait()?;
    assert_eq!(store.get(b"tea").wait()?.as_deref(), Some(&b"sencha"[..]));
    println!("{} keys, {} reads", statistics.keys().wait()?, statistics.reads().wait()?);

    // Ten connections, for example to ten servers: one I/O thread drives all.
    let endpoint = Endpoint::new();
    let clients = (0..10)
        .map(|_| StoreClient::connect(server.address()).endpoint(&endpoint).wait())
        .collect::<Result<Vec<_>, _>>()?;
    for client in &clients {
        client.get(b"tea").wait()?;
    }

    // The program sees the same state as the handlers.
    println!("{} reads", state.reads.load(Ordering::Relaxed));
    assert_eq!(statistics.reads().wait()?, 11);
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
