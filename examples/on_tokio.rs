//! tokio on both sides: handlers with its timers and its threads for blocking work, and a client whose tasks share one connection.
//!
//! ```sh
//! cargo run --release --features tokio --example on_tokio
//! ```

use std::error::Error;
use std::time::Duration;

use farcall::{Bytes, Server};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

#[farcall::service]
trait Works {
    /// Waits on one of tokio's timers.
    async fn nap(&self, millis: u64) -> u64;

    /// Counts the words of a text on one of tokio's threads for blocking work: a long computation would keep other calls from this thread.
    async fn count(&self, text: Bytes) -> Result<u64, String>;
}

struct OnTokio;

impl Works for OnTokio {
    async fn nap(&self, millis: u64) -> u64 {
        sleep(Duration::from_millis(millis)).await;
        millis
    }

    async fn count(&self, text: Bytes) -> Result<u64, String> {
        let count = move || {
            let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
            Ok(text.split_whitespace().count() as u64)
        };
        spawn_blocking(count).await.map_err(|error| error.to_string())?
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::builder()
        .service(WorksServer::new(OnTokio))
        // Without this, a handler that uses one of tokio's timers panics.
        .tokio(Handle::current())
        .listen(format!("shm://on-tokio-{}", std::process::id()))?;
    let client = WorksClient::connect(server.address()).await?;

    println!("{} words", client.count(Bytes::from_static(b"a cup of tea")).await?);
    println!("{}", client.count(Bytes::from_static(b"\xff")).await.unwrap_err());

    // A hundred tasks over one connection: the naps overlap.
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        tasks.spawn(async move { client.nap(20).await });
    }
    let mut naps = 0;
    while let Some(nap) = tasks.join_next().await {
        naps += nap??;
    }
    assert_eq!(naps, 100 * 20);

    // A timeout of tokio's drops the call, and so its handler.
    let long = timeout(Duration::from_millis(10), client.nap(60_000)).await;
    println!("{}", long.unwrap_err());

    // `shutdown` blocks until the calls in flight have ended.
    spawn_blocking(|| server.shutdown()).await?;
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
