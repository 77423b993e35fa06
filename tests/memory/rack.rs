//! Lent memory on simulated racks: the cases of the suite, by calls and one-sided, and what only a rack shows.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use farcall::memory::{
    Carrier, Counted, Memory, MemoryCall, MemoryError, MemoryServer, PollMemory, RemoteMemory,
    Rights, Until,
};
use farcall::rack::{Host, Rack};
use farcall::{
    Bytes, ChannelOptions, Connection, ConnectionOptions, DialOptions, DrivenServer, PollClient,
    Server, ServiceClient,
};
use farcall_verbs::sim::{FaultRates, Landing, NodeId, SimConfig};

use crate::access::Polled;
use crate::lender::{Borrowed, Lender, LenderClient, LenderServer, REGION_BYTES};

/// A rack with a server that lends memory of its node's NIC.
struct Lending {
    rack: Rack,
    server: NodeId,
    client: NodeId,
    address: String,
    lender: Lender,
    _serving: DrivenServer,
}

impl Lending {
    fn new(seed: u64, config: SimConfig, backend: &str) -> Lending {
        let mut rack = Rack::with_config(seed, config);
        let [server, client] = [(); 2].map(|()| rack.add_node());
        let address = format!("sim://{server}/memory?backend={backend}");
        let (lender, _serving) = serve(&mut rack, server, &address);
        Lending { rack, server, client, address, lender, _serving }
    }

    /// The server's node has started again, and so does the server.
    fn serve_again(&mut self) {
        (self.lender, self._serving) = serve(&mut self.rack, self.server, &self.address);
    }

    fn run<T: 'static>(&mut self, program: impl AsyncFnOnce(Host, Borrowed) -> T + 'static) -> T {
        let address = self.address.clone();
        let ended = self.rack.run(self.client, async move |host| {
            let client = connect(&host, &address).await;
            program(host, client).await
        });
        ended.expect("it ends")
    }
}

fn serve(rack: &mut Rack, node: NodeId, address: &str) -> (Lender, DrivenServer) {
    let lender = Lender::of(Memory::on(&rack.node(node).device()).unwrap());
    let builder = Server::builder()
        .service(LenderServer::new(lender.clone()))
        .service(MemoryServer::new(lender.memory.clone()));
    let serving = rack.serve(address, builder).unwrap();
    (lender, serving)
}

async fn connect(host: &Host, address: &str) -> Borrowed {
    let options = ChannelOptions::default().also(RemoteMemory::DESCRIPTION);
    let lender: LenderClient = host.connect_with(address, &options).await.unwrap();
    let memory = RemoteMemory::on(lender.channel()).unwrap();
    Borrowed { memory, lender }
}

/// The same client, with one-sided operations: a lane is open.
async fn one_sided(client: Borrowed) -> Borrowed {
    let memory = client.memory.one_sided();
    let word = client.lender.lend(0, 8, Rights::READ.bits(), None).await.unwrap();
    for _ in 0..2 {
        memory.read(&word).await.unwrap();
    }
    assert_eq!(memory.caps().carrier, Carrier::OneSided);
    Borrowed { memory, ..client }
}

/// Runs a case over some backends.
pub(crate) fn run<F: Future<Output = ()> + 'static>(case: impl Fn(Borrowed) -> F + Copy + 'static) {
    for backend in ["write_imm", "datagram", "rfp"] {
        println!("{backend}");
        let mut lending = Lending::new(11, SimConfig::default(), backend);
        lending.run(async move |_, client| case(client).await);
    }
}

/// Runs a case with one-sided operations, also where bytes land in any order and late, and where messages are lost.
pub(crate) fn run_one_sided<F: Future<Output = ()> + 'static>(
    case: impl Fn(Borrowed) -> F + Copy + 'static,
) {
    for (what, seed, config, rates) in conditions() {
        for backend in ["write_imm", "datagram"] {
            println!("{backend}, {what}");
            let mut lending = Lending::new(seed, config.clone(), backend);
            lending.rack.set_fault_rates(rates);
            lending.run(async move |_, client| case(one_sided(client).await).await);
            assert!(lending.lender.memory.snapshot().lanes >= 1, "{what}");
        }
    }
}

