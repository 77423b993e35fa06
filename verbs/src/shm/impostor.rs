//! Another process, which speaks to a device's control thread without any of the device's code.

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, socket_with,
};
use rustix::process::getuid;

use super::context::Context;
use super::peer::socket_name;
use super::wire::{self, Answer, Gid, PROTOCOL_VERSION, Question, answer, ask};
use crate::{CompletionQueue, Device, QpType, QueuePair, QueuePairConfig};

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
    connect(&socket, &socket_name(getuid().as_raw(), gid).unwrap()).unwrap();
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
fn attach_as(gid: Gid, to_qp: u32) -> Question {
    let ty = QpType::Ud as u32;
    Question { what: ask::ATTACH, gid, from_qp: 1, to_qp, ty, ..Question::default() }
}

#[test]
fn a_process_cannot_send_in_the_name_of_the_device_of_another() {
    if let Ok(orders) = env::var(ORDERS) {
        let [target, victim, qp] = words(&orders);
        let (target, qp) = (target.to_be_bytes(), qp as u32);
        let own = Context::open(false).unwrap();
        // Of another process, of the target itself, and of no process.
        for named in [victim.to_be_bytes(), target, [7; 16]] {
            let answered = say(&dial(&target), &attach_as(named, qp));
            assert_eq!(answered, Some(answer::IMPOSTOR), "{named:x?}");
        }
        let socket = dial(&target);
        assert_eq!(say(&socket, &attach_as(own.gid, qp)), Some(answer::OK));
        // Nor when it has named its own before.
        assert_eq!(say(&socket, &attach_as(victim.to_be_bytes(), qp)), Some(answer::IMPOSTOR));
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
