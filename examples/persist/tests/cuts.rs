//! Power cuts of simulated servers whose memory is written to: in each cell of the table of `farcall_persist::ways`, a cell that says
//! durable loses nothing, and a cell that says not durable loses something in the same test.
//!
//! `FARCALL_PERSIST_CUTS=100000 cargo test -p farcall-persist --features sim --test cuts -- --nocapture` cuts more often than the default.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farcall::Server;
use farcall::memory::{
    Completion, Flusher, Memory, MemoryError, MemoryServer, Outcome, Region, Remote, RemoteMemory,
    Rights, Until,
};
use farcall::rack::sim::{Durability, FaultRates, Landing, NodeId, SimConfig};
use farcall::rack::{Host, Rack};
use farcall_persist::ways::{Domain, Machine, NativeFlush, Way, Writer};

/// How many cuts there are by default, in all cells together.
const CUTS: u64 = 10_800;

/// Records that a client writes at most before the power fails. Each ends in the middle of a line.
const SLOTS: usize = 72;
const RECORD_BYTES: usize = 136;
const LEN: usize = SLOTS * RECORD_BYTES;

/// A sync of a disk whose cache is protected.
const SYNC: Duration = Duration::from_micros(10);

/// What the simulated server of a machine keeps.
fn durability(machine: Machine) -> Durability {
    let adr = Durability::default();
    let of_domain = match machine.domain {
        Domain::AdrDdioOn => adr,
        Domain::AdrDdioOff => adr.ddio(false),
        Domain::Eadr => adr.eadr(true),
        Domain::Battery => adr.battery(true),
        Domain::File => Durability::file(SYNC),
    };
    of_domain.flush_through_caches(machine.flush == NativeFlush::ThroughCaches)
}

/// A rack of that machine. By the seed, WRITEs land in pieces, after their completion, or are lost and sent again.
fn config(machine: Machine, seed: u64) -> SimConfig {
    let config = SimConfig::default().durability(durability(machine));
    let in_pieces = config.clone().landing(Landing::AnyOrder);
    let late = in_pieces.clone().delivered_late(Duration::from_micros(3));
    match seed % 4 {
        0 => config,
        1 => in_pieces,
        2 => late,
        _ => late.faults(FaultRates::default().reliable_loss(0.02).connected_delay(0.05)),
    }
}

fn record(number: usize) -> [u8; RECORD_BYTES] {
    [number as u8 + 1; RECORD_BYTES]
}

fn open(rack: &Rack, node: NodeId) -> (Memory, Region) {
    let memory = Memory::on(&rack.node(node).device()).unwrap();
    let region = memory.persistent_region("log", LEN).unwrap();
    (memory, region)
}

/// Writes records one after the other, and counts those that have ended.
async fn write_records(host: Host, address: String, log: Remote, way: Way, ended: Rc<Cell<usize>>) {
    let memory: RemoteMemory = host.connect(&address).await.unwrap();
    let writer = Writer::unchecked(memory, way);
    for number in 0..SLOTS {
        let start = (number * RECORD_BYTES) as u64;
        let slot = log.slice(start..start + RECORD_BYTES as u64).unwrap();
        if writer.write(&slot, record(number).to_vec()).await.is_err() {
            // The server has lost its power.
            return;
        }
        ended.set(number + 1);
    }
}

/// Cuts the power of a server to which a client writes. Returns how many writes had ended, and how many of these are lost.
fn cut(way: Way, machine: Machine, seed: u64) -> (usize, usize) {
    let mut rack = Rack::with_config(seed, config(machine, seed));
    let [server, client] = [(); 2].map(|()| rack.add_node());
    let (memory, region) = open(&rack, server);
    let log = region.lend(.., Rights::READ | Rights::WRITE, Until::REVOKED).unwrap();
    let address = format!("sim://{server}/log");
    let builder = Server::builder().service(MemoryServer::new(memory));
    let serving = rack.serve(&address, builder).unwrap();
    let ended = Rc::new(Cell::new(0));
    let counted = Rc::clone(&ended);
    rack.spawn_program(client, move |host| write_records(host, address, log, way, counted));
    while ended.get() < 2 {
        assert!(rack.step(), "{way}: the rack is idle before a record is written");
    }
    rack.run_for(seed.wrapping_mul(7_919) % 120_000);
    rack.node(server).power_loss();
    let ended = ended.get();
    drop((serving, region));
    rack.node(server).restart();
    let (_memory, region) = open(&rack, server);
    let is_lost = |number: &usize| {
        let mut found = [0; RECORD_BYTES];
        region.read(number * RECORD_BYTES, &mut found);
        found != record(*number)
    };
    (ended, (0..ended).filter(is_lost).count())
}

/// The machines of the table: each domain, with what its NIC's FLUSH may do.
fn machines() -> Vec<Machine> {
    let mut machines: Vec<_> = Domain::ALL
        .into_iter()
        .map(|domain| Machine { domain, flush: NativeFlush::ToController })
        .collect();
    machines.push(Machine { domain: Domain::AdrDdioOn, flush: NativeFlush::ThroughCaches });
    machines
}