/// Runs a case with a polling client, by calls and one-sided.
pub(crate) fn run_polled<F: Future<Output = ()> + 'static>(
    case: impl Fn(Borrowed<Polled>) -> F + Copy + 'static,
) {
    for (what, seed, config, rates) in conditions() {
        for one_sided in [false, true] {
            println!("{what}, one-sided: {one_sided}");
            let mut lending = Lending::new(seed, config.clone(), "write_imm");
            lending.rack.set_fault_rates(rates);
            let (address, lent) = (lending.address.clone(), lending.lender.clone());
            lending.run(async move |host, Borrowed { lender, .. }| {
                let description = <PollMemory as PollClient>::DESCRIPTION;
                let dialled = host.dial(&address, description, &DialOptions::default()).await;
                let options = ConnectionOptions::default();
                let connection = Connection::new(dialled.unwrap(), host.site(), &options);
                let memory = PollMemory::from_connection(connection);
                let memory = if one_sided { memory.one_sided() } else { memory };
                let memory = Polled::on_rack(memory, &host);
                if one_sided {
                    crate::open_lane(&memory, &lent).await;
                }
                case(Borrowed { lender, memory }).await;
            });
        }
    }
}

/// Where one-sided operations are tried: a name, a seed, a rack, and what goes wrong there.
fn conditions() -> [(&'static str, u64, SimConfig, FaultRates); 3] {
    let permuted = SimConfig::default().landing(Landing::AnyOrder);
    let lossy = FaultRates::default().reliable_loss(0.02).connected_delay(0.05);
    [
        ("all goes well", 11, SimConfig::default(), FaultRates::default()),
        ("bytes land in any order", 12, permuted.clone(), FaultRates::default()),
        ("messages are lost", 13, permuted, lossy),
    ]
}

/// Polls all of them together, until the last has ended.
async fn all<T: 'static>(calls: Vec<MemoryCall<T>>) -> Vec<Result<T, MemoryError>> {
    let mut calls: Vec<_> = calls.into_iter().map(Some).collect();
    let mut ended: Vec<_> = calls.iter().map(|_| None).collect();
    poll_fn(move |cx| {
        for (call, ended) in calls.iter_mut().zip(&mut ended) {
            let Some(under_way) = call else { continue };
            if let Poll::Ready(result) = Pin::new(under_way).poll(cx) {
                (*ended, *call) = (Some(result), None);
            }
        }
        let is_over = calls.iter().all(Option::is_none);
        if is_over { Poll::Ready(ended.drain(..).flatten().collect()) } else { Poll::Pending }
    })
    .await
}

#[test]
fn many_operations_are_under_way_at_once_and_need_no_core_of_the_owner() {
    let mut lending = Lending::new(21, SimConfig::default(), "write_imm");
    let server = lending.rack.node(lending.server);
    let (counts, took) = lending.run(async move |host, client| {
        let client = one_sided(client).await;
        let word = client.lender.lend(0, 8, Rights::ATOMIC.bits(), None).await.unwrap();
        client.memory.fetch_add(&word, 0).await.unwrap();
        server.pause(1_000_000_000);
        let begun = host.now();
        let counts = all((0..500).map(|_| client.memory.fetch_add(&word, 1)).collect()).await;
        (counts, host.now() - begun)
    });
    let expected: Vec<_> = (0..500).map(Ok).collect();
    assert_eq!(counts, expected, "they are done in the order in which they were posted");
    assert!(took < Duration::from_millis(2), "{took:?}");
}

/// A lease is no reason to ask the owner's CPU, and ends access by itself.
#[test]
fn a_lend_with_a_lease_is_used_one_sided_until_it_ends() {
    let mut lending = Lending::new(27, SimConfig::default(), "write_imm");
    let server = lending.rack.node(lending.server);
    lending.run(async move |host, client| {
        let client = one_sided(client).await;
        let word = client.lender.lend(0, 8, Rights::ATOMIC.bits(), Some(100)).await.unwrap();
        let lent = host.now();
        client.memory.fetch_add(&word, 1).await.unwrap();
        server.pause(10_000_000);
        let begun = host.now();
        assert_eq!(client.memory.fetch_add(&word, 1).await, Ok(1));
        assert!(host.now() - begun < Duration::from_millis(1), "it has asked the owner's CPU");
        let mut count = 2;
        let why = loop {
            match client.memory.fetch_add(&word, 1).await {
                Ok(before) => assert_eq!(before, count),
                Err(why) => break why,
            }
            count += 1;
        };
        assert_eq!(why, MemoryError::Expired);
        let lasted = host.now() - lent;
        let (least, most) = (Duration::from_millis(99), Duration::from_millis(101));
        assert!((least..most).contains(&lasted), "{lasted:?}");
        assert_eq!(client.lender.load(0, 8).await.unwrap()[..], u64::to_ne_bytes(count));
        assert_eq!(client.memory.fetch_add(&word, 1).await, Err(MemoryError::Expired));
    });
}

