//! Unreliable datagrams: one queue pair, many peers, one MTU, no promises.

use farcall_verbs::{
    AddressHandle, CompletionOpcode, Endpoint, GRH_BYTES, PostError, QpNumber, QpType,
    WorkCompletion, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{DEPTH, QKEY, Rig, filled, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// A UD queue pair that is active, and the way to the other end's.
pub(super) struct Datagrams {
    pub(super) base: Rig,
    pub(super) handle: AddressHandle,
    pub(super) peer: QpNumber,
}

impl Datagrams {
    pub(super) async fn open(end: &mut End) -> CaseResult<Datagrams> {
        let base = Rig::unconnected(end.device(), QpType::Ud)?;
        Datagrams::activate(base, end).await
    }

    /// The same over a queue pair that is not active yet.
    pub(super) async fn activate(mut base: Rig, end: &mut End) -> CaseResult<Datagrams> {
        base.qp.activate(QKEY)?;
        let (handle, peer) = address(end, &base).await?;
        Ok(Datagrams { base, handle, peer })
    }
}

/// Exchanges queue pairs with the other end, and makes an address handle to its.
async fn address(end: &mut End, rig: &Rig) -> CaseResult<(AddressHandle, QpNumber)> {
    let theirs = end.exchange(&rig.qp.endpoint().to_bytes().to_vec()).await?;
    let theirs = Endpoint::from_bytes(&theirs)?;
    Ok((rig.pd.create_address_handle(&theirs)?, theirs.qp()))
}

/// One datagram from the initiator to a receive that the target posts for it; the target's completion.
pub(super) async fn carry(
    end: &mut End,
    datagrams: &mut Datagrams,
    bytes: &[u8],
    imm: Option<u32>,
) -> CaseResult<Option<WorkCompletion>> {
    let Datagrams { base, handle, peer } = datagrams;
    let received = match end.role() {
        Role::Target => {
            base.receive(77, GRH_BYTES + bytes.len())?;
            end.meet().await?;
            Some(base.success(end, 77).await?)
        }
        Role::Initiator => {
            end.meet().await?;
            let mut request = WorkRequest::send(filled(&base.pd, bytes)?).to(handle, *peer, QKEY);
            if let Some(imm) = imm {
                request = request.imm(imm);
            }
            base.post(request.signaled(78))?;
            base.success(end, 78).await?;
            None
        }
    };
    end.meet().await?;
    Ok(received)
}

fn payload_of(received: WorkCompletion) -> CaseResult<Vec<u8>> {
    let Some(buffer) = received.buffer else {
        return Err(Halt::failed("the posted buffer was not given back"));
    };
    ensure_eq!(buffer.len(), received.byte_len as usize, "length of the buffer");
    ensure!(buffer.len() >= GRH_BYTES, "no room for the route header was counted");
    Ok(buffer[GRH_BYTES..].to_vec())
}

/// A datagram lies behind the 40 bytes of the route header, and its length counts them.
pub(crate) async fn a_datagram_lies_behind_the_route_header(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let mtu = end.device().caps().mtu;
    for size in [0, 1, 8, 47, 48, 49, 1000, mtu] {
        let bytes = pattern(size as u64, size);
        if let Some(received) = carry(end, &mut datagrams, &bytes, None).await? {
            ensure_eq!(received.opcode, CompletionOpcode::Recv, "opcode");
            ensure_eq!(received.byte_len as usize, GRH_BYTES + size, "length");
            ensure!(payload_of(received)? == bytes, "a datagram of {size} bytes changed");
        }
    }
    Ok(())
}

/// A datagram carries at most one MTU; a longer one is refused by the post.
pub(crate) async fn a_datagram_over_the_mtu_is_refused(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let mtu = end.device().caps().mtu;
    let Datagrams { base, handle, peer } = &mut datagrams;
    let buffer = filled(&base.pd, &vec![1; mtu + 1])?;
    match base.qp.post_send_one(WorkRequest::send(buffer).to(handle, *peer, QKEY).signaled(1)) {
        Err((PostError::TooLong { len, max }, _)) => {
            ensure_eq!(
                (len, max),
                (mtu as u64 + 1, mtu as u64),
                "the refused length and the limit"
            );
        }
        other => return Err(Halt::failed(format!("a datagram over the MTU: {other:?}"))),
    }
    end.meet().await
}

/// A datagram names its sender well enough to answer it.
pub(crate) async fn a_datagram_can_be_answered_from_its_source(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let expected = datagrams.peer;
    let received = carry(end, &mut datagrams, b"question", None).await?;
    let base = &mut datagrams.base;
    match received {
        Some(received) => {
            let Some(source) = received.source else {
                return Err(Halt::failed("a datagram without a source"));
            };
            ensure_eq!(source.qp, expected, "source queue pair");
            let back = base.pd.create_address_handle_to(&source)?;
            end.hear::<()>().await?;
            base.post(WorkRequest::send(b"answer").to(&back, source.qp, QKEY).signaled(1))?;
            base.success(end, 1).await?;
        }
        None => {
            base.receive(2, GRH_BYTES + 6)?;
            end.tell(&())?;
            let answer = base.success(end, 2).await?;
            ensure_eq!(
                answer.source.map(|source| source.qp),
                Some(expected),
                "the sender of the answer"
            );
            ensure_eq!(payload_of(answer)?, b"answer", "the answer");
        }
    }
    end.meet().await
}

/// A datagram with another queue key is dropped silently; the next one arrives.
pub(crate) async fn a_datagram_with_a_wrong_key_is_dropped(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let Datagrams { base, handle, peer } = &mut datagrams;
    match end.role() {
        Role::Target => {
            base.receive(1, GRH_BYTES + 8)?;
            base.receive(2, GRH_BYTES + 8)?;
            end.meet().await?;
            let received = base.success(end, 1).await?;
            ensure_eq!(payload_of(received)?, b"good", "the first datagram");
        }
        Role::Initiator => {
            end.meet().await?;
            base.post(WorkRequest::send(b"bad").to(handle, *peer, QKEY ^ 1).signaled(1))?;
            base.success(end, 1).await?;
            base.post(WorkRequest::send(b"good").to(handle, *peer, QKEY).signaled(2))?;
            base.success(end, 2).await?;
        }
    }
    end.meet().await
}

/// A queue pair gets no datagrams before it is active, and all from then on, also from senders that have tried before.
pub(crate) async fn a_datagram_arrives_once_its_receiver_is_active(end: &mut End) -> CaseResult {
    let mut base = Rig::unconnected(end.device(), QpType::Ud)?;
    let (handle, peer) = address(end, &base).await?;
    match end.role() {
        Role::Target => {
            base.receive(1, GRH_BYTES + 8)?;
            base.receive(2, GRH_BYTES + 8)?;
            end.hear::<()>().await?;
            base.qp.activate(QKEY)?;
            end.tell(&())?;
            // The early one may have been under way until now.
            let first = payload_of(base.success(end, 1).await?)?;
            let last =
                if first == b"early" { payload_of(base.success(end, 2).await?)? } else { first };
            ensure_eq!(last, b"late", "the datagram after the activation");
        }
        Role::Initiator => {
            base.qp.activate(QKEY)?;
            base.post(WorkRequest::send(b"early").to(&handle, peer, QKEY).signaled(1))?;
            base.success(end, 1).await?;
            end.tell(&())?;
            end.hear::<()>().await?;
            base.post(WorkRequest::send(b"late").to(&handle, peer, QKEY).signaled(2))?;
            base.success(end, 2).await?;
        }
    }
    end.meet().await
}

/// Without a posted receive a datagram is dropped silently, with no error at either end.
pub(crate) async fn a_datagram_without_a_receive_is_dropped(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    // A second queue pair at the target, reached over the same path: what arrives there shows that
    // all sent before has arrived too.
    let mut marker = Rig::unconnected(end.device(), QpType::Ud)?;
    marker.qp.activate(QKEY)?;
    let (_, marker_peer) = address(end, &marker).await?;
    let Datagrams { base, handle, peer } = &mut datagrams;
    match end.role() {
        Role::Target => {
            marker.receive(1, GRH_BYTES + 8)?;
            end.meet().await?;
            marker.success(end, 1).await?;
            base.receive(2, GRH_BYTES + 8)?;
            end.tell(&())?;
            let received = base.success(end, 2).await?;
            ensure_eq!(payload_of(received)?, b"kept", "the datagram after the dropped ones");
        }
        Role::Initiator => {
            end.meet().await?;
            for id in 0..3 {
                base.post(WorkRequest::send(b"dropped").to(handle, *peer, QKEY).signaled(id))?;
                base.success(end, id).await?;
            }
            base.post(WorkRequest::send(b"marker").to(handle, marker_peer, QKEY).signaled(3))?;
            base.success(end, 3).await?;
            end.hear::<()>().await?;
            base.post(WorkRequest::send(b"kept").to(handle, *peer, QKEY).signaled(4))?;
            base.success(end, 4).await?;
        }
    }
    end.meet().await
}

/// A datagram to a queue pair that does not exist is dropped silently.
pub(crate) async fn a_datagram_to_a_missing_queue_pair_is_dropped(end: &mut End) -> CaseResult {
    let mut datagrams = Datagrams::open(end).await?;
    let Datagrams { base, handle, .. } = &mut datagrams;
    if end.role() == Role::Initiator {
        for (id, number) in [(1, 0x00ff_fff0), (2, 0)] {
            let missing = QpNumber(number);
            base.post(WorkRequest::send(b"lost").to(handle, missing, QKEY).signaled(id))?;
            base.success(end, id).await?;
        }
    }
    end.meet().await?;
    let received = carry(end, &mut datagrams, b"found", None).await?;
    if let Some(received) = received {
        ensure_eq!(payload_of(received)?, b"found", "the datagram after the lost ones");
    }
    Ok(())
}

/// One queue pair sends to several, and each receives only its own datagrams.
pub(crate) async fn one_queue_pair_reaches_many(end: &mut End) -> CaseResult {
    const PEERS: usize = 20;
    const ROUNDS: u64 = 10;
    // An address handle is good on queue pairs of its own protection domain.
    let pd = end.device().alloc_pd()?;
    let mut rigs = Vec::new();
    let mut ways = Vec::new();
    for _ in 0..PEERS {
        let mut rig = Rig::within(end.device(), &pd, QpType::Ud, DEPTH, None)?;
        rig.qp.activate(QKEY)?;
        ways.push(address(end, &rig).await?);
        rigs.push(rig);
    }
    match end.role() {
        Role::Target => {
            for rig in &mut rigs {
                for round in 0..ROUNDS {
                    rig.receive(round, GRH_BYTES + 16)?;
                }
            }
            end.meet().await?;
            for (number, rig) in rigs.iter_mut().enumerate() {
                for round in 0..ROUNDS {
                    let received = rig.success(end, round).await?;
                    let wanted = format!("{number} {round}");
                    ensure_eq!(payload_of(received)?, wanted.as_bytes(), "peer {number}");
                }
            }
        }
        Role::Initiator => {
            end.meet().await?;
            let sender = &mut rigs[0];
            for round in 0..ROUNDS {
                for (number, (handle, qp)) in ways.iter().enumerate() {
                    let text = format!("{number} {round}");
                    let request = WorkRequest::send(text.as_bytes()).to(handle, *qp, QKEY);
                    sender.post(request.signaled(number as u64))?;
                    sender.success(end, number as u64).await?;
                }
            }
        }
    }
    end.meet().await
}

/// Two queue pairs send to one at the same time; each datagram arrives once, in its sender's order.
pub(crate) async fn datagrams_of_many_senders_meet_in_one_queue_pair(end: &mut End) -> CaseResult {
    const SENDERS: usize = 8;
    const EACH: u32 = 40;
    let mut datagrams = Datagrams::open(end).await?;
    let Datagrams { base, handle, peer } = &mut datagrams;
    match end.role() {
        Role::Target => {
            let mut next = [0; SENDERS];
            let mut posted = 0;
            while posted < DEPTH {
                base.receive(posted as u64, GRH_BYTES)?;
                posted += 1;
            }
            end.meet().await?;
            for _ in 0..SENDERS as u32 * EACH {
                let received = base.completion(end).await?;
                let imm = received.imm.unwrap_or(u32::MAX);
                let (sender, count) = ((imm >> 16) as usize, imm & 0xffff);
                ensure!(sender < SENDERS, "a datagram of an unknown sender: {received:?}");
                ensure_eq!(count, next[sender], "order of sender {sender}");
                next[sender] += 1;
                base.qp.post_recv(0, Some(room(&base.pd, GRH_BYTES)?))?;
                // A credit: without receives the next ones would be dropped.
                end.tell(&())?;
            }
        }
        Role::Initiator => {
            let mut senders = Vec::new();
            for _ in 0..SENDERS {
                let mut rig = Rig::within(end.device(), &base.pd, QpType::Ud, DEPTH, None)?;
                rig.qp.activate(QKEY)?;
                senders.push(rig);
            }
            end.meet().await?;
            let mut heard = 0;
            for sent in 0..SENDERS * EACH as usize {
                while sent - heard >= DEPTH {
                    end.hear::<()>().await?;
                    heard += 1;
                }
                let number = sent % SENDERS;
                let imm = ((number as u32) << 16) | (sent / SENDERS) as u32;
                let request = WorkRequest::send(b"").imm(imm).to(handle, *peer, QKEY);
                senders[number].post(request.signaled(1))?;
                senders[number].success(end, 1).await?;
            }
            for _ in heard..SENDERS * EACH as usize {
                end.hear::<()>().await?;
            }
        }
    }
    end.meet().await
}

/// Receives that several senders count on carry one datagram each, and the senders go on when there are more.
pub(crate) async fn several_senders_use_each_receive_once(end: &mut End) -> CaseResult {
    const SENDERS: usize = 3;
    const FEW: u64 = 4;
    let mut datagrams = Datagrams::open(end).await?;
    let mut marker = Rig::unconnected(end.device(), QpType::Ud)?;
    marker.qp.activate(QKEY)?;
    let (_, marker_peer) = address(end, &marker).await?;
    let Datagrams { base, handle, peer } = &mut datagrams;
    match end.role() {
        Role::Target => {
            marker.receive(0, GRH_BYTES + 8)?;
            for id in 0..FEW {
                base.receive(id, GRH_BYTES + 8)?;
            }
            end.meet().await?;
            marker.success(end, 0).await?;
            for id in 0..FEW {
                ensure_eq!(payload_of(base.success(end, id).await?)?, b"storm", "receive {id}");
            }
            // A datagram that is still queued may arrive late.
            let late = SENDERS as u64 * FEW - FEW;
            for id in 0..late + FEW {
                base.receive(id, GRH_BYTES + 8)?;
            }
            end.tell(&())?;
            let mut kept = 0;
            for id in 0..late + FEW {
                kept += u64::from(payload_of(base.success(end, id).await?)? == b"kept");
                if kept == FEW {
                    break;
                }
            }
            ensure_eq!(kept, FEW, "datagrams that each met a receive");
        }
        Role::Initiator => {
            let mut senders = Vec::new();
            for _ in 0..SENDERS {
                let mut rig = Rig::within(end.device(), &base.pd, QpType::Ud, DEPTH, None)?;
                rig.qp.activate(QKEY)?;
                senders.push(rig);
            }
            end.meet().await?;
            for id in 0..FEW {
                for sender in &mut senders {
                    sender
                        .post(WorkRequest::send(b"storm").to(handle, *peer, QKEY).signaled(id))?;
                    sender.success(end, id).await?;
                }
            }
            base.post(WorkRequest::send(b"marker").to(handle, marker_peer, QKEY).signaled(0))?;
            base.success(end, 0).await?;
            end.hear::<()>().await?;
            for id in 0..FEW {
                let sender = &mut senders[0];
                sender.post(WorkRequest::send(b"kept").to(handle, *peer, QKEY).signaled(id))?;
                sender.success(end, id).await?;
            }
        }
    }
    end.meet().await
}
