//! What the shared-memory device owes the suite and the system, beyond the cases.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farcall_verbs::{Device, Operation, QpType, Visibility, WriteOrder};

/// No case of the suite may pass because the device says that it cannot do what the case is about.
#[test]
fn shm_offers_all_but_persistence() {
    let device = Device::open("shm").expect("shm needs nothing");
    let caps = device.caps();
    let offered = |ty| Operation::ALL.into_iter().filter(move |op| caps.supports(ty, *op)).count();
    assert_eq!(offered(QpType::Rc), Operation::ALL.len() - 1, "all but the flush");
    assert!(!caps.flush && !caps.supports(QpType::Rc, Operation::Flush));
    assert_eq!(offered(QpType::Uc), 4, "SEND and WRITE, with and without immediate");
    assert_eq!(offered(QpType::Ud), 2, "SEND, with and without immediate");
    assert!(caps.atomics && caps.srq && caps.wait);
    assert!(caps.max_inline >= 48);
    assert_eq!(caps.completion_payload, 48);
    assert_eq!(caps.write_order, WriteOrder::LeftToRight);
    assert_eq!(caps.visibility, Visibility::CompletionMeansVisible);
    assert!(Device::list().iter().any(|info| info.name == "shm"));
}

fn shared_memory_files() -> BTreeSet<String> {
    let Ok(folder) = fs::read_dir("/dev/shm") else { return BTreeSet::new() };
    folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

fn end(role: &str, link: UnixStream) -> Child {
    Command::new(env!("CARGO_BIN_EXE_device-conformance"))
        .args(["end", role, "many::eighty_queue_pairs_share_a_completion_queue", "shm"])
        .stdin(Stdio::from(OwnedFd::from(link)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program of this package")
}

/// Both ends killed with SIGKILL while they are connected: no file and no socket is left.
#[test]
fn two_killed_processes_leave_nothing_in_the_system() {
    let files = shared_memory_files();
    let (a, b) = UnixStream::pair().expect("a socket pair");
    let mut ends = [end("initiator", a), end("target", b)];
    for end in &ends {
        let maps = format!("/proc/{}/maps", end.id());
        wait_until("both ends to have memory in common", || {
            fs::read_to_string(&maps).is_ok_and(|maps| maps.matches("memfd:").count() > 8)
        });
    }
    let names: Vec<String> = ends.iter().flat_map(listening_sockets).collect();
    for end in &mut ends {
        end.kill().expect("it runs");
    }
    for end in &mut ends {
        end.wait().expect("it was killed");
    }
    assert_eq!(shared_memory_files(), files, "files in /dev/shm");
    let sockets = fs::read_to_string("/proc/net/unix").expect("Linux tells of its sockets");
    for name in names {
        assert!(!sockets.contains(&name), "socket {name} is still there");
    }
}

/// The names of the abstract sockets that a process listens on.
fn listening_sockets(end: &Child) -> Vec<String> {
    let inodes: BTreeSet<String> = fs::read_dir(format!("/proc/{}/fd", end.id()))
        .map(|folder| {
            folder
                .flatten()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .filter_map(|link| {
                    let link = link.to_string_lossy().into_owned();
                    Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
                })
                .collect()
        })
        .unwrap_or_default();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let name = words.get(7)?;
            (inodes.contains(*words.get(6)?) && name.starts_with('@')).then(|| (*name).to_owned())
        })
        .collect()
}
