//! A connection that moves, on a simulated rack: where it ends up, and what it has on the way.

use std::{cell::Cell, pin::Pin, rc::Rc, sync::Arc, task::Poll};

use farcall_core::{ChannelOptions, DrivenServer, Server};
use farcall_rack::{CpuCosts, Host, Rack};
use farcall_transports_conformance::service::{Handlers, SuiteClient, SuiteServer};
use farcall_verbs::sim::{Costs, SimConfig};

const MILLISECOND: u64 = 1_000_000;

struct Place {
    rack: Rack,
    address: String,
    _running: DrivenServer,
}

/// Calls that have been answered.
type Answered = Rc<Cell<u64>>;

impl Place {
    fn new(options: &str) -> Place {
        let config = SimConfig::default().costs(Costs::connectx3());
        let mut rack = Rack::with_config(11, config);
        rack.set_cpu_costs(CpuCosts::default());
        let server = rack.add_node();
        let address = format!("sim://{server}/suite?{options}");
        let suite = SuiteServer::from(Arc::new(Handlers::default()));
        let running = rack.serve(&address, Server::builder().service(suite).threads(1));
        Place { _running: running.expect("serve"), rack, address }
    }

    /// A client on a node of its own, with so many calls under way at a time, each with so many bytes in both directions.
    fn calling(&mut self, calls: usize, bytes: usize) -> Answered {
        let (node, address) = (self.rack.add_node(), self.address.clone());
        let answered = Answered::default();
        let counted = Rc::clone(&answered);
        let program = self.rack.spawn_program(node, async move |host: Host| {
            let options = ChannelOptions::default();
            let client: SuiteClient = host.connect_with(&address, &options).await.expect("connect");
            let bytes = vec![7; bytes];
            let mut under_way: Vec<_> = (0..calls).map(|_| client.echo(&bytes)).collect();
            std::future::poll_fn(|context| {
                for call in &mut under_way {
                    while let Poll::Ready(answer) = Pin::new(&mut *call).poll(context) {
                        answer.expect("an answer");
                        counted.set(counted.get() + 1);
                        *call = client.echo(&bytes);
                    }
                }
                Poll::<()>::Pending
            })
            .await;
        });
        drop(program);
        answered
    }

    /// Answers within so many milliseconds.
    fn rate(&mut self, answered: &[Answered], millis: u64) -> u64 {
        let sum = |answered: &[Answered]| answered.iter().map(|it| it.get()).sum::<u64>();
        let before = sum(answered);
        self.rack.run_for(millis * MILLISECOND);
        sum(answered) - before
    }
}

const WAYS: [&str; 5] = ["write_imm", "datagram", "send_recv", "rfp", "scale"];

/// The answers of a steady load in 10 ms, after so many.
fn steady(options: &str, calls: usize, bytes: usize, after_millis: u64) -> u64 {
    let mut place = Place::new(options);
    let answered = [place.calling(calls, bytes)];
    place.rack.run_for(after_millis * MILLISECOND);
    place.rate(&answered, 10)
}

/// Wherever it begins: on `datagram`, and on `rfp`.
#[test]
fn a_connection_ends_up_where_calls_take_least() {
    for (calls, bytes) in [(1, 32), (32, 32), (4, 4000)] {
        let fixed = WAYS.map(|way| (way, steady(&format!("backend={way}"), calls, bytes, 1)));
        for excluded in [&["write_imm"][..], &["write_imm", "datagram", "send_recv"]] {
            let options = format!("backend=hybrid&exclude={}", excluded.join(","));
            let moving = steady(&options, calls, bytes, 60);
            let left = fixed.iter().filter(|(way, _)| !excluded.contains(way)).map(|way| way.1);
            let best = left.max().expect("a backend");
            println!("{calls} calls of {bytes} B, {fixed:?}: {options}: {moving}");
            assert!(moving * 10 >= best * 9, "{calls} calls of {bytes} B: {moving} of {best}");
        }
    }
}