#[test]
fn beyond_what_waits_there_is_no_room() {
    let mut lending = Lending::new(22, SimConfig::default(), "write_imm");
    let full = lending.run(async move |_, client| {
        let client = one_sided(client).await;
        let word = client.lender.lend(0, 8, Rights::ATOMIC.bits(), None).await.unwrap();
        client.memory.fetch_add(&word, 0).await.unwrap();
        let ended = all((0..5_000).map(|_| client.memory.fetch_add(&word, 1)).collect()).await;
        let full =
            ended.iter().filter(|it| **it == Err(MemoryError::Full { what: Counted::Operations }));
        let (full, done) = (full.count(), ended.iter().filter(|it| it.is_ok()).count());
        assert_eq!(full + done, 5_000);
        assert_eq!(client.memory.fetch_add(&word, 1).await, Ok(done as u64), "it goes on");
        full
    });
    assert!((1..1_000).contains(&full), "{full}");
}

/// Buffers of operations that were given up are not another operation's before the device has left them.
#[test]
fn an_operation_that_is_given_up_keeps_its_buffer_until_it_has_completed() {
    for (what, seed, config, rates) in conditions() {
        let mut lending = Lending::new(seed, config, "write_imm");
        lending.rack.set_fault_rates(rates);
        lending.lender.region().write(0, &[7; REGION_BYTES]);
        lending.run(async move |_, client| {
            let client = one_sided(client).await;
            let rights = (Rights::READ | Rights::WRITE).bits();
            let lent = client.lender.lend(0, REGION_BYTES as u64, rights, None).await.unwrap();
            client.memory.read(&lent).await.unwrap();
            for round in 0..40 {
                let value = (round % 2 + 7) as u8;
                let bytes = Bytes::from(vec![value; REGION_BYTES]);
                client.memory.write(&lent, bytes.clone()).await.unwrap();
                let mut given_up: Vec<_> = (0..3).map(|_| client.memory.read(&lent)).collect();
                poll_fn(|cx| {
                    let ended = given_up.iter_mut().any(|it| Pin::new(it).poll(cx).is_ready());
                    assert!(!ended, "it takes some time");
                    Poll::Ready(())
                })
                .await;
                drop(given_up);
                assert_eq!(client.memory.read(&lent).await.unwrap(), bytes, "{what}, {round}");
            }
        });
    }
}

/// Writers go on across a revoke by the owner's own program. Once that has ended, the memory is the owner's.
#[test]
fn nothing_lands_after_a_revoke_on_any_rack() {
    for (what, first_seed, config, rates) in conditions() {
        for seed in 0..8 {
            let mut lending = Lending::new(first_seed * 100 + seed, config.clone(), "write_imm");
            lending.rack.set_fault_rates(rates);
            let region = lending.lender.region();
            let lent = region.lend(.., Rights::WRITE, Until::REVOKED).unwrap();
            let (memory, owned) = (lending.lender.memory.clone(), region.clone());
            let owner = lending.rack.spawn_program(lending.server, |host| async move {
                while owned.load_u64(REGION_BYTES - 8) == 0 {
                    host.sleep(Duration::from_micros(1)).await;
                }
                host.sleep(Duration::from_micros(seed * 3)).await;
                assert!(memory.start_revoke(&lent).await);
                owned.write(0, &[7; REGION_BYTES]);
            });
            lending.run(async move |host, client| {
                let client = one_sided(client).await;
                let bytes = Bytes::from(vec![0xff; REGION_BYTES]);
                loop {
                    let writes = (0..4).map(|_| client.memory.write(&lent, bytes.clone()));
                    let ended = all(writes.collect()).await;
                    if let Some(why) = ended.into_iter().find_map(Result::err) {
                        assert_eq!(why, MemoryError::Revoked, "{what}, {seed}");
                        break;
                    }
                }
                host.sleep(Duration::from_millis(5)).await;
            });
            assert!(!owner.is_running(), "{what}, {seed}: the revoke has not ended");
            let mut bytes = vec![0; REGION_BYTES];
            region.read(0, &mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 7), "{what}, {seed}: a write landed late");
        }
    }
}

