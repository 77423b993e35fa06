//! The client for any executor on tokio's: tasks on several threads, timeouts and selects that drop calls.

use std::{sync::Arc, time::Duration};

use farcall::{Channel, ChannelOptions, RpcError, ServiceClient};
use farcall_core::Server;
use farcall_transports::Address;
use farcall_transports_conformance::{
    pattern,
    service::{Handlers, SuiteClient, SuiteServer},
};
use tokio::time::timeout;

/// The bound on each of these tests.
const BOUND: Duration = Duration::from_secs(30);

fn serve(name: &str) -> (farcall::RunningServer, SuiteClient) {
    let name = format!("shm://tokio-{name}-{}?backend=write_imm&window=8", std::process::id());
    let address: Address = name.parse().expect("an address");
    let handlers = Arc::new(Handlers::default());
    let server = Server::builder().service(SuiteServer::from(handlers)).serve(&address);
    let channel = Channel::connect(address, SuiteClient::DESCRIPTION, ChannelOptions::default());
    (server.expect("listen"), SuiteClient::from_channel(channel.expect("connect")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_share_a_client() {
    let (server, client) = serve("tasks");
    let tasks: Vec<_> = (0..64u64)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for call in 1..=20u64 {
                    let seed = task * 100 + call;
                    let len = if call == 7 { 40_000 } else { (seed % 70) as usize };
                    let echoed = client.echo_later(pattern::make(seed, len)).await.expect("echo");
                    pattern::assert_is(seed, len, &echoed);
                    assert_eq!(client.tally(task).await, Ok(call));
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(BOUND, task).await.expect("in time").expect("no panic");
    }
    drop(client);
    server.shutdown();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_and_selects_drop_calls_without_harm() {
    let (server, client) = serve("drops");
    for round in 0..200u64 {
        let held = client.hold(1, round);
        let large = client.make(round, 200_000);
        if round % 2 == 0 {
            let late = timeout(Duration::from_micros(round), held).await;
            assert!(late.is_err(), "nobody opens the gate");
        } else {
            tokio::select! {
                biased;
                made = large => pattern::assert_is(round, 200_000, &made.expect("make")),
                _ = held => panic!("nobody opens the gate"),
            }
        }
    }
    timeout(BOUND, async {
        while client.held(1).await != Ok(0) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the tasks of dropped calls are gone");
    let past = client.tally(1).timeout(Duration::ZERO).await;
    assert!(
        matches!(past, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{past:?}"
    );
    drop(client);
    server.shutdown();
}
