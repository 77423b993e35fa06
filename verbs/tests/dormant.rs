//! Queue pairs and senders of datagrams that have been quiet are not looked at, and lose nothing: their peers in another process call.
#![forbid(unsafe_code)]

mod other;

use std::io::stdin;
use std::time::{Duration, Instant};

use farcall_verbs::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, GRH_BYTES, ProtectionDomain,
    QpType, QueuePair, QueuePairConfig, RemoteSlice, Status, WorkCompletion, WorkRequest,
    WriteRequest,
};
use other::{Other, say, to_endpoint, to_text};

const QUEUE_PAIRS: usize = 64;

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(20);

/// More datagrams than are sent to the queue pair.
const DATAGRAMS: usize = 1024;

/// What datagrams carry.
const QKEY: u32 = 7;

/// Queue pairs on one completion queue.
struct End {
    // Dropped in this order.
    queue_pairs: Vec<QueuePair>,
    queue: CompletionQueue,
    channel: CompletionChannel,
    pd: ProtectionDomain,
}

impl End {
    fn new(count: usize, ty: QpType, receives: usize) -> End {
        let device = Device::open("shm").unwrap();
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_completion_channel().unwrap();
        let queue = device.create_cq(4096, Some(&channel)).unwrap();
        let config = || QueuePairConfig::new(ty, &queue, &queue).max_recv_wr(receives);
        let make = |_| pd.create_qp(config()).unwrap();
        End { queue_pairs: (0..count).map(make).collect(), queue, channel, pd }
    }

    /// Datagram queue pairs that send and receive.
    fn of_datagrams(count: usize) -> End {
        let mut end = End::new(count, QpType::Ud, DATAGRAMS);
        end.queue_pairs.iter_mut().for_each(|qp| qp.activate(QKEY).unwrap());
        end
    }

    fn endpoints(&self) -> Vec<String> {
        self.queue_pairs.iter().map(|qp| to_text(&qp.endpoint())).collect()
    }

    fn connect(&mut self, mut peers: impl Iterator<Item = String>) {
        for qp in &mut self.queue_pairs {
            let peer = to_endpoint(&peers.next().expect("one line for each"));
            qp.connect(&peer, &ConnectOptions::default()).unwrap();
        }
    }

    /// Polls until `count` completions have come.
    fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        let end = Instant::now() + BOUND;
        let mut all = Vec::new();
        while all.len() < count {
            assert!(Instant::now() < end, "{} of {count} completions", all.len());
            let mut some: [WorkCompletion; 16] = Default::default();
            let found = self.queue.poll(&mut some).unwrap();
            all.extend(some.into_iter().take(found));
        }
        all
    }

    /// The immediates of the next `count` messages.
    fn immediates(&mut self, count: usize) -> Vec<usize> {
        let completions = self.completions(count);
        completions.iter().map(|completion| completion.imm.expect("a message") as usize).collect()
    }

    /// Polls in vain until only few queue pairs are looked at.
    fn fall_quiet(&mut self) {
        let end = Instant::now() + BOUND;
        loop {
            assert_eq!(self.queue.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
            if self.queue.scanned() as usize <= QUEUE_PAIRS / 4 {
                return;
            }
            assert!(Instant::now() < end, "all queue pairs are still looked at");
        }
    }
}

/// All numbers of queue pairs, in an order that differs from round to round.
fn shuffled(round: usize) -> Vec<usize> {
    // Odd, so that each comes once.
    (0..QUEUE_PAIRS).map(|at| (at * (2 * round + 13) + round) % QUEUE_PAIRS).collect()
}

/// Queue pairs that are connected to those of the other process.
fn connect_to(other: &mut Other) -> End {
    let mut end = End::new(QUEUE_PAIRS, QpType::Rc, 16);
    let peers: Vec<String> = (0..QUEUE_PAIRS).map(|_| other.hear()).collect();
    end.endpoints().iter().for_each(|endpoint| other.tell(endpoint));
    end.connect(peers.into_iter());
    for (number, qp) in end.queue_pairs.iter_mut().enumerate() {
        qp.post_recvs(number as u64 * 1000..number as u64 * 1000 + 16).unwrap();
    }
    end
}

/// The same in the other process.
fn connect_to_parent() -> End {
    let mut end = End::new(QUEUE_PAIRS, QpType::Rc, 16);
    end.endpoints().iter().for_each(|endpoint| say(endpoint));
    end.connect(stdin().lines().map(Result::unwrap).take(QUEUE_PAIRS));
    end
}

/// Has the other process send while this one polls, while it sleeps, and all at once, after all have been quiet each time.
fn call_in_all_ways(end: &mut End, other: &mut Other) {
    end.fall_quiet();
    for round in 0..3 {
        // While it polls.
        for number in shuffled(round) {
            other.tell(&number.to_string());
            assert_eq!(end.immediates(1), [number]);
        }
        end.fall_quiet();
        // While it sleeps.
        for number in shuffled(round + 7) {
            end.queue.arm();
            assert_eq!(end.queue.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
            other.tell(&number.to_string());
            assert!(end.channel.wait(BOUND).unwrap());
            assert_eq!(end.immediates(1), [number]);
        }
        // All at once.
        end.fall_quiet();
        other.tell("all");
        let mut all = end.immediates(QUEUE_PAIRS);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..QUEUE_PAIRS));
        end.fall_quiet();
    }
}

