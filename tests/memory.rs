//! Memory that a server lends, over every backend and on a simulated rack: one suite, in which each case gets a client of a server that
//! lends what the case asks for.

#[path = "memory/access.rs"]
mod access;
#[path = "support/addresses.rs"]
mod addresses;
#[path = "memory/cases.rs"]
mod cases;
#[path = "memory/lender.rs"]
mod lender;
#[cfg(feature = "sim")]
#[path = "memory/rack.rs"]
mod on_rack;
#[path = "memory/revokes.rs"]
mod revokes;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use farcall::memory::{
    Carrier, Memory, MemoryError, MemoryServer, PollMemory, Region, RemoteMemory, Rights, Until,
};
use farcall::{Authentication, Key, RunningServer, Server};

use self::access::{Access as _, Polled};
use self::lender::{Borrowed, Lender, LenderClient, LenderServer, REGION_BYTES};

/// Runs a case over each backend. The first letters of the names differ.
fn over_each_backend<F: Future<Output = ()>>(name: &str, case: impl Fn(Borrowed) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A name has a bound.
    for address in addresses::each_kind_of_address(&name[..name.len().min(20)]) {
        let (server, _lender) = serve(&address);
        let client = connect(&server);
        println!("{address}");
        runtime.block_on(case(client));
    }
}

/// Runs a case with one-sided operations, as far as they are possible: twice, so that the second time the lane is there.
fn one_sided<F: Future<Output = ()>>(name: &str, case: impl Fn(Borrowed) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = format!("shm://one-{}-{}", &name[..name.len().min(20)], std::process::id());
    for address in [address, "tcp://127.0.0.1:0".to_owned()] {
        let (server, lender) = serve(&address);
        let Borrowed { lender: client, memory } = connect(&server);
        let memory = memory.one_sided();
        let word = lender.region().lend(0..8, Rights::READ, Until::REVOKED).unwrap();
        for _ in 0..2 {
            runtime.block_on(memory.read(&word)).unwrap();
        }
        assert_eq!(memory.caps().carrier, Carrier::OneSided, "{address}");
        println!("{address}");
        runtime.block_on(case(Borrowed { lender: client, memory }));
    }
}

