//! Replicas as processes: killed with SIGKILL, stopped with SIGSTOP, and fenced when they go on.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farcall::{CallError, RunningServer, Server};
use farcall_replication::client::{Client, status_of};
use farcall_replication::level::Level;
use farcall_replication::membership::{
    ConfigurationService, InProcess, Membership, MembershipServer,
};
use farcall_replication::node::{GroupError, RoleName};
use farcall_replication::record::Epoch;
use farcall_replication::replica::GroupClient;
use farcall_replication::store::{Command as StoreCommand, Query, Request, View};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_farcall-replication"))
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that has said where it listens, and is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let child = program().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut process = Process(child);
        let mut line = String::new();
        let output = process.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on"), "{line}");
        process
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(address: &str, membership: &str, more: &[&str]) -> Process {
    let mut arguments = vec!["serve", "--listen", address, "--membership", membership];
    arguments.extend_from_slice(more);
    Process::start(&arguments)
}

fn name(what: &str) -> String {
    format!("shm://replication-test-{what}-{}", std::process::id())
}

/// Serves this membership at an address.
fn membership_at(address: &str, membership: &InProcess) -> RunningServer {
    let service = ConfigurationService::in_memory(membership.clone());
    Server::builder().service(MembershipServer::new(service)).listen(address).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn put(key: &'static str, value: &'static str) -> StoreCommand {
    StoreCommand::Put { key: key.into(), value: value.into() }
}

fn get(client: &mut Client, key: &'static str) -> Option<String> {
    match client.read(Query::Get(key.into())).unwrap() {
        View::Value(value) => value.map(|value| text(&value)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_demo_kills_stops_and_replaces_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let output = run(&["demo", "--pause", "1", "--dir", dir]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    for sign in [
        "kill -9",
        "kill -STOP",
        "was fenced, and joins",
        "leads; members",
        "nothing acknowledged is lost, nothing was applied twice",
    ] {
        assert!(out.contains(sign), "no `{sign}` in {out}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it leaves nothing behind");
}

/// The former primary cannot learn of the next epoch from its membership service, which is gone: only from the memory of its backups, which
/// is revoked.
#[test]
fn a_primary_that_was_stopped_is_fenced_by_the_memory_of_its_backups_alone() {
    let membership = InProcess::default();
    let (first, second) = (name("fence-1"), name("fence-2"));
    let servers = [membership_at(&first, &membership), membership_at(&second, &membership)];
    let addresses = ["a", "b", "c"].map(|it| name(&format!("fence-{it}")));
    let primary = serve(&addresses[0], &first, &[]);
    wait_until("there is a group", || membership.newest().epoch == Epoch(1));
    let backups = [1, 2].map(|at| serve(&addresses[at], &second, &[]));
    let mut client = Client::new(Arc::new(membership.clone())).timeout(PATIENCE);
    client.wait_for_members(3).unwrap();
    client.submit(put("k", "before"), Level::Replicated(3)).unwrap();

    primary.signal(Signal::STOP);
    let before = membership.newest();
    wait_until("another primary", || membership.newest().primary != before.primary);
    client.submit(put("k", "after"), Level::Replicated(2)).unwrap();
    let [gone, _second] = servers;
    gone.shutdown_within(Duration::from_millis(100));
    primary.signal(Signal::CONT);

    // It takes no write and answers no read, from the first moment on.
    let former = GroupClient::connect(addresses[0].as_str()).timeout(PATIENCE).wait().unwrap();
    let request = Request { client: 4711, sequence: 1, command: put("k", "stale") };
    let written = former.submit(request, Level::Visible).wait();
    assert!(
        matches!(written, Err(CallError::Service(GroupError::NotPrimary(_) | GroupError::Unknown))),
        "{written:?}"
    );
    let read = former.read(Query::Get("k".into())).wait();
    assert!(matches!(read, Err(CallError::Service(GroupError::NotPrimary(_)))), "{read:?}");
    wait_until("it knows that it is no member", || {
        let status = status_of(&addresses[0], PATIENCE).unwrap().unwrap();
        status.role == RoleName::Removed
    });
    assert_eq!(get(&mut client, "k"), Some("after".into()));
    drop((primary, backups));
}

/// No thread of a backup is on the path of a write.
#[test]
fn a_backup_that_is_stopped_does_not_hold_up_writes_before_it_is_excluded() {
    let membership = InProcess::default();
    let at = name("idle");
    let server = membership_at(&at, &membership);
    let patient = ["--detect", "5"];
    let primary = serve(&name("idle-a"), &at, &patient);
    wait_until("there is a group", || membership.newest().epoch == Epoch(1));
    let backup = serve(&name("idle-b"), &at, &patient);
    let mut client = Client::new(Arc::new(membership.clone())).timeout(PATIENCE);
    client.wait_for_members(2).unwrap();
    client.submit(put("k", "before"), Level::Replicated(2)).unwrap();
    // From the second operation on they are one-sided.
    std::thread::sleep(Duration::from_millis(200));
    backup.signal(Signal::STOP);
    for _ in 0..20 {
        let ack = client.submit(put("k", "meanwhile"), Level::Replicated(2)).unwrap();
        assert_eq!(ack.reached.copies(), 2);
    }
    assert_eq!(membership.newest().epoch, Epoch(2), "the backup was excluded");
    // It has them in its memory: it goes on, becomes the primary, and has the last one.
    drop(primary);
    backup.signal(Signal::CONT);
    wait_until("the backup becomes the primary", || membership.newest().epoch > Epoch(2));
    assert_eq!(get(&mut client, "k"), Some("meanwhile".into()));
    drop(backup);
    server.shutdown_within(Duration::from_millis(100));
}

#[test]
fn what_was_synced_is_there_after_all_replicas_were_killed() {
    let directory = tempfile::tempdir().unwrap();
    let dirs = [0, 1].map(|at| directory.path().join(at.to_string()));
    let dirs = dirs.each_ref().map(|dir| dir.to_str().unwrap());
    let membership = InProcess::default();
    let at = name("disk");
    let server = membership_at(&at, &membership);
    let addresses = ["a", "b"].map(|it| name(&format!("disk-{it}")));
    let first = serve(&addresses[0], &at, &["--dir", dirs[0]]);
    wait_until("there is a group", || membership.newest().epoch == Epoch(1));
    let mut client = Client::new(Arc::new(membership.clone())).timeout(PATIENCE);
    // One replica cannot sync at two.
    let refused = client.submit(put("k", "x"), Level::ReplicatedPersistent(2)).unwrap_err();
    assert!(refused.to_string().contains("not possible with 1 replicas"), "{refused}");
    client.submit(put("early", "1"), Level::Persistent).unwrap();
    let second = serve(&addresses[1], &at, &["--dir", dirs[1]]);
    client.wait_for_members(2).unwrap();
    let ack = client.submit(put("k", "synced"), Level::ReplicatedPersistent(2)).unwrap();
    assert_eq!((ack.reached.copies(), ack.reached.synced()), (2, 2));
    drop((first, second));
    server.shutdown();

    // Either of the two directories is enough for another group.
    for (dir, number) in dirs.iter().zip(1..) {
        let inspected = run(&["inspect", dir]);
        assert_eq!(text(&inspected.stdout), "epoch 2, log to 2\n", "{}", text(&inspected.stderr));
        let membership = InProcess::default();
        let at = name(&format!("disk-again-{number}"));
        let server = membership_at(&at, &membership);
        let replica = serve(&name(&format!("disk-alone-{number}")), &at, &["--dir", dir]);
        let mut client = Client::new(Arc::new(membership.clone())).timeout(PATIENCE);
        wait_until("there is a group", || membership.epoch().unwrap() == Epoch(3));
        assert_eq!(get(&mut client, "k"), Some("synced".into()));
        assert_eq!(get(&mut client, "early"), Some("1".into()));
        drop(replica);
        server.shutdown();
    }
}

#[test]
fn the_commands_of_a_group() {
    let at = name("commands");
    let _membership = Process::start(&["configuration", "--listen", &at]);
    let _replicas: Vec<_> =
        ["a", "b"].iter().map(|it| serve(&name(&format!("commands-{it}")), &at, &[])).collect();
    wait_until("two members", || {
        let output = run(&["status", "--membership", &at]);
        output.status.success() && text(&output.stdout).contains("Backup, epoch 2")
    });
    let of = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["--membership", &at]);
        let output = run(&all);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(
        of(&["put", "k", "v", "--level", "replicated"]).contains("in memory at 2, synced at 0")
    );
    assert_eq!(of(&["get", "k"]), "v");
    assert!(of(&["append", "one"]).starts_with("0\t"));
    assert!(of(&["append", "two"]).starts_with("1\t"));
    assert_eq!(of(&["tail"]), "0\tone\n1\ttwo\n");
    assert_eq!(of(&["tail", "1"]), "1\ttwo\n");
    // After the last write nothing more comes, and the backup learns that it is committed.
    wait_until("the backup has applied all", || {
        text(&run(&["status", "--membership", &at]).stdout).matches("committed to 3").count() == 2
    });
    let refused = run(&["put", "k", "w", "--level", "persistent", "--membership", &at]);
    assert_eq!(refused.status.code(), Some(2));
    let why = text(&refused.stderr);
    assert!(why.contains("of which 0 sync to a disk"), "{why}");
    assert_eq!(of(&["get", "k"]), "v");
}
