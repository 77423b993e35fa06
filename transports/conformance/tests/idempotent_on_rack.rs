//! Methods marked idempotent, over wires that lose datagrams: one of their calls may run more than once, any other does not.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use farcall_core::{ChannelOptions, Server};
use farcall_rack::Rack;
use farcall_verbs::sim::{FaultRates, SimConfig};

#[farcall::service]
trait Counted {
    fn once(&self, call: u64) -> u64;
    #[rpc(idempotent)]
    fn again(&self, call: u64) -> u64;
    #[rpc(idempotent)]
    async fn again_later(&self, call: u64) -> u64;
}

const CALLS: usize = 400;

/// How often each call has run, of each method.
#[derive(Default)]
struct Runs([Vec<AtomicU64>; 3]);

impl Runs {
    fn new() -> Arc<Runs> {
        Arc::new(Runs([(); 3].map(|()| (0..CALLS).map(|_| AtomicU64::new(0)).collect())))
    }

    fn ran(&self, method: usize, call: u64) -> u64 {
        self.0[method][call as usize].fetch_add(1, Ordering::Relaxed);
        call + 1
    }

    fn all(&self, method: usize) -> Vec<u64> {
        self.0[method].iter().map(|runs| runs.load(Ordering::Relaxed)).collect()
    }
}

struct Handlers(Arc<Runs>);

impl Counted for Handlers {
    fn once(&self, call: u64) -> u64 {
        self.0.ran(0, call)
    }

    fn again(&self, call: u64) -> u64 {
        self.0.ran(1, call)
    }

    async fn again_later(&self, call: u64) -> u64 {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return std::task::Poll::Ready(());
            }
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
        self.0.ran(2, call)
    }
}

/// How often each call of each method has run, with so many datagrams lost.
fn runs(loss: f64, seed: u64) -> [Vec<u64>; 3] {
    let config = SimConfig::default().faults(FaultRates::default().datagram_loss(loss));
    let mut rack = Rack::with_config(seed, config);
    let (server, client) = (rack.add_node(), rack.add_node());
    let address = format!("sim://{server}/counted?backend=datagram&window=8");
    let runs = Runs::new();
    let service = CountedServer::new(Handlers(runs.clone()));
    let _running = rack.serve(&address, Server::builder().service(service)).expect("serve");
    let done = rack.run(client, async move |host| {
        let options = ChannelOptions::default().timeout(Duration::from_secs(60));
        let client: CountedClient = host.connect_with(&address, &options).await.expect("connect");
        for call in 0..CALLS as u64 {
            assert_eq!(client.once(call).await, Ok(call + 1));
            assert_eq!(client.again(call).await, Ok(call + 1));
            assert_eq!(client.again_later(call).await, Ok(call + 1));
        }
    });
    assert_eq!(done, Some(()));
    [0, 1, 2].map(|method| runs.all(method))
}

#[test]
fn without_loss_every_call_runs_once() {
    for method in runs(0.0, 1) {
        assert!(method.iter().all(|runs| *runs == 1));
    }
}

#[test]
fn with_loss_only_idempotent_calls_run_again() {
    for seed in 1..4 {
        let [once, again, later] = runs(0.2, seed);
        assert!(once.iter().all(|runs| *runs == 1), "seed {seed}");
        for method in [again, later] {
            assert!(method.iter().all(|runs| *runs >= 1), "seed {seed}");
            // The answer of one call in five is lost.
            let repeated = method.iter().filter(|runs| **runs > 1).count();
            assert!(repeated > CALLS / 10, "seed {seed}: {repeated} calls ran again");
        }
    }
}