/// Runs a case with a polling client: over each backend, and then one-sided.
fn polled<F: Future<Output = ()>>(name: &str, case: impl Fn(Borrowed<Polled>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let name = &name[..name.len().min(16)];
    let each = addresses::each_kind_of_address(&format!("poll-{name}")).into_iter();
    let address = format!("shm://poll-one-{name}-{}", std::process::id());
    for (address, one_sided) in each.map(|it| (it, false)).chain([(address, true)]) {
        let (server, lent) = serve(&address);
        let lender = LenderClient::connect(server.address()).wait().unwrap();
        // 16 MiB take long on a busy machine.
        let connecting = PollMemory::connect(server.address()).timeout(Duration::from_secs(60));
        let memory = connecting.wait().unwrap();
        println!("{address}");
        if !one_sided {
            runtime.block_on(case(Borrowed { lender, memory: Polled::here(memory) }));
            continue;
        }
        let memory = Polled::here(memory.one_sided());
        runtime.block_on(open_lane(&memory, &lent));
        runtime.block_on(case(Borrowed { lender, memory }));
    }
}

/// The first operations of a polling client travel as calls.
async fn open_lane(memory: &Polled, lender: &Lender) {
    let word = lender.region().lend(0..8, Rights::READ, Until::REVOKED).unwrap();
    for _ in 0..1_000 {
        if memory.memory().caps().carrier == Carrier::OneSided {
            return;
        }
        memory.read(&word).await.unwrap();
    }
    panic!("there is no lane");
}

fn serve(address: &str) -> (RunningServer, Lender) {
    let lender = Lender::new();
    let server = Server::builder()
        .threads(2)
        .service(LenderServer::new(lender.clone()))
        .service(MemoryServer::new(lender.memory.clone()))
        .listen(address)
        .unwrap();
    (server, lender)
}

fn connect(server: &RunningServer) -> Borrowed {
    let lender = LenderClient::connect(server.address()).also::<RemoteMemory>().wait().unwrap();
    Borrowed { memory: RemoteMemory::on(lender.channel()).unwrap(), lender }
}

macro_rules! over_each_backend {
    ($($case:ident;)+) => {
        mod backends {$(
            #[test]
            fn $case() {
                super::over_each_backend(stringify!($case), super::cases::$case);
            }
        )+}

        mod polling {$(
            #[test]
            fn $case() {
                super::polled(stringify!($case), super::cases::$case);
            }
        )+}

        mod one_sided {$(
            #[test]
            fn $case() {
                super::one_sided(stringify!($case), super::cases::$case);
            }
        )+}

        #[cfg(feature = "sim")]
        mod rack {$(
            #[test]
            fn $case() {
                crate::on_rack::run(super::cases::$case);
            }
        )+}

        #[cfg(feature = "sim")]
        mod one_sided_on_rack {$(
            #[test]
            fn $case() {
                crate::on_rack::run_one_sided(super::cases::$case);
            }
        )+}

        #[cfg(feature = "sim")]
        mod polling_on_rack {$(
            #[test]
            fn $case() {
                crate::on_rack::run_polled(super::cases::$case);
            }
        )+}
    };
}

cases::for_each_case!(over_each_backend);

#[test]
fn blocking_callers_need_no_executor() {
    let address = format!("shm://memory-blocking-{}", std::process::id());
    let (server, lender) = serve(&address);
    let memory = RemoteMemory::connect(server.address()).wait().unwrap();
    let lent = lender.region().lend(.., Rights::all(), Until::REVOKED).unwrap();
    memory.write(&lent.slice(8..11).unwrap(), &b"abc"[..]).wait().unwrap();
    let (word, text) = (lent.word(0).unwrap(), lent.slice(8..11).unwrap());
    let outcomes = memory.batch().fetch_add(&word, 5).fence().read(&text).post().wait().unwrap();
    assert_eq!((outcomes[0].word(), outcomes[1].bytes()), (Some(0), &b"abc"[..]));
    assert_eq!(lender.region().load_u64(0), 5);
}

#[test]
fn counts_of_many_clients_add_up() {
    const COUNTS: u64 = 500;
    let address = format!("shm://memory-counts-{}", std::process::id());
    let (_server, lender) = serve(&address);
    let lent = lender.region().lend(0..8, Rights::ATOMIC, Until::REVOKED).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let memory = RemoteMemory::connect(&*address).wait().unwrap();
                for _ in 0..COUNTS {
                    memory.fetch_add(&lent, 1).wait().unwrap();
                }
            });
        }
    });
    assert_eq!(lender.region().load_u64(0), 3 * COUNTS);
}

/// Reads go on while the server's only thread is blocked in a handler.
#[test]
fn one_sided_operations_need_no_thread_of_the_server() {
    let address = format!("shm://memory-alone-{}", std::process::id());
    let lender = Lender::new();
    let server = Server::builder()
        .service(LenderServer::new(lender.clone()))
        .service(MemoryServer::new(lender.memory.clone()))
        .listen(&address)
        .unwrap();
    let client = connect(&server);
    let memory = client.memory.one_sided();
    let lent = lender.region().lend(.., Rights::all(), Until::REVOKED).unwrap();
    memory.fetch_add(&lent.word(0).unwrap(), 1).wait().unwrap();
    let (blocked, is_blocked) = lender.block();
    thread::scope(|scope| {
        scope.spawn(|| client.lender.block().wait().unwrap());
        lender::wait_until(|| is_blocked.load(Ordering::Acquire), "the handler runs");
        for count in 1..=100 {
            assert_eq!(memory.fetch_add(&lent.word(0).unwrap(), 1).wait(), Ok(count));
            let bytes = memory.batch().write(&lent.slice(8..12).unwrap(), &b"abcd"[..]);
            let read = bytes.read(&lent.slice(9..11).unwrap()).post().wait().unwrap();
            assert_eq!(read[1].bytes(), b"bc");
        }
        drop(blocked);
    });
    assert_eq!(lender.memory.snapshot().lanes, 1);
}

