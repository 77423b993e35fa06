//! The cases of lent memory, one-sided over an RDMA device: `memory_on_device 'rdma://10.0.0.1:0?device=rxe0' rxe0`.
//!
//! A program, because the machine that has the device may not be the one that builds it.

#[path = "access.rs"]
#[expect(dead_code, reason = "it has no polling client")]
mod access;
#[path = "cases.rs"]
mod cases;
#[path = "lender.rs"]
#[expect(dead_code, reason = "other programs of tests use the rest")]
mod lender;
#[path = "revokes.rs"]
mod revokes;

use std::io::Write;
use std::time::{Duration, Instant};

use farcall::memory::{Carrier, Memory, MemoryError, MemoryServer, RemoteMemory, Rights, Until};
use farcall::{RunningServer, Server};

use self::lender::{Borrowed, Lender, LenderClient, LenderServer};

fn serve(address: &str, device: &str) -> (RunningServer, Lender) {
    let lender = Lender::of(Memory::open(device).expect("the device is there"));
    let server = Server::builder()
        .threads(2)
        .service(LenderServer::new(lender.clone()))
        .service(MemoryServer::new(lender.memory.clone()))
        .listen(address)
        .expect("the address is free");
    (server, lender)
}

/// A client with a lane, which is open.
fn connect(server: &RunningServer, lender: &Lender) -> Borrowed {
    let client = LenderClient::connect(server.address()).also::<RemoteMemory>().wait().unwrap();
    let memory = RemoteMemory::on(client.channel()).unwrap().one_sided();
    let word = lender.region().lend(0..8, Rights::READ, Until::REVOKED).unwrap();
    for _ in 0..2 {
        memory.read(&word).wait().unwrap();
    }
    assert_eq!(memory.caps().carrier, Carrier::OneSided, "there is no lane");
    Borrowed { lender: client, memory }
}

fn run<F: Future<Output = ()>>(place: &[String; 2], name: &str, case: impl Fn(Borrowed) -> F) {
    announce(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, lender) = serve(&place[0], &place[1]);
    let begun = Instant::now();
    runtime.block_on(case(connect(&server, &lender)));
    println!("ok, {} ms", begun.elapsed().as_millis());
    server.shutdown();
}

fn announce(name: &str) {
    print!("{name} ... ");
    let _ = std::io::stdout().flush();
}

fn main() {
    let place: Vec<String> = std::env::args().skip(1).collect();
    let Ok(place) = <[String; 2]>::try_from(place) else {
        panic!("arguments: an address to listen at, and a device");
    };
    macro_rules! run_each {
        ($($case:ident;)+) => {$(
            run(&place, stringify!($case), cases::$case);
        )+};
    }
    cases::for_each_case!(run_each);
    announce("nothing_lands_after_a_revoke");
    let (server, lender) = serve(&place[0], &place[1]);
    revokes::nothing_lands_after_a_revoke(server.address(), &lender, RemoteMemory::one_sided, 20);
    println!("ok");
    announce("many_are_under_way");
    let memory = connect(&server, &lender).memory;
    let lent = lender.region().lend(0..8, Rights::ATOMIC, Until::REVOKED).unwrap();
    lender.region().store_release_u64(0, 0);
    memory.fetch_add(&lent, 0).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = (0..300).map(|_| memory.fetch_add(&lent, 1));
    let mut counts = runtime.block_on(futures_util::future::try_join_all(tasks)).unwrap();
    counts.sort_unstable();
    assert!(counts.into_iter().eq(0..300));
    println!("ok");
    announce("without_its_owner");
    server.shutdown();
    drop(lender);
    let late = memory.fetch_add(&lent, 1).timeout(Duration::from_secs(5)).wait();
    assert!(matches!(late, Err(MemoryError::Gone { .. })), "{late:?}");
    println!("ok");
}