#[test]
fn messages_to_quiet_queue_pairs_of_another_process_arrive() {
    let mut other = Other::start("the_process_that_sends");
    let mut end = connect_to(&mut other);
    call_in_all_ways(&mut end, &mut other);
    // And the end of the process is noticed at each.
    drop(other);
    let flushed = end.completions(QUEUE_PAIRS * (16 - 9));
    assert!(flushed.iter().all(|completion| completion.status == Status::Flushed));
}

#[test]
#[ignore = "the other process of the test above"]
fn the_process_that_sends() {
    let mut end = connect_to_parent();
    send_what_is_said(|number| {
        let request = write_nothing().imm(number as u32);
        end.queue_pairs[number].post_send_one(request).unwrap();
    });
}

fn write_nothing() -> WriteRequest<'static> {
    WorkRequest::write(&[][..], RemoteSlice::new(0, 0, 0))
}

/// The doorbell of a WRITE calls for a queue pair that has no message. Who armed the queue before, and looks once more, finds
/// nothing: the next message wakes it all the same.
#[test]
fn a_message_after_a_call_for_nothing_wakes() {
    let mut other = Other::start("the_process_that_writes");
    let mut end = connect_to(&mut other);
    end.fall_quiet();
    for number in shuffled(0) {
        end.queue.arm();
        other.tell(&number.to_string());
        assert_eq!(other.hear(), "written");
        assert_eq!(end.queue.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
        other.tell("message");
        assert_eq!(other.hear(), "sent");
        assert!(end.channel.wait(BOUND).unwrap(), "no event for the message");
        assert_eq!(end.immediates(1), [number]);
    }
}

#[test]
#[ignore = "the other process of the test above"]
fn the_process_that_writes() {
    let mut end = connect_to_parent();
    let mut lines = stdin().lines().map(Result::unwrap);
    while let Some(line) = lines.next() {
        let number: usize = line.parse().unwrap();
        let queue_pair = &mut end.queue_pairs[number];
        queue_pair.post_send_one(write_nothing()).unwrap();
        say("written");
        assert_eq!(lines.next().as_deref(), Some("message"));
        queue_pair.post_send_one(write_nothing().imm(number as u32)).unwrap();
        say("sent");
    }
}

/// Each line is the number of a queue pair that is to send, or all are.
fn send_what_is_said(mut send: impl FnMut(usize)) {
    for line in stdin().lines().map(Result::unwrap) {
        match line.parse() {
            Ok(number) => send(number),
            Err(_) => (0..QUEUE_PAIRS).for_each(&mut send),
        }
    }
}

#[test]
fn datagrams_of_quiet_senders_in_another_process_arrive() {
    let mut other = Other::start("the_process_that_sends_datagrams");
    let mut end = End::of_datagrams(1);
    let room = GRH_BYTES + 8;
    let buffers = end.pd.alloc_private(DATAGRAMS * room).unwrap().into_pool(room);
    while let Some(buffer) = buffers.take() {
        end.queue_pairs[0].post_recv(0, Some(buffer)).unwrap();
    }
    other.tell(&end.endpoints()[0]);
    other.tell("all");
    end.immediates(QUEUE_PAIRS);
    call_in_all_ways(&mut end, &mut other);
    end.fall_quiet();
    assert_eq!(mapped_inboxes_of_datagrams(), QUEUE_PAIRS);
    // Those of a process that has ended are removed.
    drop(other);
    let until = Instant::now() + BOUND;
    while mapped_inboxes_of_datagrams() > 0 {
        assert_eq!(end.queue.poll(&mut [WorkCompletion::default()]).unwrap(), 0);
        assert!(Instant::now() < until, "inboxes are still mapped");
    }
}

/// They are larger than those of connected queue pairs.
fn mapped_inboxes_of_datagrams() -> usize {
    let is_large = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let address = |hex| usize::from_str_radix(hex, 16).unwrap();
        line.contains("farcall-inbox") && address(range.1) - address(range.0) > 100_000
    };
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(is_large).count()
}

#[test]
#[ignore = "the other process of the test above"]
fn the_process_that_sends_datagrams() {
    let mut end = End::of_datagrams(QUEUE_PAIRS);
    let to = to_endpoint(&stdin().lines().next().unwrap().unwrap());
    let address = end.pd.create_address_handle(&to).unwrap();
    send_what_is_said(|number| {
        let request = WorkRequest::send(&[][..]).to(&address, to.qp(), QKEY).imm(number as u32);
        end.queue_pairs[number].post_send_one(request).unwrap();
    });
}