/// In a plain handler nothing can wait on a rack: access ends at once, with the queue pair.
#[test]
fn a_revoke_that_cannot_wait_ends_the_lane() {
    let permuted = SimConfig::default().landing(Landing::AnyOrder);
    let mut lending = Lending::new(23, permuted, "write_imm");
    let region = lending.lender.region();
    let lent = region.lend(.., Rights::all(), Until::REVOKED).unwrap();
    let (memory, owned) = (lending.lender.memory.clone(), region.clone());
    lending.run(async move |host, client| {
        let client = one_sided(client).await;
        let bytes = Bytes::from(vec![0xff; REGION_BYTES]);
        client.memory.write(&lent, bytes.clone()).await.unwrap();
        let mut late = client.memory.write(&lent, bytes);
        poll_fn(|cx| {
            assert!(Pin::new(&mut late).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        // Some of it has landed.
        host.sleep(Duration::from_micros(8)).await;
        assert!(memory.revoke(&lent));
        owned.write(0, &[7; REGION_BYTES]);
        let late = late.await;
        assert!(late.as_ref().is_err_and(MemoryError::may_have_landed), "{late:?}");
        assert_eq!(client.memory.read(&lent).await, Err(MemoryError::Revoked));
    });
    let mut bytes = vec![0; REGION_BYTES];
    region.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 7), "a write landed late");
}

#[test]
fn without_its_owner_an_operation_says_that_it_may_have_landed() {
    let mut lending = Lending::new(24, SimConfig::default(), "write_imm");
    let server = lending.rack.node(lending.server);
    lending.run(async move |_, client| {
        let client = one_sided(client).await;
        let word = client.lender.lend(0, 8, Rights::all().bits(), None).await.unwrap();
        client.memory.fetch_add(&word, 1).await.unwrap();
        server.kill();
        let second = Duration::from_secs(1);
        let late = client.memory.fetch_add(&word, 1).timeout(10 * second).await;
        assert!(late.as_ref().is_err_and(MemoryError::may_have_landed), "{late:?}");
        let read = client.memory.read(&word).timeout(second).await;
        assert!(matches!(read, Err(MemoryError::Gone { .. })), "{read:?}");
    });
}

#[test]
fn what_a_former_life_of_the_owner_lent_is_refused() {
    let mut lending = Lending::new(25, SimConfig::default(), "write_imm");
    let server = lending.rack.node(lending.server);
    let lent = lending.run(async move |_, client| {
        let client = one_sided(client).await;
        let lent = client.lender.lend(0, 8, Rights::all().bits(), None).await.unwrap();
        client.memory.fetch_add(&lent, 1).await.unwrap();
        client.memory.fetch_add(&lent, 1).await.unwrap();
        server.kill();
        server.restart();
        lent
    });
    lending.serve_again();
    lending.run(async move |_, client| {
        let client = one_sided(client).await;
        for _ in 0..3 {
            assert_eq!(client.memory.fetch_add(&lent, 1).await, Err(MemoryError::FormerLife));
            assert_eq!(client.memory.read(&lent).await, Err(MemoryError::FormerLife));
        }
    });
}

#[test]
fn a_lane_ends_with_its_connection() {
    let mut lending = Lending::new(26, SimConfig::default(), "write_imm");
    let memory = lending.lender.memory.clone();
    lending.run(async move |host, client| {
        let client = one_sided(client).await;
        assert_eq!(memory.snapshot().lanes, 1);
        drop(client);
        host.sleep(Duration::from_millis(50)).await;
        assert_eq!(memory.snapshot().lanes, 0);
    });
}
