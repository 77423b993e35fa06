//! Another process, which speaks to a device's control thread without any of the device's code.

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use rustix::process::geteuid;

use super::context::Context;
use super::memfd;
use super::peer::{Peer, socket_name};
use super::region_words::RegionWords;
use super::wire::{self, Answer, Claim, Gid, PROTOCOL_VERSION, Question, answer, ask};
use crate::dispatch::Address;
use crate::{
    Access, CompletionQueue, ConnectError, Device, PeerRefusal, ProtectionDomain, QpType,
    QueuePair, QueuePairConfig,
};

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(20);

/// Tells the other process what to do.
const ORDERS: &str = "FARCALL_TEST_IMPOSTOR";

fn queue_pair(device: &Device, ty: QpType) -> (CompletionQueue, QueuePair) {
    let cq = device.create_cq(16, None).unwrap();
    let pd = device.alloc_pd().unwrap();
    let qp = pd.create_qp(QueuePairConfig::new(ty, &cq, &cq)).unwrap();
    (cq, qp)
}

/// Runs this test again in a process of its own, with these orders.
fn in_another_process(test: &str, orders: &[u128]) {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(env::current_exe().unwrap())
        .args([&name, "--exact"])
        .env(ORDERS, orders.iter().map(u128::to_string).collect::<Vec<_>>().join(" "))
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(ended) => break ended,
            None if begun.elapsed() > BOUND => child.kill().unwrap(),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(ended.success(), "the other process: {ended}");
}

/// The orders of this process.
fn words<const N: usize>(orders: &str) -> [u128; N] {
    let words: Vec<u128> = orders.split(' ').map(|word| word.parse().unwrap()).collect();
    words.try_into().unwrap()
}

/// A connection to the control thread of a device.
fn dial(gid: &Gid) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(BOUND)).unwrap();
    connect(&socket, &socket_name(geteuid().as_raw(), gid).unwrap()).unwrap();
    let hello = Question { what: ask::HELLO, version: PROTOCOL_VERSION, ..Question::default() };
    assert_eq!(say(&socket, &hello), Some(answer::OK));
    socket
}

/// The status of the answer; `None` if the device has hung up.
fn say(socket: &OwnedFd, question: &Question) -> Option<u32> {
    wire::send(socket.as_fd(), question, &[], SendFlags::empty()).ok()?;
    let answer = wire::receive::<Answer>(socket, RecvFlags::empty()).ok()?;
    answer.map(|(answer, _)| answer.status)
}

/// A request for the inbox of a queue pair, in the name of the device `gid`.
fn attach_as(gid: Gid, claim: Claim, to_qp: u32) -> Question {
    let ty = QpType::Ud as u32;
    Question { what: ask::ATTACH, gid, claim, from_qp: 1, to_qp, ty, ..Question::default() }
}

/// What a device claims to the device `to`.
fn claim(of: &Arc<Context>, to: Gid) -> (Arc<Peer>, Claim) {
    let peer = of.peer(to, BOUND).unwrap();
    let claim = peer.claim;
    (peer, claim)
}

#[test]
fn a_process_cannot_send_in_the_name_of_the_device_of_another() {
    if let Ok(orders) = env::var(ORDERS) {
        let [target, victim, qp] = words(&orders);
        let (target, qp) = (target.to_be_bytes(), qp as u32);
        let [own, another] = [(); 2].map(|()| Context::open(false).unwrap());
        let (_peer, own_claim) = claim(&own, target);
        // Of another process, of the target itself, of no process, and another one of this process, with what that claims to yet
        // another device.
        let (_other_peer, other_claim) = claim(&another, own.gid);
        for (named, claim) in [
            (victim.to_be_bytes(), own_claim),
            (target, own_claim),
            ([7; 16], own_claim),
            (own.gid, Claim::default()),
            (another.gid, own_claim),
            (another.gid, other_claim),
        ] {
            let answered = say(&dial(&target), &attach_as(named, claim, qp));
            assert_eq!(answered, Some(answer::IMPOSTOR), "{named:x?}");
        }
        let socket = dial(&target);
        assert_eq!(say(&socket, &attach_as(own.gid, own_claim, qp)), Some(answer::OK));
        // Nor when it has named its own before.
        let victims = attach_as(victim.to_be_bytes(), own_claim, qp);
        assert_eq!(say(&socket, &victims), Some(answer::IMPOSTOR));
        return;
    }
    let device = Device::open("shm").unwrap();
    let (_cq, qp) = queue_pair(&device, QpType::Ud);
    let victim = Context::open(false).unwrap();
    let gids = [qp.endpoint().gid(), victim.gid].map(u128::from_be_bytes);
    in_another_process(
        "a_process_cannot_send_in_the_name_of_the_device_of_another",
        &[gids[0], gids[1], qp.number().0.into()],
    );
}

/// What the control thread answers to a request for a region.
fn ask_for(socket: &OwnedFd, rkey: u32) -> Option<u32> {
    say(socket, &Question { what: ask::REGION, rkey, ..Question::default() })
}

