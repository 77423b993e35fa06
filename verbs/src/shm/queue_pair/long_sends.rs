//! SENDs that do not fit the receiver's inbox.

use std::time::{Duration, Instant};

use crate::{
    CompletionChannel, CompletionQueue, ConnectOptions, Device, QpType, QueuePair, QueuePairConfig,
    WorkCompletion, WorkRequest,
};

const LEN: usize = 120 << 10;

/// Longer than anything here takes.
const BOUND: Duration = Duration::from_secs(20);

struct End {
    // Dropped in this order.
    qp: QueuePair,
    queue: CompletionQueue,
    channel: CompletionChannel,
}

impl End {
    fn new(device: &Device) -> End {
        let channel = device.create_completion_channel().unwrap();
        let queue = device.create_cq(64, Some(&channel)).unwrap();
        let pd = device.alloc_pd().unwrap();
        let config = QueuePairConfig::new(QpType::Rc, &queue, &queue);
        let mut qp = pd.create_qp(config.max_send_wr(8).max_recv_wr(8)).unwrap();
        let buffers = pd.alloc_private(LEN).unwrap().into_pool(LEN);
        qp.post_recv(1, buffers.take()).unwrap();
        End { qp, queue, channel }
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        (self.queue.poll(&mut out).unwrap() > 0).then(|| std::mem::take(&mut out[0]))
    }
}

/// The sender sleeps each time that there is no room, and is woken when the receiver has taken some. A timer moves some of the message,
/// too, but wakes nobody before the message has been sent.
#[test]
fn a_sender_that_waits_for_room_is_woken_when_there_is_some() {
    const LEAST_WAKES: u32 = 10;
    let device = Device::open("shm").unwrap();
    let [mut sender, mut receiver] = [(); 2].map(|()| End::new(&device));
    sender.qp.connect(&receiver.qp.endpoint(), &ConnectOptions::default()).unwrap();
    receiver.qp.connect(&sender.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 3) as u8).collect();
    let request = WorkRequest::send(&bytes[..]).signaled(7);
    sender.qp.post_send_one(request).unwrap_or_else(|(error, _)| panic!("{error}"));
    let (mut wakes, mut is_sent, began) = (0, false, Instant::now());
    let received = loop {
        sender.queue.arm();
        let received = receiver.poll();
        if let Some(received) = received {
            break received;
        }
        if sender.channel.wait(Duration::ZERO).unwrap() {
            wakes += u32::from(!is_sent);
            is_sent |= sender.poll().is_some();
        }
        assert!(began.elapsed() < BOUND, "the message does not arrive");
    };
    assert_eq!(received.buffer.as_deref(), Some(&bytes[..]));
    assert!(wakes > LEAST_WAKES, "the sender was woken {wakes} times");
}
