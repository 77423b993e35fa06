//! The service: levels, errors, many clients; a server that is killed and started again.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farcall::{Bytes, CallError, ReconnectPolicy, RunningServer, Server};
use farcall_persist::ranges::service::{RangeStoreClient, RangeWrite, StoreError};
use farcall_persist::service::{LogService, PersistError, PersistentClient, PersistentServer};
use farcall_persist::storage::sim::{Faults, SimDisk};
use farcall_persist::{Level, Log, Lsn, Options};

/// Longer than any of this takes, even on two busy cores.
const BOUND: Duration = Duration::from_secs(60);

fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://farcall-persist-test-{}-{next}", std::process::id())
}

fn serve(directory: &Path, address: &str) -> (RunningServer, Arc<Log>) {
    let options = Options::default().segment_bytes(64 << 10).queue_bytes(16 << 10);
    let log = Arc::new(Log::open(directory, options).unwrap());
    let service = PersistentServer::new(LogService::new(log.clone()));
    (Server::builder().service(service).listen(address).unwrap(), log)
}

fn client(address: &str) -> PersistentClient {
    PersistentClient::connect(address)
        .timeout(BOUND)
        .dial_timeout(BOUND)
        .reconnect(ReconnectPolicy::NEVER)
        .wait()
        .unwrap()
}

#[test]
fn each_append_has_its_own_level_and_the_answer_says_which_was_reached() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let (server, log) = serve(directory.path(), &address);
    let client = client(&address);
    for level in [Level::Received, Level::Visible, Level::Persistent] {
        let payload = Bytes::from(format!("{level:?}"));
        let ack = client.append(payload.clone(), level).wait().unwrap();
        assert!(ack.level >= level);
        if ack.level == Level::Persistent {
            assert!(log.reached(Level::Persistent) > ack.lsn);
        }
        assert!(client.flush(Level::Visible).wait().unwrap() > ack.lsn);
        assert_eq!(client.read(ack.lsn).wait().unwrap(), payload);
    }
    let page = client.scan(None, 100).wait().unwrap();
    assert_eq!(page.records.len(), 3);
    assert!(client.scan(Some(page.next), 100).wait().unwrap().records.is_empty());
    let (first, persistent) = client.bounds().wait().unwrap();
    assert!(first < page.records[0].0 && persistent > page.records[2].0);
    server.shutdown();
}

#[test]
fn what_cannot_be_done_is_told() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let (server, log) = serve(directory.path(), &address);
    let client = client(&address);
    let too_large = Bytes::from(vec![0; log.max_payload() + 1]);
    let error = client.append(too_large, Level::Persistent).wait();
    assert!(matches!(error, Err(CallError::Service(PersistError::TooLarge { .. }))), "{error:?}");
    let lsn = client.append(Bytes::from_static(b"a record"), Level::Persistent).wait().unwrap().lsn;
    type IsIt = fn(&PersistError) -> bool;
    let cases: [(Lsn, IsIt); 4] = [
        (Lsn(0), |error| matches!(error, PersistError::Truncated { .. })),
        (Lsn(1 << 40), |error| matches!(error, PersistError::BeyondEnd { .. })),
        (Lsn(lsn.0 + 8), |error| matches!(error, PersistError::NoRecord { .. })),
        // The record that the log was opened.
        (log.first(), |error| matches!(error, PersistError::NoRecord { .. })),
    ];
    for (lsn, is_it) in cases {
        let error = client.read(lsn).wait();
        assert!(matches!(&error, Err(CallError::Service(why)) if is_it(why)), "{lsn}: {error:?}");
    }
    server.shutdown();
}

#[test]
fn calls_at_the_same_time_share_syncs() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let (server, log) = serve(directory.path(), &address);
    let client = client(&address);
    thread::scope(|scope| {
        for caller in 0..16_u8 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..20 {
                    let payload = Bytes::from(vec![caller; 500]);
                    let ack = client.append(payload, Level::Persistent).wait().unwrap();
                    assert_eq!(ack.level, Level::Persistent);
                }
            });
        }
    });
    let stats = log.stats();
    assert!(stats.records >= 320 && stats.syncs * 2 < stats.records, "{stats:?}");
    server.shutdown();
}

