//! Crowds on a simulated rack: thousands of sessions that come and go, and servers that do not poll for a while.

use std::{cell::Cell, pin::Pin, rc::Rc, sync::Arc, task::Poll, time::Duration};

use farcall_core::{
    ChannelOptions, Connection, ConnectionOptions, DrivenServer, PollClient, RpcError, Server,
    Site, time::Progress, transport::DialOptions,
};
use farcall_rack::{CpuCosts, Host, Rack, Task, site_of};
use farcall_transports_conformance::backends;
use farcall_transports_conformance::service::{
    Handlers, SuiteClient, SuitePollClient, SuiteServer,
};
use farcall_verbs::sim::{Costs, NodeId, SimConfig};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

struct Place {
    rack: Rack,
    server: NodeId,
    address: String,
    running: DrivenServer,
}

fn place(backend: &str, options: &str) -> Place {
    place_on(Rack::new(5), backend, options)
}

fn place_on(mut rack: Rack, backend: &str, options: &str) -> Place {
    let server = rack.add_node();
    let address = format!("sim://{server}/suite?backend={backend}&{options}");
    let suite = SuiteServer::from(Arc::new(Handlers::default()));
    let running = Server::builder().service(suite).threads(1);
    let running = rack.serve(&address, running).expect("serve");
    Place { rack, server, address, running }
}

fn backends() -> impl Iterator<Item = &'static str> {
    backends::ALL.iter().map(|backend| backend.name)
}

fn options(share: bool) -> ChannelOptions {
    ChannelOptions::default().timeout(Duration::from_secs(60)).share(share)
}

impl Place {
    /// A program on that node, with a connection.
    fn connected<F: Future + 'static>(
        &mut self,
        node: NodeId,
        options: ChannelOptions,
        then: impl FnOnce(Host, SuiteClient) -> F + 'static,
    ) -> Task<F::Output> {
        let site = site_of(&self.rack.node(node));
        self.connected_at(node, &site, options, then)
    }

    /// The same for a site that several programs have.
    fn connected_at<F: Future + 'static>(
        &mut self,
        node: NodeId,
        site: &Site,
        options: ChannelOptions,
        then: impl FnOnce(Host, SuiteClient) -> F + 'static,
    ) -> Task<F::Output> {
        let address = self.address.clone();
        self.rack.spawn_program_at(node, site, async move |host: Host| {
            let client = host.connect_with(&address, &options).await.expect("connect");
            then(host, client).await
        })
    }
}

#[test]
fn a_thousand_sessions_open_and_close_at_once() {
    for backend in backends() {
        let mut place = place(backend, "window=2&slot=1k&max_message=64k");
        let nodes: Vec<_> = (0..20).map(|_| place.rack.add_node()).collect();
        for round in 1..=2 {
            let programs: Vec<_> = (0..1000)
                .map(|who| {
                    place.connected(
                        nodes[who % nodes.len()],
                        options(false),
                        async |host, client| {
                            let counted = client.tally(1).await.expect("tally");
                            // All of them are there at the same time.
                            host.sleep(Duration::from_millis(50)).await;
                            counted
                        },
                    )
                })
                .collect();
            place.rack.run_for(30 * MILLISECOND);
            assert_eq!(place.running.connections(), 1000, "{backend}");
            place.rack.run_for(200 * MILLISECOND);
            let mut counted: Vec<_> = programs.iter().map(|it| it.take().expect("over")).collect();
            counted.sort_unstable();
            // Each call has run, and none twice.
            assert_eq!(counted, (1000 * (round - 1) + 1..=1000 * round).collect::<Vec<u64>>());
            assert_eq!(place.running.connections(), 0, "{backend}");
        }
    }
}