#[test]
fn a_region_is_for_who_is_connected_to_its_domain() {
    let device = Device::open("shm").unwrap();
    let cq = device.create_cq(64, None).unwrap();
    let (pd, other_pd) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
    let qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &cq, &cq)).unwrap();
    let ud = other_pd.create_qp(QueuePairConfig::new(QpType::Ud, &cq, &cq)).unwrap();
    let region = |pd: &ProtectionDomain| pd.alloc_shared(64, Access::all()).unwrap();
    let (region, other) = (region(&pd), region(&other_pd));
    let peer = Context::open(false).unwrap();
    let gid = qp.endpoint().gid();
    let (_dialed, claim) = claim(&peer, gid);

    let refused = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&refused);
    device.on_peer_refused(move |why| {
        assert_eq!(why, PeerRefusal::GuessedKeys);
        count.fetch_add(1, Ordering::Relaxed);
    });

    let stranger = dial(&gid);
    assert_eq!(ask_for(&stranger, region.remote().rkey), None, "to a stranger");
    // Who sends datagrams to the domain is one too.
    let sender = dial(&gid);
    assert_eq!(say(&sender, &attach_as(peer.gid, claim, ud.number().0)), Some(answer::OK));
    assert_eq!(ask_for(&sender, other.remote().rkey), None, "to a sender of datagrams");

    let socket = dial(&gid);
    let secret = match qp.endpoint().address() {
        Address::Shm(endpoint) => endpoint.secret,
        #[cfg(any(feature = "ibverbs", feature = "sim"))]
        _ => unreachable!("of shm"),
    };
    let ty = QpType::Rc as u32;
    let attach = Question { secret, ty, ..attach_as(peer.gid, claim, qp.number().0) };
    assert_eq!(say(&socket, &attach), Some(answer::OK));
    for _ in 0..100 {
        assert_eq!(ask_for(&socket, region.remote().rkey), Some(answer::OK));
    }
    assert_eq!(ask_for(&socket, other.remote().rkey), Some(answer::NO_REGION), "of another domain");
    let misses = (0..1000).take_while(|_| ask_for(&socket, 0) == Some(answer::NO_REGION));
    assert!(misses.count() < 100, "guesses have no end");
    // The stranger, the sender and this one.
    assert_eq!(refused.load(Ordering::Relaxed), 3);
    assert_eq!(ask_for(&socket, region.remote().rkey), None, "it has guessed too often");
}

#[test]
fn peers_cannot_write_the_words_of_regions() {
    let context = Context::open(false).unwrap();
    let map = |writable| memfd::map_foreign(context.words_file(), RegionWords::BYTES, writable);
    assert_eq!(map(true).err(), Some(Errno::PERM));
    assert!(map(false).is_ok());
}

/// Any process can listen under the name of another user's device: names of abstract sockets have no owner.
#[test]
fn a_device_that_another_user_claims_to_be_is_not_a_peer() {
    let device = Context::open(false).unwrap();
    let ours = geteuid().as_raw();
    let another = ours.wrapping_add(1);
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &socket_name(another, &device.gid).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let own = (Arc::downgrade(&device), Arc::clone(&device.control));
    let refused = Peer::dial(device.gid, own, another, BOUND).unwrap_err();
    assert!(
        matches!(refused, ConnectError::OtherUser { theirs, ours: own } if (theirs, own) == (ours, another)),
        "{refused}"
    );
}

/// A device that names another is not answered before that has spoken, and the control thread does not wait for it.
#[test]
fn a_named_device_that_says_nothing_delays_no_other_peer() {
    let device = Device::open("shm").unwrap();
    let (_cq, qp) = queue_pair(&device, QpType::Ud);
    let (target, silent) = (qp.endpoint().gid(), *b"says nothing....");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &socket_name(geteuid().as_raw(), &silent).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let impostor = dial(&target);
    let named = attach_as(silent, [3; 16], qp.number().0);
    wire::send(impostor.as_fd(), &named, &[], SendFlags::empty()).unwrap();
    let asked = accept(&listener).unwrap();
    let own = Context::open(false).unwrap();
    let (_peer, own_claim) = claim(&own, target);
    let honest = attach_as(own.gid, own_claim, qp.number().0);
    assert_eq!(say(&dial(&target), &honest), Some(answer::OK));
    // One request at a time: the second is refused at once.
    assert_eq!(say(&impostor, &named), Some(answer::MALFORMED));
    let (question, _) = wire::receive::<Question>(&asked, RecvFlags::empty()).unwrap().unwrap();
    assert_eq!((question.what, question.gid, question.claim), (ask::CLAIM, target, [3; 16]));
    wire::send(asked.as_fd(), &Answer::default(), &[], SendFlags::empty()).unwrap();
    let answered = wire::receive::<Answer>(&impostor, RecvFlags::empty()).unwrap().unwrap();
    assert_eq!(answered.0.status, answer::OK, "its own device has spoken for it");
}
