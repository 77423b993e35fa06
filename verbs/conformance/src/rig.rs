//! What most cases stand on: a connected queue pair with its queues, and bytes to move.

use std::collections::VecDeque;

use farcall_verbs::{
    Access, Buffer, CompletionChannel, CompletionQueue, ConnectOptions, Device, Endpoint,
    ProtectionDomain, QpType, QueuePair, QueuePairConfig, RemoteRegion, SharedReceiveQueue,
    SharedRegion, Status, WorkCompletion, WorkRequest,
};

use crate::end::{End, turn};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// Message sizes around what devices treat differently: nothing, one word, what fits a cell or an
/// inline request, a page, and more than any ring holds.
pub(crate) const SIZES: [usize; 12] = [0, 1, 7, 8, 9, 47, 48, 49, 64, 4096, 65_537, (1 << 20) + 3];

/// Depth of a rig's queues, unless a case asks otherwise.
pub(crate) const DEPTH: usize = 64;

/// A queue key for datagrams.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// A wait for an error completion that the peer's death must cause.
pub(crate) const DEATH_NOTICE_NS: u64 = 1_000_000_000;

/// Bytes that differ between seeds, and from their neighbours at any distance that matters.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A buffer that holds these bytes.
pub(crate) fn filled(pd: &ProtectionDomain, bytes: &[u8]) -> CaseResult<Buffer> {
    let mut buffer = room(pd, bytes.len())?;
    buffer.set_len(bytes.len());
    buffer.copy_from_slice(bytes);
    Ok(buffer)
}

/// An empty buffer for `len` bytes.
pub(crate) fn room(pd: &ProtectionDomain, len: usize) -> CaseResult<Buffer> {
    Ok(pd.alloc_private(len.max(1))?.into_buffer())
}

/// The bytes that a shared region holds now.
pub(crate) fn held(region: &SharedRegion, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.copy_out(offset, &mut bytes);
    bytes
}

/// One queue pair, the queue for its completions, and its protection domain.
pub(crate) struct Rig {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    polled: VecDeque<WorkCompletion>,
}

impl Rig {
    /// A queue pair that is not connected.
    pub(crate) fn unconnected(device: &Device, ty: QpType) -> CaseResult<Rig> {
        Rig::with(device, ty, DEPTH, None)
    }

    /// One with queues of `depth` work requests, and receives from `srq` if there is one.
    pub(crate) fn with(
        device: &Device,
        ty: QpType,
        depth: usize,
        srq: Option<&SharedReceiveQueue>,
    ) -> CaseResult<Rig> {
        let pd = device.alloc_pd()?;
        Rig::within(device, &pd, ty, depth, srq)
    }

    /// One in a protection domain that exists.
    pub(crate) fn within(
        device: &Device,
        pd: &ProtectionDomain,
        ty: QpType,
        depth: usize,
        srq: Option<&SharedReceiveQueue>,
    ) -> CaseResult<Rig> {
        Rig::built(device, pd, ty, depth, srq, None)
    }

    /// One whose completions can wake a sleeper on `channel`.
    pub(crate) fn waking(device: &Device, channel: &CompletionChannel) -> CaseResult<Rig> {
        Rig::built(device, &device.alloc_pd()?, QpType::Rc, DEPTH, None, Some(channel))
    }

    /// The same for datagrams.
    pub(crate) fn waking_datagrams(
        device: &Device,
        channel: &CompletionChannel,
    ) -> CaseResult<Rig> {
        Rig::built(device, &device.alloc_pd()?, QpType::Ud, DEPTH, None, Some(channel))
    }

    fn built(
        device: &Device,
        pd: &ProtectionDomain,
        ty: QpType,
        depth: usize,
        srq: Option<&SharedReceiveQueue>,
        channel: Option<&CompletionChannel>,
    ) -> CaseResult<Rig> {
        let cq = device.create_cq(2 * depth, channel)?;
        let mut config = QueuePairConfig::new(ty, &cq, &cq).max_send_wr(depth).max_recv_wr(depth);
        if let Some(srq) = srq {
            config = config.srq(srq);
        }
        let qp = pd.create_qp(config)?;
        Ok(Rig { qp, cq, pd: pd.clone(), polled: VecDeque::new() })
    }

    /// A queue pair that is connected to one of the other end's.
    pub(crate) async fn connected(end: &mut End, ty: QpType) -> CaseResult<Rig> {
        let mut rig = Rig::unconnected(end.device(), ty)?;
        rig.connect(end).await?;
        Ok(rig)
    }

    /// Connects to the queue pair that the other end connects to this one, and waits until both are.
    pub(crate) async fn connect(&mut self, end: &mut End) -> CaseResult {
        self.connect_with(end, &patient()).await
    }

    /// The same with other timers.
    pub(crate) async fn connect_with(
        &mut self,
        end: &mut End,
        options: &ConnectOptions,
    ) -> CaseResult {
        join(&mut self.qp, end, options).await
    }

    /// Posts a receive with room for `len` bytes.
    pub(crate) fn receive(&mut self, id: u64, len: usize) -> CaseResult {
        let buffer = room(&self.pd, len)?;
        Ok(self.qp.post_recv(id, Some(buffer))?)
    }

