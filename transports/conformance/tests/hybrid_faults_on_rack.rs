//! A connection that moves, on a simulated rack, when something goes wrong while it does: what every call comes to, and how often it ran.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use farcall_core::metrics::{Metrics, MoveEvent};
use farcall_core::{ChannelOptions, DrivenServer, RpcError, Server};
use farcall_rack::{CpuCosts, Host, Rack, Task};
use farcall_transports_conformance::pattern;
use farcall_transports_conformance::service::{Handlers, Suite, SuiteClient, SuiteServer};
use farcall_verbs::sim::{Fault, FaultRates, NodeId, SimConfig};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const SECOND: u64 = 1_000 * MS;

/// Longer than it takes until a connection ends whose peer is silent.
const GONE_NS: u64 = 8 * SECOND;

struct Place {
    rack: Rack,
    server: NodeId,
    name: String,
    options: String,
    handlers: Arc<Handlers>,
    running: DrivenServer,
    /// The numbers of calls so far: each has one of its own.
    calls: Rc<Cell<u64>>,
    /// Programs end when their calls under way have.
    is_over: Rc<Cell<bool>>,
}

/// What the calls of one client have come to.
#[derive(Default)]
struct Record {
    answered: Vec<u64>,
    failed: Vec<(u64, RpcError)>,
    given_up: Vec<u64>,
    metrics: Option<Metrics>,
}

type Shared = Rc<RefCell<Record>>;

/// How a client calls.
#[derive(Clone, Copy)]
struct Load {
    /// Calls under way at a time.
    at_once: usize,
    /// A call that is not answered at the next look is given up, for one in so many; 0: none.
    gives_up: u64,
    /// A pause after each answer, for one call at a time.
    pause: Duration,
    /// Another connection is made when one has ended.
    reconnects: bool,
}

impl Load {
    const fn of(at_once: usize) -> Load {
        Load { at_once, gives_up: 0, pause: Duration::ZERO, reconnects: false }
    }
}

fn serve(rack: &mut Rack, address: &str, handlers: &Arc<Handlers>) -> DrivenServer {
    let suite = SuiteServer::from(Arc::clone(handlers));
    rack.serve(address, Server::builder().service(suite).threads(2)).expect("serve")
}

impl Place {
    /// A server of these backends, which is dialled as `hybrid` with these options.
    fn new(seed: u64, backends: &str, options: &str) -> Place {
        let mut rack = Rack::with_config(seed, SimConfig::default());
        rack.set_cpu_costs(CpuCosts::default());
        let server = rack.add_node();
        let name = format!("sim://{server}/suite");
        let handlers = Arc::new(Handlers::default());
        let running = serve(&mut rack, &format!("{name}?backend={backends}{options}"), &handlers);
        let options = options.to_owned();
        let (calls, is_over) = (Rc::default(), Rc::default());
        Place { rack, server, name, options, handlers, running, calls, is_over }
    }

    fn hybrid(seed: u64, options: &str) -> Place {
        Place::new(seed, "hybrid", options)
    }

    /// A client on a node of its own.
    fn calling(&mut self, load: Load) -> (NodeId, Task<()>, Shared) {
        let (node, record) = (self.rack.add_node(), Shared::default());
        let address = format!("{}?backend=hybrid{}", self.name, self.options);
        let (calls, is_over, told) =
            (Rc::clone(&self.calls), Rc::clone(&self.is_over), Rc::clone(&record));
        let program = self.rack.spawn_program(node, async move |host: Host| {
            // All connections that are made with these count their moves together.
            let options = ChannelOptions::default().timeout(Duration::from_secs(60));
            loop {
                let connected = host.connect_with::<SuiteClient>(&address, &options).await;
                match connected {
                    Ok(client) => {
                        told.borrow_mut().metrics = Some(client.channel().metrics());
                        run(&host, &client, load, (&calls, &is_over, &told)).await;
                    }
                    Err(error) => assert!(load.reconnects, "{error}"),
                }
                if !load.reconnects || is_over.get() {
                    break;
                }
            }
        });
        (node, program, record)
    }

    fn run_ms(&mut self, millis: u64) {
        self.rack.run_for(millis * MS);
    }

    /// No more calls begin; those under way end within that time.
    fn finish(&mut self, programs: &[Task<()>], within_ns: u64) {
        self.is_over.set(true);
        let until = self.rack.now_ns() + within_ns;
        while programs.iter().any(Task::is_running) && self.rack.now_ns() < until {
            self.rack.run_for(MS);
        }
        assert!(programs.iter().all(|it| !it.is_running()), "calls go on after {within_ns} ns");
        self.is_over.set(false);
    }