/// Each revoke ends the lane that is in use, and the next operation opens another one.
#[test]
fn a_lane_is_opened_again_after_a_revoke() {
    let address = format!("shm://memory-again-{}", std::process::id());
    let (server, lender) = serve(&address);
    let memory = RemoteMemory::connect(server.address()).wait().unwrap().one_sided();
    assert_eq!(memory.caps().carrier, Carrier::Calls);
    for round in 0..50 {
        let lent = lender.region().lend(0..64, Rights::READ, Until::REVOKED).unwrap();
        for _ in 0..3 {
            memory.read(&lent).wait().unwrap();
        }
        assert_eq!(memory.caps().carrier, Carrier::OneSided, "{round}");
        assert!(lender.memory.revoke(&lent));
        lender.region().write(0, b"the next");
        assert_eq!(memory.read(&lent).wait(), Err(MemoryError::Revoked));
        assert_eq!(memory.caps().carrier, Carrier::Calls);
        assert_eq!(memory.read(&lent).wait(), Err(MemoryError::Revoked));
    }
    let lanes = lender.memory.snapshot().lanes;
    assert!(lanes <= 2, "{lanes} lanes of one client");
}

/// A client that opens one lane after the other ends its own, and takes none from others.
#[test]
fn a_client_that_opens_many_lanes_takes_none_from_others() {
    let address = format!("shm://memory-greedy-{}", std::process::id());
    let (server, lender) = serve(&address);
    let lent = lender.region().lend(0..64, Rights::READ, Until::REVOKED).unwrap();
    let open = |memory: &RemoteMemory| {
        for _ in 0..2 {
            memory.read(&lent).wait().unwrap();
        }
        assert_eq!(memory.caps().carrier, Carrier::OneSided);
    };
    let modest = RemoteMemory::connect(server.address()).wait().unwrap().one_sided();
    open(&modest);
    let greedy = connect(&server);
    let lanes: Vec<_> = (0..40)
        .map(|_| {
            let memory = RemoteMemory::on(greedy.lender.channel()).unwrap().one_sided();
            open(&memory);
            memory
        })
        .collect();
    let open = lender.memory.snapshot().lanes;
    assert!(open <= 17, "{open} lanes");
    for memory in &lanes {
        assert!(
            memory.read(&lent).wait().is_ok(),
            "its operations travel as calls, or on a new lane"
        );
    }
    let (blocked, is_blocked) = lender.block();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| LenderClient::connect(&*address).wait().unwrap().block().wait());
        }
        lender::wait_until(|| is_blocked.load(Ordering::Acquire), "the handler runs");
        for _ in 0..100 {
            modest.read(&lent).wait().unwrap();
        }
        drop(blocked);
    });
    drop((lanes, greedy));
    lender::wait_until(|| lender.memory.snapshot().lanes == 1, "its lanes end with its connection");
}

/// Writers go on across the revoke, some with a write that is under way; once it has returned, the memory is its owner's.
#[test]
fn nothing_lands_after_a_revoke_has_returned() {
    for address in addresses::each_kind_of_address("memory-revoked") {
        let (server, lender) = serve(&address);
        revokes::nothing_lands_after_a_revoke(server.address(), &lender, |memory| memory, 40);
    }
}

#[test]
fn nothing_one_sided_lands_after_a_revoke_has_returned() {
    let address = format!("shm://memory-revoked-{}", std::process::id());
    let (server, lender) = serve(&address);
    revokes::nothing_lands_after_a_revoke(server.address(), &lender, RemoteMemory::one_sided, 40);
}

#[test]
fn a_lend_to_one_identity_is_none_for_others() {
    let keys = ["anna", "bert"].map(|name| Key::new(name, *b"sixteen secret b").unwrap());
    for address in addresses::each_kind_of_address("memory-identity") {
        let lender = Lender::new();
        let authentication = keys.iter().cloned().fold(Authentication::new(), Authentication::key);
        let server = Server::builder()
            .authenticate(authentication.permit(|_, _| true))
            .service(LenderServer::new(lender.clone()))
            .service(MemoryServer::new(lender.memory.clone()))
            .listen(&address)
            .unwrap();
        let connect = |key: &Key| {
            let connecting = LenderClient::connect(server.address()).also::<RemoteMemory>();
            let lender = connecting.key(key.clone()).wait().unwrap();
            Borrowed { memory: RemoteMemory::on(lender.channel()).unwrap(), lender }
        };
        let [anna, bert] = keys.each_ref().map(connect);
        let lent = anna.lender.lend_to_caller(0, 8).wait().unwrap();
        assert!(anna.memory.read(&lent).wait().is_ok(), "{address}");
        assert_eq!(bert.memory.read(&lent).wait(), Err(cases::no_such_lend()), "{address}");
    }
}

