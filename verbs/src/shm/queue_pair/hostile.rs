//! A hostile peer that writes arbitrary values into the memory that both map.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::shm::cell::{CELL_PAYLOAD_BYTES, Cell, CellKind, Header, Walk};
use crate::shm::completion_queue::CompletionQueue;
use crate::shm::context::Context;
use crate::shm::duplex;
use crate::{ConnectOptions, Status, WorkCompletion, WorkRequest};

pub(super) const SENDS: usize = 8;
pub(super) const RECEIVES: usize = 16;
const RECEIVE_BYTES: usize = 100;

/// The immediate of an honest peer's message, which must still get through.
const HONEST: u32 = 77;

/// The words of a cell: its header without the tag, and the second word.
type Words = (u32, u64);

/// A step of the hostile peer or of its victim.
#[derive(Clone, Debug)]
enum Step {
    /// A message's cells, valid or not, where the victim looks for the next message.
    Message(Vec<Words>),
    /// One cell anywhere: in the ring, in one of the peer's lines, or as an answer in one of the victim's.
    Cell { place: u8, ahead: u32, tag: Option<u32>, words: Words },
    /// False values in its own inbox: receives posted, messages taken, state, armed, refused.
    Lies([u32; 5]),
    /// A length in its table of receive lengths.
    Length(u32, u32),
    /// The victim sends something of this length.
    Send(usize),
    /// The victim polls.
    Poll,
}

fn words(kind: CellKind, carried: usize, len: usize) -> Words {
    (kind as u32 | (carried as u32) << 8, len as u64)
}

/// The cells of a message.
fn message(kind: CellKind, len: usize) -> Vec<Words> {
    let carried = |from: usize| len.saturating_sub(from).min(CELL_PAYLOAD_BYTES);
    let mut cells = vec![words(kind, carried(0), len)];
    if kind != CellKind::WriteImm {
        let rest = (CELL_PAYLOAD_BYTES..len).step_by(CELL_PAYLOAD_BYTES);
        cells.extend(rest.map(|from| words(CellKind::More, carried(from), 0)));
    }
    cells
}

fn step() -> impl Strategy<Value = Step> {
    let kinds = [CellKind::WriteImm, CellKind::Send, CellKind::SendImm, CellKind::More];
    let honest = (proptest::sample::select(kinds.to_vec()), 0usize..200);
    // Corrupt one cell of every fourth message.
    let lie = proptest::option::weighted(0.25, (0usize..5, any::<Words>(), any::<bool>()));
    let message = (honest, lie).prop_map(|((kind, len), lie)| {
        let mut cells = message(kind, len);
        if let Some((at, (rest, second), all)) = lie
            && let Some(cell) = cells.get_mut(at)
        {
            // The whole header, or only how much it carries.
            *cell = if all { (rest, second) } else { (cell.0 & 0xFF | rest & 0x3F00, cell.1) };
        }
        Step::Message(cells)
    });
    let tag = proptest::option::weighted(0.3, any::<u32>());
    let cell = (0u8..3, 0u32..100, tag, any::<Words>())
        .prop_map(|(place, ahead, tag, words)| Step::Cell { place, ahead, tag, words });
    prop_oneof![
        6 => message,
        1 => cell,
        1 => any::<[u32; 5]>().prop_map(Step::Lies),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(at, len)| Step::Length(at, len)),
        2 => prop_oneof![0usize..200, Just(4000)].prop_map(Step::Send),
        3 => Just(Step::Poll),
    ]
}

pub(in crate::shm) fn queue_pair(domain: &Domain, cq: &CompletionQueue) -> QueuePair {
    let handle = cq.handle(&domain.context);
    let config = Config {
        ty: QpType::Rc,
        send_cq: &handle,
        recv_cq: &handle,
        srq: None,
        max_send_wr: SENDS,
        max_recv_wr: RECEIVES,
    };
    QueuePair::new(domain, config).unwrap()
}

pub(in crate::shm) fn connect(a: &mut QueuePair, b: &mut QueuePair) {
    let options = ConnectOptions::default().rnr_retry(0).retry_timeout_ns(1_000_000);
    a.connect(&b.endpoint(), &options).unwrap();
    b.connect(&a.endpoint(), &options).unwrap();
}

fn post(qp: &mut QueuePair, domain: &Domain, id: u64) {
    let mut buffer =
        crate::PrivateRegion::new(domain.private(RECEIVE_BYTES).unwrap()).into_buffer();
    buffer.set_len(RECEIVE_BYTES);
    qp.post_recv(id, Some(buffer)).unwrap();
}

/// Where the victim looks for the next message, if it has taken all earlier ones.
#[derive(Default)]
struct Stream {
    number: u32,
    at: Walk,
}