    /// What was answered ran once, and nothing ran twice or although its caller was told that it did not.
    fn check(&self, record: &Shared) {
        let record = record.borrow();
        for id in &record.answered {
            assert_eq!(self.handlers.tallied(*id), 1, "call {id} was answered");
        }
        for (id, error) in &record.failed {
            let most = u64::from(error.may_have_run());
            let ran = self.handlers.tallied(*id);
            assert!(ran <= most, "call {id} ran {ran} times, and has failed: {error}");
        }
        for id in &record.given_up {
            assert!(self.handlers.tallied(*id) <= 1, "call {id} was given up");
        }
    }

    /// Runs for so long; and then, if that is wanted, until a connection moves.
    fn run_until_moving(&mut self, least_ns: u64, is_wanted: bool) {
        self.rack.run_for(least_ns);
        let until = self.rack.now_ns() + 40 * MS;
        while is_wanted && !self.is_moving() && self.rack.now_ns() < until {
            self.rack.run_for(50 * US);
        }
    }

    /// Some connection has two lanes: it moves.
    fn is_moving(&self) -> bool {
        self.running.metrics().connections(99).iter().any(|it| it.lanes.len() > 1)
    }
}

fn moves(record: &Shared, event: MoveEvent) -> u64 {
    record.borrow().metrics.as_ref().map_or(0, |metrics| metrics.moves(event))
}