/// The other connection refuses it, one-sided, too; and it ends with its own.
#[test]
fn a_lend_to_one_connection_is_none_for_others_and_ends_with_it() {
    let kinds = addresses::each_kind_of_address("memory-connection");
    for (address, one_sided) in kinds.into_iter().flat_map(|it| [(it.clone(), false), (it, true)]) {
        let (server, lender) = serve(&address);
        let connect = || {
            let Borrowed { lender, memory } = connect(&server);
            Borrowed { lender, memory: if one_sided { memory.one_sided() } else { memory } }
        };
        let (its, other) = (connect(), connect());
        let lent = its.lender.lend_to_connection(0, 8).wait().unwrap();
        let others = other.lender.lend_to_connection(8, 16).wait().unwrap();
        for count in 0..4 {
            assert_eq!(its.memory.fetch_add(&lent, 1).wait(), Ok(count), "{address}");
            assert!(other.memory.read(&others).wait().is_ok(), "{address}");
            assert_eq!(other.memory.read(&lent).wait(), Err(cases::no_such_lend()), "{address}");
            let batch = other.memory.batch().read(&others).fetch_add(&lent, 1).post().wait();
            assert_eq!(batch.map_err(|it| (it.at, it.error)), Err((1, cases::no_such_lend())));
        }
        assert_eq!(lender.memory.snapshot().lends, 2);
        drop(its);
        lender::wait_until(|| lender.memory.snapshot().lends == 1, "it ends with its connection");
        assert_eq!(other.memory.read(&lent).wait(), Err(MemoryError::Revoked), "{address}");
        assert!(other.memory.read(&others).wait().is_ok(), "{address}");
    }
}

/// What is read into a buffer of the program, or written from one, has any length, and the program gets the buffer back.
#[test]
fn buffers_of_the_program_are_read_into_and_written_from() {
    const LONG: usize = 5 << 20;
    for address in addresses::each_kind_of_address("memory-buffers") {
        let memory = Memory::new().unwrap();
        let region = memory.region(LONG).unwrap();
        let server =
            Server::builder().service(MemoryServer::new(memory)).listen(&*address).unwrap();
        let plain = RemoteMemory::connect(server.address()).wait().unwrap();
        let one_sided = plain.clone().one_sided();
        let lent = region.lend(.., Rights::all(), Until::REVOKED).unwrap();
        let others = farcall::buffers::Buffers::with_limit(2 * LONG as u64).unwrap();
        for memory in [plain, one_sided] {
            for (round, len) in [1, 1000, 70_000, LONG, LONG, 3].into_iter().enumerate() {
                let (at, own) = (lent.slice(..len as u64).unwrap(), memory.buffers().unwrap());
                for buffers in [&own, &others] {
                    let mut buffer = buffers.buffer(len).unwrap();
                    buffer.fill(round as u8 + 1);
                    let mut buffer = memory.write_from(&at, buffer).wait().unwrap();
                    assert!(buffer.len() == len && region_holds(&region, len, round as u8 + 1));
                    buffer.fill(0);
                    let address_before = buffer.as_ptr();
                    let buffer = memory.read_into(&at, buffer).wait().unwrap();
                    assert!(buffer.iter().all(|byte| *byte == round as u8 + 1), "{address} {len}");
                    assert_eq!((buffer.len(), buffer.as_ptr()), (len, address_before));
                    let bytes = memory.read(&at).wait().unwrap();
                    assert!(bytes[..] == buffer[..], "{address} {len}");
                }
            }
            let short = others.buffer(7).unwrap();
            let refused = memory.read_into(&lent.slice(..8).unwrap(), short).wait().map(drop);
            assert_eq!(refused, Err(MemoryError::OutOfRange { offset: 0, len: 8, of: 7 }));
            let read_only = region.lend(0..8, Rights::READ, Until::REVOKED).unwrap();
            let denied = MemoryError::NotPermitted(farcall::memory::Denied::Write);
            for _ in 0..3 {
                let buffer = memory.buffers().unwrap().buffer(8).unwrap();
                let written = memory.write_from(&read_only, buffer).wait().map(drop);
                assert_eq!(written, Err(denied.clone()), "{address}");
            }
            assert_eq!(others.snapshot().used, 0, "{address}: a buffer is lost");
        }
    }
}

fn region_holds(region: &Region, len: usize, value: u8) -> bool {
    let mut bytes = vec![0; len];
    region.read(0, &mut bytes);
    bytes.iter().all(|byte| *byte == value)
}

