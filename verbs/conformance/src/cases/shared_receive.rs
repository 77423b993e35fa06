//! Shared receive queues: receives for whichever queue pair needs one next.

use std::collections::{HashMap, HashSet};

use farcall_verbs::{
    GRH_BYTES, PostError, ProtectionDomain, QpType, QueuePair, QueuePairConfig, SharedReceiveQueue,
    Status, WorkCompletion, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{DEPTH, QKEY, Rig, filled, join, patient, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// Queue pairs of the target that share one receive queue, each with one of the initiator's.
struct Shared {
    qps: Vec<QueuePair>,
    cq: farcall_verbs::CompletionQueue,
    srq: SharedReceiveQueue,
    pd: ProtectionDomain,
}

impl Shared {
    async fn connect(end: &mut End, count: usize) -> CaseResult<Shared> {
        let pd = end.device().alloc_pd()?;
        Shared::connect_in(end, count, pd.clone(), pd).await
    }

    /// Queue pairs of `domain` with a shared queue of `pd`.
    async fn connect_in(
        end: &mut End,
        count: usize,
        pd: ProtectionDomain,
        domain: ProtectionDomain,
    ) -> CaseResult<Shared> {
        let cq = end.device().create_cq(1024, None)?;
        let srq = pd.create_srq(DEPTH)?;
        let mut qps = Vec::new();
        for _ in 0..count {
            let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(DEPTH);
            let handle = srq.handle();
            let config = if end.role() == Role::Target { config.srq(&handle) } else { config };
            let mut qp = domain.create_qp(config)?;
            join(&mut qp, end, &patient()).await?;
            qps.push(qp);
        }
        Ok(Shared { qps, cq, srq, pd })
    }

    async fn completion(&mut self, end: &End) -> CaseResult<WorkCompletion> {
        let mut one: [WorkCompletion; 1] = Default::default();
        let cq = &mut self.cq;
        end.poll_until("a completion", || Ok((cq.poll(&mut one)? == 1).then_some(()))).await?;
        let [completion] = one;
        Ok(completion)
    }

    fn post(&mut self, qp: usize, request: WorkRequest<'_>) -> CaseResult {
        Ok(self.qps[qp].post_send_one(request).map_err(|(error, _)| error)?)
    }
}

/// Receives of one shared queue serve whichever queue pair a message arrives on; the completion names
/// it, and every receive is used once.
pub(crate) async fn receives_serve_any_of_the_queue_pairs(end: &mut End) -> CaseResult {
    const PAIRS: usize = 4;
    const EACH: u32 = 30;
    let mut shared = Shared::connect(end, PAIRS).await?;
    match end.role() {
        Role::Target => {
            let mut posted = HashSet::new();
            for id in 0..DEPTH as u64 {
                shared.srq.post_recv(id, Some(room(&shared.pd, 16)?))?;
                posted.insert(id);
            }
            end.meet().await?;
            let numbers: Vec<_> = shared.qps.iter().map(QueuePair::number).collect();
            let mut next: HashMap<_, u32> = HashMap::new();
            for count in 0..PAIRS as u64 * u64::from(EACH) {
                let arrived = shared.completion(end).await?;
                ensure_eq!(arrived.status, Status::Success, "receive {}", arrived.id);
                ensure!(posted.remove(&arrived.id), "receive {} was not posted", arrived.id);
                let imm = arrived.imm.unwrap_or(u32::MAX);
                let from = (imm >> 16) as usize;
                ensure_eq!(numbers.get(from), Some(&arrived.qp), "queue pair of {imm:#x}");
                let next = next.entry(from).or_default();
                ensure_eq!(imm & 0xffff, *next, "order on queue pair {from}");
                *next += 1;
                let Some(buffer) = arrived.buffer else {
                    return Err(Halt::failed("the posted buffer was not given back"));
                };
                ensure_eq!(*buffer, imm.to_le_bytes(), "the message");
                let id = 1000 + count;
                shared.srq.post_recv(id, Some(room(&shared.pd, 16)?))?;
                posted.insert(id);
            }
        }
        Role::Initiator => {
            end.meet().await?;
            for count in 0..EACH {
                for qp in 0..PAIRS {
                    let imm = ((qp as u32) << 16) | count;
                    let bytes = imm.to_le_bytes();
                    shared.post(qp, WorkRequest::send(&bytes).imm(imm).signaled(imm.into()))?;
                }
                for _ in 0..PAIRS {
                    ensure_eq!(shared.completion(end).await?.status, Status::Success, "SEND");
                }
            }
        }
    }
    end.meet().await
}

/// An empty shared queue makes a reliable sender wait, and the receive that comes lets it through.
pub(crate) async fn an_empty_shared_queue_makes_senders_wait(end: &mut End) -> CaseResult {
    let mut shared = Shared::connect(end, 3).await?;
    match end.role() {
        Role::Target => {
            end.hear::<()>().await?;
            for id in 0..3 {
                shared.srq.post_recv(id, Some(room(&shared.pd, 8)?))?;
                let arrived = shared.completion(end).await?;
                ensure_eq!((arrived.id, arrived.status), (id, Status::Success), "receive");
            }
            end.hear::<()>().await
        }
        Role::Initiator => {
            for qp in 0..3 {
                shared.post(qp, WorkRequest::send(b"patience").signaled(qp as u64))?;
            }
            end.tell(&())?;
            let mut done = HashSet::new();
            for _ in 0..3 {
                let sent = shared.completion(end).await?;
                ensure_eq!(sent.status, Status::Success, "SEND {}", sent.id);
                done.insert(sent.id);
            }
            ensure_eq!(done.len(), 3, "SENDs that completed");
            end.tell(&())
        }
    }
}

/// A shared queue serves queue pairs of another protection domain, and its handle creates them.
pub(crate) async fn a_shared_queue_serves_another_domain(end: &mut End) -> CaseResult {
    let (pd, domain) = (end.device().alloc_pd()?, end.device().alloc_pd()?);
    let mut shared = Shared::connect_in(end, 2, pd, domain).await?;
    match end.role() {
        Role::Target => {
            for id in 0..8 {
                shared.srq.post_recv(id, Some(room(&shared.pd, 8)?))?;
            }
            end.meet().await?;
            for _ in 0..8 {
                let arrived = shared.completion(end).await?;
                ensure_eq!(arrived.status, Status::Success, "receive {}", arrived.id);
                ensure!(
                    arrived.buffer.is_some_and(|buffer| *buffer == *b"anywhere"),
                    "the message"
                );
            }
        }
        Role::Initiator => {
            end.meet().await?;
            for id in 0..8 {
                shared.post(id % 2, WorkRequest::send(b"anywhere").signaled(id as u64))?;
                ensure_eq!(shared.completion(end).await?.status, Status::Success, "SEND {id}");
            }
        }
    }
    end.meet().await
}

/// A broken queue pair leaves the shared receives to the others.
pub(crate) async fn a_broken_queue_pair_leaves_shared_receives_alone(end: &mut End) -> CaseResult {
    let mut shared = Shared::connect(end, 2).await?;
    match end.role() {
        Role::Target => {
            for id in 0..4 {
                shared.srq.post_recv(id, Some(room(&shared.pd, 8)?))?;
            }
            shared.qps[0].to_error();
            end.meet().await?;
            let second = shared.qps[1].number();
            for id in 0..4 {
                let arrived = shared.completion(end).await?;
                let found = (arrived.id, arrived.status, arrived.qp);
                ensure_eq!(found, (id, Status::Success, second), "receive");
            }
        }
        Role::Initiator => {
            end.meet().await?;
            for id in 0..4 {
                shared.post(1, WorkRequest::send(b"still").signaled(id))?;
                ensure_eq!(shared.completion(end).await?.status, Status::Success, "SEND {id}");
            }
        }
    }
    end.meet().await
}

/// A queue pair with a shared queue takes no receives of its own; a full shared queue none at all.
pub(crate) async fn receives_are_posted_in_one_place_only(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let mut srq = pd.create_srq(4)?;
    let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, Some(&srq))?;
    ensure_eq!(rig.qp.post_recv(1, None), Err(PostError::HasSrq), "a receive of its own");
    ensure_eq!(rig.qp.post_recvs(1..3), Err(PostError::HasSrq), "receives of its own");
    for id in 0..4 {
        srq.post_recv(id, None)?;
    }
    ensure_eq!(srq.post_recv(4, None), Err(PostError::QueueFull), "a fifth of four");
    end.meet().await
}

/// Datagrams take their receives from a shared queue too.
pub(crate) async fn datagrams_use_a_shared_queue(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let mut srq = pd.create_srq(DEPTH)?;
    let shared = (end.role() == Role::Target).then_some(&srq);
    let mut rigs = Vec::new();
    let mut ways = Vec::new();
    for _ in 0..3 {
        let mut rig = Rig::within(end.device(), &pd, QpType::Ud, DEPTH, shared)?;
        rig.qp.activate(QKEY)?;
        let theirs = end.exchange(&rig.qp.endpoint().to_bytes().to_vec()).await?;
        let theirs = farcall_verbs::Endpoint::from_bytes(&theirs)?;
        ways.push((pd.create_address_handle(&theirs)?, theirs.qp()));
        rigs.push(rig);
    }
    match end.role() {
        Role::Target => {
            for id in 0..30 {
                srq.post_recv(id, Some(room(&pd, GRH_BYTES + 1)?))?;
            }
            end.meet().await?;
            let mut ids = HashSet::new();
            for (number, rig) in rigs.iter_mut().enumerate() {
                for _ in 0..10 {
                    let arrived = rig.completion(end).await?;
                    ensure_eq!(arrived.status, Status::Success, "receive");
                    ensure!(ids.insert(arrived.id), "receive {} was used twice", arrived.id);
                    let byte = arrived.buffer.and_then(|buffer| buffer.get(GRH_BYTES).copied());
                    ensure_eq!(byte, Some(number as u8), "queue pair {number}");
                }
            }
        }
        Role::Initiator => {
            end.meet().await?;
            let sender = &mut rigs[0];
            for _ in 0..10 {
                for (number, (handle, qp)) in ways.iter().enumerate() {
                    let byte = [number as u8];
                    sender.post(WorkRequest::send(&byte).to(handle, *qp, QKEY).signaled(1))?;
                    sender.success(end, 1).await?;
                }
            }
        }
    }
    end.meet().await
}

/// A SEND longer than the shared receive it meets fails at both ends, as with a receive of its own: the
/// initiator never gets a success for a message that did not arrive.
pub(crate) async fn a_send_longer_than_its_shared_receive_fails_at_both_ends(
    end: &mut End,
) -> CaseResult {
    for (room_bytes, size) in [(8, 9), (48, 49), (4096, 100_000)] {
        let mut shared = Shared::connect(end, 1).await?;
        match end.role() {
            Role::Target => {
                for id in 0..4 {
                    shared.srq.post_recv(id, Some(room(&shared.pd, room_bytes)?))?;
                }
                end.meet().await?;
                let fits = shared.completion(end).await?;
                ensure_eq!((fits.id, fits.status), (0, Status::Success), "a SEND that fits");
                let broken = shared.completion(end).await?;
                ensure_eq!(
                    (broken.id, broken.status),
                    (1, Status::LocalLength),
                    "one that does not"
                );
                ensure!(broken.buffer.is_some(), "the posted buffer was not given back");
                end.hear::<()>().await?;
            }
            Role::Initiator => {
                end.meet().await?;
                let bytes = vec![1; size];
                let fits = filled(&shared.pd, &bytes[..room_bytes])?;
                shared.post(0, WorkRequest::send(fits).signaled(1))?;
                ensure_eq!(shared.completion(end).await?.status, Status::Success, "one that fits");
                let long = filled(&shared.pd, &bytes)?;
                shared.post(0, WorkRequest::send(long).signaled(2))?;
                let failed = shared.completion(end).await?;
                ensure_eq!(failed.id, 2, "the completion");
                ensure!(
                    matches!(failed.status, Status::RemoteInvalidRequest | Status::RemoteOperation),
                    "{size} bytes for a shared receive of {room_bytes}: {:?}",
                    failed.status
                );
                end.tell(&())?;
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// Shared receives may differ in length: a SEND fails only if the one that it meets is too short.
pub(crate) async fn shared_receives_may_differ_in_length(end: &mut End) -> CaseResult {
    const LENGTHS: [usize; 6] = [8, 5000, 0, 100, 8, 48];
    let mut shared = Shared::connect(end, 1).await?;
    match end.role() {
        Role::Target => {
            for (id, len) in LENGTHS.into_iter().enumerate() {
                let buffer = if len == 0 { None } else { Some(room(&shared.pd, len)?) };
                shared.srq.post_recv(id as u64, buffer)?;
            }
            end.meet().await?;
            for (id, len) in LENGTHS.into_iter().enumerate() {
                let arrived = shared.completion(end).await?;
                ensure_eq!((arrived.id, arrived.status), (id as u64, Status::Success), "receive");
                ensure_eq!(arrived.byte_len as usize, len, "length");
            }
            // The device gets its turns until the initiator knows that all have arrived.
            let deadline_ns = end.deadline_ns();
            while end.overhear::<()>()?.is_none() {
                shared.cq.poll(&mut [])?;
                ensure!(end.device().now_ns() < deadline_ns, "the SENDs did not complete");
                crate::end::turn().await;
            }
        }
        Role::Initiator => {
            end.meet().await?;
            for (id, len) in LENGTHS.into_iter().enumerate() {
                let here = filled(&shared.pd, &vec![2; len])?;
                shared.post(0, WorkRequest::send(here).signaled(id as u64))?;
            }
            for id in 0..LENGTHS.len() as u64 {
                let sent = shared.completion(end).await?;
                ensure_eq!((sent.id, sent.status), (id, Status::Success), "SEND");
            }
            end.tell(&())?;
        }
    }
    end.meet().await
}
