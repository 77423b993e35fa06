//! Connections to a device's control thread that attach to nothing: peers connect all the same.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use farcall_verbs::{CompletionQueue, ConnectOptions, Device, QpType, QueuePair, QueuePairConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};

/// Descriptors of this process; a quarter of them is for peers.
const DESCRIPTORS: u64 = 1024;
const MOST: usize = DESCRIPTORS as usize / 4;
const STRANGERS: usize = MOST + 40;

const BOUND: Duration = Duration::from_secs(20);

fn queue_pair() -> (CompletionQueue, QueuePair) {
    let device = Device::open("shm").unwrap();
    let pd = device.alloc_pd().unwrap();
    let queue = device.create_cq(16, None).unwrap();
    let qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &queue, &queue)).unwrap();
    (queue, qp)
}

/// The name of the control socket of the queue pair's device: it contains bytes of the endpoint.
fn control_socket(qp: &QueuePair) -> SocketAddrUnix {
    let endpoint = qp.endpoint();
    let prefix = format!("@farcall-shm-{}-", geteuid().as_raw());
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let is_ours = |gid: &&str| {
        let gid = u128::from_str_radix(gid, 16).unwrap().to_be_bytes();
        endpoint.to_bytes().windows(gid.len()).any(|bytes| bytes == gid)
    };
    let gids = sockets.lines().filter_map(|line| line.split_once(&prefix).map(|(_, gid)| gid));
    let gid = gids.into_iter().find(is_ours).expect("its control thread listens");
    SocketAddrUnix::new_abstract_name(format!("{}{gid}", &prefix[1..]).as_bytes()).unwrap()
}

fn is_hung_up(socket: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut events, Some(&at_once)).unwrap() > 0 && events[0].revents().contains(PollFlags::HUP)
}

// The only test of its process: it bounds the descriptors.
#[test]
fn connections_that_attach_to_nothing_keep_no_peer_out() {
    let limit = Some(DESCRIPTORS);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    let (_queue, mut qp) = queue_pair();
    let (_peers_queue, mut peer) = queue_pair();
    let options = ConnectOptions::default().setup_timeout(BOUND);
    let control = control_socket(&qp);
    let strangers: Vec<_> = (0..STRANGERS)
        .map(|_| {
            let flags = SocketFlags::CLOEXEC;
            let socket =
                socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            connect(&socket, &control).unwrap();
            socket
        })
        .collect();
    peer.connect(&qp.endpoint(), &options).unwrap();
    qp.connect(&peer.endpoint(), &options).unwrap();
    // The peer's connection came last, and is among those that stay.
    let begun = Instant::now();
    while strangers.iter().filter(|stranger| is_hung_up(stranger)).count() <= STRANGERS - MOST {
        assert!(begun.elapsed() < BOUND, "more connections stay than may be");
        std::thread::yield_now();
    }
    assert!(is_hung_up(&strangers[0]), "the oldest goes first");
    assert!(!is_hung_up(strangers.last().unwrap()));
}