#[test]
fn what_a_former_life_of_the_server_lent_is_refused() {
    for address in addresses::each_kind_of_address("memory-lives") {
        let (former, lender) = serve(&address);
        let lent = lender.region().lend(.., Rights::all(), Until::REVOKED).unwrap();
        let address = former.address().to_string();
        former.shutdown();
        let (server, _lender) = serve(&address);
        let client = connect(&server);
        assert_eq!(client.memory.read(&lent).wait(), Err(MemoryError::FormerLife), "{address}");
        assert_eq!(
            client.memory.fetch_add(&lent.word(0).unwrap(), 1).wait(),
            Err(MemoryError::FormerLife)
        );
    }
}

#[test]
fn without_its_server_an_operation_says_whether_it_may_have_landed() {
    for address in addresses::each_kind_of_address("memory-gone") {
        let (server, lender) = serve(&address);
        let lent = lender.region().lend(0..8, Rights::all(), Until::REVOKED).unwrap();
        let client = connect(&server);
        client.memory.fetch_add(&lent, 1).wait().unwrap();
        server.shutdown();
        let late = client.memory.fetch_add(&lent, 1).timeout(Duration::from_millis(200)).wait();
        let Err(MemoryError::Gone { may_have_landed, .. }) = late else { panic!("{late:?}") };
        let added = lender.region().load_u64(0) - 1;
        assert!(may_have_landed || added == 0, "{address}");
        let nothing = client.memory.read(&lent).timeout(Duration::ZERO).wait();
        assert!(!nothing.unwrap_err().may_have_landed(), "{address}: it was not sent");
    }
}

#[test]
fn an_operation_that_is_dropped_leaves_the_connection_as_it_was() {
    for address in addresses::each_kind_of_address("memory-dropped") {
        let (server, lender) = serve(&address);
        let lent = lender.region().lend(.., Rights::all(), Until::REVOKED).unwrap();
        let client = connect(&server);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        lender.region().write(0, &[7; REGION_BYTES]);
        runtime.block_on(async {
            for _ in 0..50 {
                let mut dropped = client.memory.read(&lent);
                // Sent, and dropped before its answer is read.
                poll_fn(|cx| {
                    let _ = Pin::new(&mut dropped).poll(cx);
                    Poll::Ready(())
                })
                .await;
                drop(dropped);
                let bytes = client.memory.read(&lent).await.unwrap();
                assert!(bytes.iter().all(|byte| *byte == 7), "{address}");
            }
        });
    }
}

#[test]
fn regions_and_lends_are_counted_and_freed() {
    let memory = Memory::new().unwrap();
    for _ in 0..1_000 {
        let region: Region = memory.region(8192).unwrap();
        region.lend(.., Rights::READ, Until::REVOKED).unwrap();
        let counted = memory.snapshot();
        assert_eq!((counted.regions, counted.bytes, counted.lends), (1, 8192, 1));
    }
    let counted = memory.snapshot();
    assert_eq!((counted.regions, counted.bytes, counted.lends), (0, 0, 0));
}

#[test]
fn what_is_lent_is_told_to_operators() {
    let memory = Memory::new().unwrap();
    let region = memory.region(8192).unwrap();
    let first = region.lend(..8, Rights::READ, Until::REVOKED).unwrap();
    region.lend(.., Rights::WRITE, Until::REVOKED).unwrap();
    let service = MemoryServer::new(memory.clone());
    let address = format!("shm://memory-told-{}", std::process::id());
    let server = Server::builder().service(service).listen(&address).unwrap();
    let client = RemoteMemory::connect(server.address()).wait().unwrap();
    let usage = client.usage().wait().unwrap();
    assert_eq!((usage.regions, usage.bytes, usage.lends, usage.lanes), (1, 8192, 2, 0));
    assert!(usage.oldest_for_micros.is_some() && usage.oldest_is_lent_to.is_none(), "{usage:?}");
    memory.revoke(&first);
    let mut registry = prometheus_client::registry::Registry::default();
    farcall::memory::register(&mut registry, memory.clone());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in ["farcall_memory_registered_bytes 8192.0\n", "farcall_memory_lends 1.0\n"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    region.revoke();
    assert_eq!(client.usage().wait().unwrap().oldest_for_micros, None);
    server.shutdown();
}