impl Stream {
    /// Writes what the hostile peer can write: the ring and its own lines are in the victim's inbox, the
    /// victim's lines in the hostile peer's inbox.
    fn play(&mut self, step: &Step, victim: &QueuePair, hostile: &QueuePair) {
        let (theirs, ours) = (victim.pair.inbox().unwrap(), hostile.pair.inbox().unwrap());
        let ring = theirs.ring();
        let publish = |cell: &Cell, tag: u32, (rest, second): Words| {
            cell.fill(second, &[u64::MAX; CELL_PAYLOAD_BYTES / 8]);
            cell.publish(Header(u64::from(tag) | u64::from(rest) << 32));
        };
        match step {
            Step::Message(cells) => {
                for words in cells {
                    publish(ring.cell(self.at.index), ring.tag(self.number), *words);
                    self.number = self.number.wrapping_add(1);
                    self.at = self.at.after(&ring, (words.0 >> 4) as u8 & 0xF);
                }
            }
            Step::Cell { place, ahead, tag, words } => {
                let number = self.number.wrapping_add(*ahead);
                let lines = [theirs.duplex_lines(), ours.duplex_lines()];
                let cell = match place {
                    0 => ring.cell((self.at.index + ahead) % ring.count()),
                    line => duplex::cell(&lines[usize::from(line - 1)], number.into()),
                };
                publish(cell, tag.unwrap_or(ring.tag(number)), *words);
            }
            Step::Lies([posted, head, state, armed, refused]) => {
                let lines = ours.lines();
                lines.credit.posted.store(*posted, Ordering::Release);
                lines.credit.head.store(*head, Ordering::Release);
                lines.state.state.store(*state % 6, Ordering::Release);
                lines.state.armed.store(*armed, Ordering::Release);
                lines.state.refused.store(*refused % 2, Ordering::Release);
            }
            Step::Length(at, len) => ours.receive_length(*at).store(*len, Ordering::Release),
            Step::Send(_) | Step::Poll => unreachable!("steps of the victim"),
        }
    }
}

/// Polls until no completion is left, and checks each. Returns the ids of the victim's receives that ended, and
/// whether the honest peer's message arrived.
fn poll(cq: &mut CompletionQueue, victim: u32) -> (Vec<u64>, bool) {
    let mut out: [WorkCompletion; 4] = std::array::from_fn(|_| WorkCompletion::default());
    let (mut ended, mut honest) = (Vec::new(), false);
    for _ in 0..64 {
        let count = cq.poll(&mut out).expect("the queue is large enough for all that was posted");
        if count == 0 {
            return (ended, honest);
        }
        for completion in &mut out[..count] {
            let buffer = completion.buffer.take();
            if completion.qp.0 != victim {
                assert_eq!(completion.status, Status::Success);
                honest |= completion.imm == Some(HONEST);
            } else if let Some(buffer) = buffer {
                ended.push(completion.id);
                assert!(buffer.len() <= RECEIVE_BYTES);
                assert!(completion.payload().is_none_or(|bytes| bytes.len() <= CELL_PAYLOAD_BYTES));
            }
        }
    }
    panic!("completions never end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Nothing that it writes makes the victim panic, hang, take more messages than it has posted receives for,
    /// or lose a receive. Another connection on the same completion queue is not affected.
    #[test]
    fn garbage_harms_only_its_own_connection(steps in vec(step(), 1..40)) {
        let domain = Domain { context: Context::open(false).unwrap(), number: 1, sole: None };
        let mut cq = CompletionQueue::new(1024, None, false);
        let peers_cq = CompletionQueue::new(1024, None, false);
        let (mut victim, mut bystander) = (queue_pair(&domain, &cq), queue_pair(&domain, &cq));
        let (mut hostile, mut honest) =
            (queue_pair(&domain, &peers_cq), queue_pair(&domain, &peers_cq));
        connect(&mut victim, &mut hostile);
        connect(&mut bystander, &mut honest);
        for id in 0..RECEIVES as u64 {
            post(&mut victim, &domain, id);
        }
        post(&mut bystander, &domain, 0);

        let (mut ended, mut passed, mut stream) = (Vec::new(), false, Stream::default());
        for step in &steps {
            match step {
                Step::Send(len) => {
                    let mut buffer =
                        crate::PrivateRegion::new(domain.private(4096).unwrap()).into_buffer();
                    buffer.set_len(*len);
                    // Refused if its queue is full, or the connection is already broken.
                    let _ = victim.post(WorkRequest::send(buffer).signaled(99));
                    victim.ring_doorbell();
                }
                Step::Poll => {
                    let polled = poll(&mut cq, victim.number());
                    ended.extend(polled.0);
                    passed |= polled.1;
                    stream.number = victim.pair.flow.taken.load(Ordering::Acquire);
                }
                step => stream.play(step, &victim, &hostile),
            }
        }
        let message = WorkRequest::send(&b"still here"[..]).imm(HONEST).unsignaled();
        honest.post(message).unwrap_or_else(|(error, _)| panic!("{error}"));
        honest.ring_doorbell();
        let polled = poll(&mut cq, victim.number());
        ended.extend(polled.0);
        passed |= polled.1;
        prop_assert!(passed, "the honest peer's message is lost");
        victim.fail();
        ended.extend(poll(&mut cq, victim.number()).0);
        let posted: Vec<u64> = (0..RECEIVES as u64).collect();
        prop_assert_eq!(ended, posted, "every posted receive ends once, in order");
    }
}