/// Waits for all calls of a program at the same time.
async fn all<F: Future + Unpin>(mut calls: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<_> = calls.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (call, result) in calls.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(output) = Pin::new(call).poll(context)
            {
                *result = Some(output);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// While a server does not poll, more requests arrive than it has receives: requests are lost, but no call is.
#[test]
fn calls_that_find_no_receive_are_made_again() {
    const CLIENTS: usize = 64;
    const WINDOW: usize = 64;
    for shared in [false, true] {
        // Each request in a datagram of its own: twice as many as there are receives.
        let mut place = place("datagram", "window=64&without=coalescing");
        let nodes: Vec<_> = (0..4).map(|_| place.rack.add_node()).collect();
        let sites: Vec<_> = nodes.iter().map(|node| site_of(&place.rack.node(*node))).collect();
        let go = Rc::new(Cell::new(false));
        let programs: Vec<_> = (0..CLIENTS)
            .map(|who| {
                let (go, node) = (go.clone(), who % nodes.len());
                let options = options(shared);
                place.connected_at(nodes[node], &sites[node], options, async move |host, client| {
                    while !go.get() {
                        host.sleep(Duration::from_micros(10)).await;
                    }
                    let calls = (0..WINDOW).map(|_| client.tally(1)).collect();
                    let counted: Result<Vec<u64>, RpcError> =
                        all(calls).await.into_iter().collect();
                    counted.expect("tally")
                })
            })
            .collect();
        place.rack.run_for(10 * MILLISECOND);
        place.rack.node(place.server).pause(3 * MILLISECOND);
        go.set(true);
        place.rack.run_for(SECOND);
        let mut counted: Vec<_> =
            programs.iter().flat_map(|program| program.take().expect("over")).collect();
        counted.sort_unstable();
        assert_eq!(counted, (1..=(CLIENTS * WINDOW) as u64).collect::<Vec<_>>());
    }
}

/// A server that does not poll for longer than it may be silent is given up by clients that wait for it; idle clients stay
/// connected, as its node is alive. When it polls again, it serves them and new clients.
#[test]
fn a_server_that_stops_polling_is_given_up_by_waiting_clients() {
    let mut place = place("datagram", "window=4&silence=2s");
    let node = place.rack.add_node();
    let waiting = place.connected(node, options(false), async |host: Host, client| {
        host.sleep(Duration::from_millis(20)).await;
        (client.tally(1).await, host.now())
    });
    let idle = place.connected(node, options(false), async |host: Host, client| {
        host.sleep(Duration::from_secs(8)).await;
        client.tally(2).await
    });
    place.rack.run_for(10 * MILLISECOND);
    place.rack.node(place.server).pause(5 * SECOND);
    let stopped = place.rack.now_ns();
    place.rack.run_for(4 * SECOND);
    let (error, noticed) = waiting.take().expect("it has given up");
    assert!(matches!(error, Err(RpcError::PeerGone { may_have_run: true, .. })), "{error:?}");
    let noticed = noticed.as_nanos() as u64 - stopped;
    assert!((2 * SECOND..3 * SECOND).contains(&noticed), "after {noticed} ns");
    place.rack.run_for(10 * SECOND);
    assert_eq!(idle.take(), Some(Ok(1)));
    let late = place.connected(node, options(false), async |_, client| client.tally(2).await);
    place.rack.run_for(SECOND);
    assert_eq!(late.take(), Some(Ok(2)));
    assert_eq!(place.running.connections(), 0, "all have ended");
}

/// A session that is not polled holds nothing that the other sessions of its thread need.
#[test]
fn a_session_that_is_not_polled_stalls_none_of_its_thread() {
    let mut place = place("datagram", "window=64");
    let node = place.rack.add_node();
    let address = place.address.clone();
    let task = place.rack.spawn_program(node, async move |host: Host| {
        let mut idle = Vec::new();
        for _ in 0..50 {
            let dial = DialOptions { share: true, ..DialOptions::default() };
            let transport = host.dial(&address, SuitePollClient::DESCRIPTION, &dial).await;
            let options = ConnectionOptions::default();
            let connection = Connection::new(transport.expect("dial"), host.site(), &options);
            let mut client = SuitePollClient::from_connection(connection);
            // A window of calls whose responses are not polled.
            let calls: Vec<_> =
                (0..64).map(|_| client.start_make(1, 1000).expect("room")).collect();
            client.connection().turn(farcall_core::time::Instant::from_nanos(host.node().now_ns()));
            idle.push((client, calls));
        }
        let client: SuiteClient =
            host.connect_with(&address, &options(true)).await.expect("connect");
        for call in 1..=500 {
            assert_eq!(client.tally(1).await, Ok(call));
        }
        let done = host.now();
        // All their responses have arrived.
        let now = farcall_core::time::Instant::from_nanos(host.node().now_ns());
        let mut answered = 0;
        for _ in 0..2_000 {
            host.sleep(Duration::from_micros(100)).await;
            let now = now + (host.now() - done);
            for (client, calls) in &mut idle {
                client.connection().turn(now);
                calls.retain_mut(|call| match client.take(call) {
                    None => true,
                    Some(answer) => {
                        assert_eq!(answer.expect("make").len(), 1000);
                        answered += 1;
                        false
                    }
                });
            }
        }
        (done, answered)
    });
    place.rack.run_for(SECOND);
    let (done, answered) = task.take().expect("it has ended");
    assert!(done < Duration::from_millis(20), "{done:?}");
    assert_eq!(answered, 50 * 64);
}

/// Connections that are polled together send under one doorbell, at the same rate.
#[test]
fn connections_that_take_turns_together_ring_once() {
    let run = |together: bool| {
        let mut rack = Rack::with_config(5, SimConfig::default().costs(Costs::connectx3()));
        rack.set_cpu_costs(CpuCosts::FREE);
        let mut place = place_on(rack, "datagram", "window=4");
        let node = place.rack.add_node();
        let address = place.address.clone();
        let task = place.rack.spawn_program(node, async move |host: Host| {
            let mut clients = Vec::new();
            for _ in 0..16 {
                let dial = DialOptions { share: true, ..DialOptions::default() };
                let transport = host.dial(&address, SuitePollClient::DESCRIPTION, &dial).await;
                let (transport, options) = (transport.expect("dial"), ConnectionOptions::default());
                let connection = Connection::new(transport, host.site(), &options);
                clients.push((SuitePollClient::from_connection(connection), None));
            }
            let (mut answered, begun) = (0, host.now());
            let step = |now| {
                let mut progress = Progress::IDLE;
                let mut turns = || {
                    for (client, call) in &mut clients {
                        if call.is_none() {
                            *call = Some(client.start_tally(1).expect("room"));
                        }
                        let turn = client.connection().turn(now);
                        progress.worked += turn.worked;
                        progress.next = progress.next.earlier(turn.next);
                        if let Some(pending) = call
                            && let Some(answer) = client.take(pending)
                        {
                            answer.expect("tally");
                            *call = None;
                            answered += 1;
                            progress.worked += 1;
                        }
                    }
                };
                if together {
                    host.site().together(turns)
                } else {
                    turns()
                }
                if answered >= 3200 { Ok(()) } else { Err(progress) }
            };
            host.turns(step).await;
            host.now() - begun
        });
        place.rack.run_for(SECOND);
        task.take().expect("it has ended")
    };
    let (alone, together) = (run(false), run(true));
    assert!(together < alone * 9 / 10, "{together:?} together, {alone:?} each by itself");
}