    /// Posts one request that must be taken.
    #[track_caller]
    pub(crate) fn post<'a>(&mut self, request: impl Into<WorkRequest<'a>>) -> CaseResult {
        self.qp
            .post_send_one(request)
            .map_err(|(error, _)| Halt::failed(format!("a post was refused: {error}")))
    }

    /// The next completion, whatever it says.
    pub(crate) async fn completion(&mut self, end: &End) -> CaseResult<WorkCompletion> {
        let (cq, polled) = (&mut self.cq, &mut self.polled);
        end.poll_until("a completion", || next_completion(cq, polled)).await
    }

    /// The next completion, which must be the success of the request `id`.
    pub(crate) async fn success(&mut self, end: &End, id: u64) -> CaseResult<WorkCompletion> {
        let completion = self.completion(end).await?;
        ensure_eq!(
            (completion.id, completion.status),
            (id, Status::Success),
            "the next completion at the {:?}",
            end.role()
        );
        Ok(completion)
    }

    /// The next completion, which must be a failure of the request `id`.
    pub(crate) async fn failure(&mut self, end: &End, id: u64) -> CaseResult<Status> {
        let completion = self.completion(end).await?;
        ensure_eq!(completion.id, id, "the next completion at the {:?}", end.role());
        ensure!(
            completion.status != Status::Success,
            "request {id} succeeded, against the rule of this case"
        );
        Ok(completion.status)
    }

    /// A completion that has arrived already, if any.
    pub(crate) fn poll_once(&mut self) -> CaseResult<Option<WorkCompletion>> {
        next_completion(&mut self.cq, &mut self.polled)
    }

    /// Shows that `turns` polls in a row find nothing.
    pub(crate) async fn stays_quiet(&mut self, turns: usize) -> CaseResult {
        for _ in 0..turns {
            self.stays_quiet_once()?;
            turn().await;
        }
        Ok(())
    }

    /// Shows that this one poll finds nothing.
    pub(crate) fn stays_quiet_once(&mut self) -> CaseResult {
        match self.poll_once()? {
            None => Ok(()),
            Some(early) => Err(Halt::failed(format!("a completion too early: {early:?}"))),
        }
    }

    /// Polls the device while the other end works, until it is done.
    pub(crate) async fn serve_until_met(&mut self, end: &mut End) -> CaseResult {
        end.tell(&())?;
        let deadline_ns = end.deadline_ns();
        loop {
            if end.overhear::<()>()?.is_some() {
                return Ok(());
            }
            poll_into(&mut self.cq, &mut self.polled)?;
            ensure!(end.device().now_ns() < deadline_ns, "the other end has not come in time");
            turn().await;
        }
    }

    /// The buffers that retired send requests give back now.
    pub(crate) fn reclaimed(&mut self) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        self.qp.reclaim(&mut |buffer| buffers.push(buffer));
        buffers
    }
}

/// Connects any queue pair to the one that the other end joins at the same time.
pub(crate) async fn join(
    qp: &mut QueuePair,
    end: &mut End,
    options: &ConnectOptions,
) -> CaseResult {
    let theirs = end.exchange(&qp.endpoint().to_bytes().to_vec()).await?;
    qp.connect(&Endpoint::from_bytes(&theirs)?, options)?;
    end.meet().await
}

/// Connects two queue pairs of this end with each other.
pub(crate) fn join_here(a: &mut QueuePair, b: &mut QueuePair) -> CaseResult {
    let (of_a, of_b) = (a.endpoint(), b.endpoint());
    a.connect(&of_b, &patient())?;
    b.connect(&of_a, &patient())?;
    Ok(())
}

/// Waits for a receive for ever, and for the other end long enough that a busy machine is not taken for
/// a lost one.
pub(crate) fn patient() -> ConnectOptions {
    ConnectOptions::default().retry_timeout_ns(10_000_000_000)
}

/// The next completion of a queue: those polled before come first.
pub(crate) fn next_completion(
    cq: &mut CompletionQueue,
    polled: &mut VecDeque<WorkCompletion>,
) -> CaseResult<Option<WorkCompletion>> {
    if polled.is_empty() {
        poll_into(cq, polled)?;
    }
    Ok(polled.pop_front())
}

fn poll_into(cq: &mut CompletionQueue, polled: &mut VecDeque<WorkCompletion>) -> CaseResult {
    let mut batch: [WorkCompletion; 8] = Default::default();
    let count = cq.poll(&mut batch)?;
    polled.extend(batch.into_iter().take(count));
    Ok(())
}

/// Shares a zeroed region and tells the other end where it is.
pub(crate) fn expose(
    end: &mut End,
    pd: &ProtectionDomain,
    len: usize,
    access: Access,
) -> CaseResult<SharedRegion> {
    let region = pd.alloc_shared(len, access)?;
    end.tell(&region.remote())?;
    Ok(region)
}

/// Learns of the region that the other end exposes.
pub(crate) async fn discover(end: &mut End) -> CaseResult<RemoteRegion> {
    end.hear().await
}
