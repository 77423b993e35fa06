//! A receiver that accepts connections but does not answer requests for its inbox.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use rustix::process::geteuid;

use crate::memory::mapping::Population;
use crate::shm::memfd;
use crate::shm::peer::socket_name;
use crate::shm::region_words::RegionWords;
use crate::shm::wire::{self, Answer, Gid, Question, answer, ask};
use crate::{
    CompletionOpcode, CompletionQueue, DatagramSource, Device, GRH_BYTES, ProtectionDomain,
    QpNumber, QpType, QueuePair, QueuePairConfig, WorkCompletion, WorkRequest,
};

const QKEY: u32 = 7;

/// The name contains the process id, as several processes may run this test.
fn deaf_gid() -> Gid {
    let mut gid = *b"deaf to this....";
    gid[12..].copy_from_slice(&std::process::id().to_ne_bytes());
    gid
}

/// Longer than any timeout under test.
const LONG: Duration = Duration::from_secs(30);

/// A device that answers the greeting, and answers the next request only when told to.
fn deaf_device(listener: &OwnedFd, asked: &Sender<()>, speak: &Receiver<()>) {
    let (words, _) =
        memfd::create("deaf", RegionWords::BYTES, memfd::Peers::Read, Population::AtOnce).unwrap();
    let socket = accept(listener).unwrap();
    let hear = || wire::receive::<Question>(&socket, RecvFlags::empty()).unwrap().unwrap().0;
    assert_eq!(hear().what, ask::HELLO);
    wire::send(socket.as_fd(), &Answer::default(), &[words.as_fd()], SendFlags::empty()).unwrap();
    assert_eq!(hear().what, ask::ATTACH);
    asked.send(()).unwrap();
    speak.recv_timeout(LONG).unwrap();
    let refusal = Answer { status: answer::NO_QUEUE_PAIR, ..Answer::default() };
    let told = wire::send(socket.as_fd(), &refusal, &[], SendFlags::empty());
    told.expect("the sender gave up before the answer");
}

fn queue_pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePair {
    let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Ud, cq.handle(), cq.handle())).unwrap();
    qp.activate(QKEY).unwrap();
    qp
}

fn arrival(cq: &mut CompletionQueue) -> Vec<u8> {
    let mut completions = [WorkCompletion::default()];
    loop {
        if cq.poll(&mut completions).unwrap() == 1
            && completions[0].opcode == CompletionOpcode::Recv
        {
            return completions[0].buffer.take().unwrap()[GRH_BYTES..].to_vec();
        }
        thread::yield_now();
    }
}

#[test]
fn a_peer_that_does_not_answer_does_not_delay_datagrams_to_others() {
    let gid = deaf_gid();
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let listener = socket.unwrap();
    bind(&listener, &socket_name(geteuid().as_raw(), &gid).unwrap()).unwrap();
    listen(&listener, 4).unwrap();
    let ((tell, asked), (speak, told_to)) = (channel(), channel());
    let deaf = thread::spawn(move || deaf_device(&listener, &tell, &told_to));

    let device = Device::open("shm").unwrap();
    let pd = device.alloc_pd().unwrap();
    let (cq, mut their_cq) = (device.create_cq(64, None), device.create_cq(64, None).unwrap());
    let mut sender = queue_pair(&pd, &cq.unwrap());
    let mut receiver = queue_pair(&pd, &their_cq);
    receiver.post_recv(1, Some(pd.alloc_private(GRH_BYTES + 8).unwrap().into_buffer())).unwrap();
    let source = DatagramSource { qp: QpNumber(1), gid: Some(gid) };
    let silent = pd.create_address_handle_to(&source).unwrap();
    let handle = pd.create_address_handle(&receiver.endpoint()).unwrap();
    let lost = WorkRequest::send(b"unheard").to(&silent, source.qp, QKEY);
    sender.post_send_one(lost.unsignaled()).unwrap();
    asked.recv_timeout(LONG).unwrap();
    let message = WorkRequest::send(b"heard").to(&handle, receiver.number(), QKEY);
    sender.post_send_one(message.unsignaled()).unwrap();
    assert_eq!(arrival(&mut their_cq), b"heard");
    // The request is still pending: no caller has waited for its timeout.
    speak.send(()).unwrap();
    deaf.join().unwrap();
}