#[test]
fn cells_that_say_durable_lose_nothing_and_the_others_lose_something() {
    let cuts = std::env::var("FARCALL_PERSIST_CUTS").map_or(CUTS, |cuts| cuts.parse().unwrap());
    let cells: Vec<_> =
        machines().into_iter().flat_map(|machine| Way::ALL.map(|way| (way, machine))).collect();
    let of_each = cuts.div_ceil(cells.len() as u64);
    let mut wrong = Vec::new();
    for (way, machine) in cells {
        let (mut ended, mut lost, mut losing) = (0, 0, 0);
        for seed in 0..of_each {
            let (of_cut, lost_in_cut) = cut(way, machine, seed);
            (ended, lost) = (ended + of_cut, lost + lost_in_cut);
            losing += u64::from(lost_in_cut > 0);
        }
        let (domain, flush) = (machine.domain, machine.flush);
        let verdict = way.durability(machine);
        let says = if verdict.is_ok() { "durable" } else { "refused" };
        println!(
            "{way:18} {domain:18} {flush:?}: {says}, {of_each} cuts, {ended} writes ended, {lost} lost in {losing} cuts"
        );
        assert!(ended as u64 >= 4 * of_each, "{way}, {domain}: {ended} writes are too few");
        // A refused cell that loses nothing would prove nothing.
        if verdict.is_ok() != (lost == 0) {
            wrong.push(format!("{way}, {domain}, {flush:?}: {says}, and {lost} of {ended} lost"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a client of a server with persistent memory.
fn with_memory<T: 'static>(
    machine: Machine,
    program: impl AsyncFnOnce(RemoteMemory, Remote) -> T + 'static,
) -> T {
    let mut rack = Rack::with_config(1, config(machine, 0));
    let [server, client] = [(); 2].map(|()| rack.add_node());
    let (memory, region) = open(&rack, server);
    let log = region.lend(.., Rights::READ | Rights::WRITE, Until::REVOKED).unwrap();
    let address = format!("sim://{server}/log");
    let builder = Server::builder().service(MemoryServer::new(memory));
    let _serving = rack.serve(&address, builder).unwrap();
    let ended = rack.run(client, async move |host: Host| {
        program(host.connect(&address).await.unwrap(), log).await
    });
    ended.expect("it ends")
}

#[test]
fn a_way_that_is_not_durable_is_refused_with_the_reason() {
    let machine = Machine { domain: Domain::AdrDdioOn, flush: NativeFlush::ToController };
    with_memory(machine, async move |memory, log| {
        let refused = Writer::new(memory.clone(), Way::WriteAndRead, machine).unwrap_err();
        assert!(refused.to_string().contains("last-level cache"), "{refused}");
        let writer = Writer::new(memory, Way::WriteAndCall, machine).unwrap();
        writer.write(&log.slice(..8).unwrap(), &b"8 bytes."[..]).await.unwrap();
    });
}

#[test]
fn a_flush_says_persistent_and_the_capabilities_say_who_flushes() {
    let machine = Machine { domain: Domain::AdrDdioOff, flush: NativeFlush::ToController };
    with_memory(machine, async |memory, log| {
        let (calls, lane) = (memory.clone(), memory.one_sided());
        let first = log.slice(..8).unwrap();
        for (memory, flusher) in [(calls, Flusher::Server), (lane, Flusher::Device)] {
            let batch = memory.batch().write(&first, &b"8 bytes."[..]).flush(&first);
            // The first operation opens the lane, and the second one takes it.
            batch.clone().post().await.unwrap();
            let outcomes = batch.post().await.unwrap();
            let caps = memory.caps();
            assert_eq!(outcomes, [Outcome::Written, Outcome::Flushed]);
            assert_eq!(caps.flusher, flusher);
            let meaning = outcomes.iter().map(|it| caps.completion_of(it));
            assert!(meaning.eq([Completion::Visible, Completion::Persistent]));
        }
    });
}

#[test]
fn a_batch_that_is_only_one_sided_never_travels_as_a_call() {
    let machine = Machine { domain: Domain::AdrDdioOff, flush: NativeFlush::ToController };
    with_memory(machine, async |memory, log| {
        let without_lane = memory.batch().write(&log, vec![1; LEN]).only_one_sided().post().await;
        let refused = without_lane.unwrap_err();
        assert!(matches!(refused.error, MemoryError::NotOneSided { .. }), "{refused}");
        let memory = memory.one_sided();
        let read_only = log.slice(..16).unwrap();
        // Atomic operations were not lent.
        let word = log.word(0).unwrap();
        let refused = memory.batch().fetch_add(&word, 1).only_one_sided().post().await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused.error, MemoryError::NotOneSided { .. }), "{refused}");
        let outcomes = memory.batch().read(&read_only).only_one_sided().post().await.unwrap();
        assert_eq!(outcomes[0].bytes(), [0; 16]);
    });
}