#[test]
fn a_server_whose_storage_failed_goes_on_when_it_works_again() {
    let address = address();
    let disk = SimDisk::new(1);
    let log = Log::open_on(Arc::new(disk.clone()), Options::default()).unwrap();
    let service = PersistentServer::new(LogService::new(Arc::new(log)));
    let server = Server::builder().service(service).listen(address.as_str()).unwrap();
    let client = client(&address);
    let append = |text: &'static str| {
        client.append(Bytes::from_static(text.as_bytes()), Level::Persistent).wait()
    };
    let before = append("before").unwrap().lsn;
    // The sync of the record fails, and then that of the recovery.
    disk.set_faults(Faults { failing_syncs: [0, 1].into(), ..Faults::default() });
    for _ in 0..2 {
        let failed = append("not acknowledged");
        assert!(
            matches!(&failed, Err(CallError::Service(PersistError::Storage { .. }))),
            "{failed:?}"
        );
        assert_eq!(client.read(before).wait().unwrap(), "before");
    }
    let after = append("after").unwrap();
    assert_eq!(after.level, Level::Persistent);
    for (lsn, text) in [(before, "before"), (after.lsn, "after")] {
        assert_eq!(client.read(lsn).wait().unwrap(), text);
    }
    server.shutdown();
    disk.power_cycle();
    let log = Log::open_on(Arc::new(disk), Options::default()).unwrap();
    assert_eq!(log.read(after.lsn).unwrap().payload, b"after");
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program, and waits until it may be called.
fn start(directory: &Path, address: &str) -> KillOnDrop {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farcall-persist"));
    command.args(["serve", "--listen", address, "--dir"]).arg(directory);
    let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn().unwrap());
    let output = child.0.stdout.take().unwrap();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let line = receiver.recv_timeout(BOUND).expect("the server says that it listens");
    assert!(line.starts_with("listening on "), "{line}");
    child
}

#[test]
fn acknowledged_records_survive_a_server_that_is_killed() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let mut acknowledged = Vec::new();
    for round in 0..3_u8 {
        let server = start(directory.path(), &address);
        let client = client(&address);
        for (lsn, payload) in &acknowledged {
            assert_eq!(&client.read(*lsn).wait().unwrap(), payload);
        }
        for number in 0..20_u8 {
            let level = if number % 4 == 0 { Level::Visible } else { Level::Persistent };
            let payload = Bytes::from(vec![round, number]);
            let ack = client.append(payload.clone(), level).wait().unwrap();
            acknowledged.push((ack.lsn, payload));
        }
        drop(server);
    }
}

#[test]
fn the_program_appends_and_reads_and_ends_cleanly() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let mut server = start(directory.path(), &address);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcall-persist"));
        let output = command.args(arguments).args(["--address", &address]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = run(&["append", "hello"]);
    assert_eq!(status, Some(0));
    let (lsn, level) = said.trim().split_once('\t').unwrap();
    assert_eq!(level, "persistent");
    assert_eq!(run(&["read", lsn]), (Some(0), "hello".to_owned()));
    assert_eq!(run(&["read", "7"]).0, Some(2));
    assert_eq!(run(&["append", "--level", "received", "more"]).0, Some(0));

    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    let log = Log::open(directory.path(), Options::default()).unwrap();
    let entries =
        log.records(None).filter(|r| r.as_ref().unwrap().kind() == farcall_persist::Kind::Entry);
    assert_eq!(entries.count(), 2, "a clean end keeps what was only received");
}

/// A change of a service is a change of its lock file, which `FARCALL_UPDATE_LOCK=1` writes.
#[test]
fn the_services_are_those_of_their_lock_files() {
    farcall::lock::assert_unchanged::<PersistentClient>("service.lock");
    farcall::lock::assert_unchanged::<RangeStoreClient>("ranges.lock");
}

#[test]
fn ranges_are_written_together_or_not_at_all_and_survive_a_server_that_is_killed() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let write = |at: u64, text: &'static str| RangeWrite { at, bytes: text.into() };
    let connect = || {
        RangeStoreClient::connect(address.as_str())
            .timeout(BOUND)
            .dial_timeout(BOUND)
            .reconnect(ReconnectPolicy::NEVER)
            .wait()
            .unwrap()
    };
    let server = start(directory.path(), &address);
    let client = connect();
    let ack = client.commit(vec![write(0, "90"), write(8, "10")], Level::Persistent).wait();
    assert_eq!(ack.unwrap().level, Level::Persistent);
    client.checkpoint().wait().unwrap();
    client.commit(vec![write(8, "11")], Level::Persistent).wait().unwrap();
    let refused = client.commit(vec![write(0, "xx"), write(1 << 20, "y")], Level::Persistent);
    let refused = refused.wait();
    assert!(
        matches!(&refused, Err(CallError::Service(StoreError::OutOfRange { .. }))),
        "{refused:?}"
    );
    assert_eq!(client.read(0, 2).wait().unwrap(), "90", "the other write is taken back");
    drop(server);
    let _server = start(directory.path(), &address);
    let client = connect();
    assert_eq!(client.read(0, 2).wait().unwrap(), "90");
    assert_eq!(client.read(8, 2).wait().unwrap(), "11");
}

#[test]
fn the_program_writes_commits_and_makes_checkpoints() {
    let (directory, address) = (tempfile::tempdir().unwrap(), address());
    let _server = start(directory.path(), &address);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcall-persist"));
        let output = command.args(arguments).args(["--address", &address]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(run(&["write", "4", "abc"]), (Some(0), "persistent\n".to_owned()));
    assert_eq!(run(&["commit", "0=90", "4=x"]), (Some(0), "persistent\n".to_owned()));
    assert_eq!(run(&["checkpoint"]), (Some(0), String::new()));
    assert_eq!(run(&["read", "0", "--length", "7"]), (Some(0), "90\0\0xbc".to_owned()));
    assert_eq!(run(&["write", "99999999", "abc"]).0, Some(2));
}