/// Calls until it is over, or a call has failed.
async fn run(
    host: &Host,
    client: &SuiteClient,
    load: Load,
    (calls, is_over, told): (&Cell<u64>, &Cell<bool>, &RefCell<Record>),
) {
    let begin = || {
        let id = calls.get();
        calls.set(id + 1);
        (id, client.tally(id))
    };
    let mut has_failed = false;
    let mut under_way: Vec<_> = (0..load.at_once).map(|_| Some(begin())).collect();
    while under_way.iter().any(Option::is_some) {
        poll_fn(|context| {
            let mut news = false;
            for place in &mut under_way {
                while let Some((id, call)) = place {
                    let Poll::Ready(ended) = Pin::new(call).poll(context) else { break };
                    news = true;
                    match ended {
                        Ok(ran) => {
                            assert_eq!(ran, 1, "call {id} has run before");
                            told.borrow_mut().answered.push(*id);
                        }
                        Err(error) => {
                            has_failed = true;
                            told.borrow_mut().failed.push((*id, error));
                        }
                    }
                    let goes_on = !is_over.get() && !has_failed;
                    *place = (goes_on && load.pause.is_zero()).then(begin);
                    if let Some((id, _)) = place
                        && load.gives_up > 0
                        && id.is_multiple_of(load.gives_up)
                    {
                        break;
                    }
                }
                // Polled once, so that it is under way.
                if let Some((id, call)) = place
                    && load.gives_up > 0
                    && id.is_multiple_of(load.gives_up)
                    && Pin::new(call).poll(context).is_pending()
                {
                    told.borrow_mut().given_up.push(*id);
                    *place = (!is_over.get() && !has_failed).then(begin);
                    context.waker().wake_by_ref();
                }
            }
            if news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if !load.pause.is_zero() && !is_over.get() && !has_failed {
            host.sleep(load.pause).await;
            under_way[0] = Some(begin());
        }
    }
}

#[test]
fn calls_of_a_full_window_all_end_while_it_moves() {
    for window in [1, 4, 32] {
        let mut place = Place::hybrid(window, &format!("&window={window}"));
        let (_, program, record) = place.calling(Load::of(3 * window as usize));
        place.run_ms(25);
        place.finish(&[program], MS);
        place.check(&record);
        assert_eq!(record.borrow().failed, []);
        assert!(moves(&record, MoveEvent::Tried) >= 3, "window {window}: it does not move");
    }
}

#[test]
fn a_server_that_dies_while_clients_move_ends_their_calls() {
    let mut while_moving = 0;
    for half in 0..12 {
        let mut place = Place::hybrid(3 + half, "&window=8");
        let clients: Vec<_> = (0..2).map(|_| place.calling(Load::of(8))).collect();
        place.run_until_moving(MS + half * 500 * US, half % 2 == 0);
        while_moving += u32::from(place.is_moving());
        place.rack.inject(Fault::KillNode(place.server));
        let (programs, records): (Vec<_>, Vec<_>) =
            clients.into_iter().map(|(_, program, record)| (program, record)).unzip();
        place.finish(&programs, GONE_NS);
        for record in &records {
            place.check(record);
            let is_gone = |(_, error): &(u64, RpcError)| matches!(error, RpcError::PeerGone { .. });
            let record = record.borrow();
            let failed = &record.failed;
            assert!(!failed.is_empty() && failed.iter().all(is_gone), "{failed:?}");
        }
        // The next server has clients again, which move.
        place.rack.node(place.server).restart();
        let address = format!("{}?backend=hybrid{}", place.name, place.options);
        place.running = serve(&mut place.rack, &address, &place.handlers);
        let (_, program, record) = place.calling(Load::of(8));
        place.run_ms(5);
        place.finish(&[program], MS);
        place.check(&record);
        assert!(record.borrow().failed.is_empty() && moves(&record, MoveEvent::Tried) > 0);
    }
    assert!(while_moving >= 4, "{while_moving} of 12 died while a client moved");
}

#[test]
fn a_client_that_dies_while_it_moves_leaves_no_connection() {
    let mut while_moving = 0;
    for half in 0..12 {
        let mut place = Place::hybrid(3 + half, "&window=8");
        let (dies, _, _) = place.calling(Load::of(8));
        let (_, program, record) =
            place.calling(Load { pause: Duration::from_micros(300), ..Load::of(1) });
        place.run_until_moving(MS + half * 500 * US, half % 2 == 0);
        while_moving += u32::from(place.is_moving());
        place.rack.inject(Fault::KillNode(dies));
        place.rack.run_for(GONE_NS / 100);
        place.finish(&[program], MS);
        place.check(&record);
        assert_eq!(record.borrow().failed, [], "of the other client");
        place.rack.run_for(GONE_NS);
        assert_eq!(place.running.connections(), 0);
        assert_eq!(place.running.metrics().connections(9), []);
    }
    assert!(while_moving >= 4, "{while_moving} of 12 died while a client moved");
}

#[test]
fn large_messages_under_way_arrive_while_small_calls_make_it_move() {
    const BYTES: usize = 3 << 20;
    let mut place = Place::hybrid(5, "&window=16");
    let (node, record) = (place.rack.add_node(), Shared::default());
    let address = format!("{}?backend=hybrid&window=16", place.name);
    let (calls, is_over, told) =
        (Rc::clone(&place.calls), Rc::clone(&place.is_over), Rc::clone(&record));
    let large = Rc::new(Cell::new(0));
    let counted = Rc::clone(&large);
    let program = place.rack.spawn_program(node, async move |host: Host| {
        let options = ChannelOptions::default().timeout(Duration::from_secs(60));
        let client: SuiteClient = host.connect_with(&address, &options).await.expect("connect");
        told.borrow_mut().metrics = Some(client.channel().metrics());
        let mut small = std::pin::pin!(run(&host, &client, Load::of(4), (&calls, &is_over, &told)));
        let mut long = std::pin::pin!(async {
            for seed in 0.. {
                let sent = pattern::make(seed, BYTES);
                assert_eq!(client.check(seed, &sent).await, Ok(BYTES as u64));
                pattern::assert_is(
                    seed,
                    BYTES,
                    &client.make(seed, BYTES as u64).await.expect("make"),
                );
                counted.set(seed + 1);
                if is_over.get() {
                    break;
                }
            }
        });
        let mut ended = [false; 2];
        poll_fn(|context| {
            ended[0] = ended[0] || small.as_mut().poll(context).is_ready();
            ended[1] = ended[1] || long.as_mut().poll(context).is_ready();
            if ended == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    place.run_ms(60);
    place.finish(&[program], SECOND);
    place.check(&record);
    assert_eq!(record.borrow().failed, []);
    assert!(large.get() >= 2 && moves(&record, MoveEvent::Tried) >= 2, "{} large", large.get());
}

#[test]
fn calls_that_are_given_up_while_it_moves_run_at_most_once_and_leave_a_full_window() {
    let mut place = Place::hybrid(3, "&window=8");
    let (_, program, record) = place.calling(Load { gives_up: 3, ..Load::of(16) });
    place.run_ms(25);
    place.finish(&[program], MS);
    place.check(&record);
    assert_eq!(record.borrow().failed, []);
    assert!(record.borrow().given_up.len() > 1_000 && moves(&record, MoveEvent::Tried) >= 3);
}

#[test]
fn a_server_that_winds_down_while_clients_move_ends_their_calls() {
    let mut while_moving = 0;
    for half in 0..12 {
        let mut place = Place::hybrid(3 + half, "&window=8");
        let clients: Vec<_> = (0..3).map(|_| place.calling(Load::of(8))).collect();
        place.run_until_moving(MS + half * 500 * US, half % 2 == 0);
        while_moving += u32::from(place.is_moving());
        place.running.shut_down(Duration::from_millis(20));
        let (programs, records): (Vec<_>, Vec<_>) =
            clients.into_iter().map(|(_, program, record)| (program, record)).unzip();
        place.finish(&programs, 2 * SECOND);
        place.run_ms(2_000);
        assert!(place.running.is_down());
        for record in &records {
            place.check(record);
            for (id, error) in &record.borrow().failed {
                let ends = matches!(error, RpcError::PeerGone { .. } | RpcError::Refused { .. });
                assert!(ends, "call {id}: {error}");
            }
        }
    }
    assert!(while_moving >= 4, "{while_moving} of 12 ended while a client moved");
}

#[test]
fn a_fifth_of_all_datagrams_lost_fails_no_call() {
    let mut place = Place::hybrid(7, "&window=8");
    let rates = FaultRates::default().datagram_loss(0.2).unreliable_loss(0.2);
    place.rack.inject(Fault::Rates(rates));
    let (_, program, record) = place.calling(Load::of(8));
    place.run_ms(100);
    place.finish(&[program], SECOND);
    place.check(&record);
    assert_eq!(record.borrow().failed, []);
    assert!(moves(&record, MoveEvent::Tried) >= 4);
}

/// Reliable connections take long to repair that, and give up after some attempts: then clients make others.
#[test]
fn a_fifth_of_everything_lost_ends_calls_once() {
    let (mut answered, mut tried, mut lost) = (0, 0, 0);
    for seed in 0..6 {
        // It begins on `datagram`, which goes on with less loss of time.
        let mut place = Place::hybrid(seed, "&window=8&exclude=write_imm");
        let rates =
            FaultRates::default().datagram_loss(0.2).unreliable_loss(0.2).reliable_loss(0.2);
        place.rack.inject(Fault::Rates(rates));
        let (_, program, record) = place.calling(Load { reconnects: true, ..Load::of(8) });
        place.run_ms(500);
        place.rack.inject(Fault::Rates(FaultRates::default()));
        place.finish(&[program], GONE_NS);
        place.check(&record);
        answered += record.borrow().answered.len();
        tried += moves(&record, MoveEvent::Tried);
        lost += moves(&record, MoveEvent::LaneLost);
    }
    println!("{answered} answered, {tried} tried, {lost} lanes lost");
    assert!(answered > 1_000 && tried >= 6);
}

#[test]
fn many_clients_that_move_at_once_lose_no_call_and_do_not_stay_in_step() {
    // Fewer than a server advises.
    const CLIENTS: usize = 12;
    let mut place = Place::hybrid(9, "&window=4");
    let clients: Vec<_> = (0..CLIENTS).map(|_| place.calling(Load::of(2))).collect();
    let mut at_once = Vec::new();
    for _ in 0..60 {
        place.run_ms(1);
        let connections = place.running.metrics().connections(99);
        at_once.push(connections.iter().filter(|it| it.lanes.len() > 1).count());
    }
    assert_eq!(place.running.connections(), CLIENTS);
    let (programs, records): (Vec<_>, Vec<_>) =
        clients.into_iter().map(|(_, program, record)| (program, record)).unzip();
    place.finish(&programs, 10 * MS);
    for record in &records {
        place.check(record);
        assert_eq!(record.borrow().failed, []);
        assert!(moves(record, MoveEvent::Tried) >= 3);
    }
    place.run_ms(100);
    assert_eq!(place.running.connections(), 0);
    println!("moving at once, each millisecond: {at_once:?}");
    // They began together; the pauses after the first trials differ.
    let most = at_once[30..].iter().max().expect("some");
    assert!(*most <= CLIENTS * 3 / 4, "{most} of {CLIENTS} moved at once: {at_once:?}");
}

#[test]
fn ways_that_cannot_be_opened_are_tried_less_and_less() {
    let mut place = Place::new(4, "write_imm", "");
    let load = Load { pause: Duration::from_micros(300), ..Load::of(1) };
    let (_, program, record) = place.calling(load);
    place.run_ms(100);
    let soon = moves(&record, MoveEvent::NotOpened);
    place.run_ms(5_000);
    let later = moves(&record, MoveEvent::NotOpened);
    place.finish(&[program], MS);
    place.check(&record);
    assert_eq!(record.borrow().failed, []);
    assert_eq!(moves(&record, MoveEvent::Tried), 0);
    // Four ways, whose pauses double from 20 ms on.
    assert!((4..=16).contains(&soon) && (soon + 8..=4 * 9).contains(&later), "{soon}, {later}");
}
