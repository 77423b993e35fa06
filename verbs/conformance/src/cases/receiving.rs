//! Posted receives: which operations wait for one, and what fits into it.

use farcall_verbs::{Access, ConnectOptions, Operation, QpState, QpType, Status, WorkRequest};

use crate::end::{End, Role};
use crate::rig::{Rig, discover, expose, filled, held, join, patient, pattern};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();
/// Polls that find nothing, to show that nothing happens too early.
const QUIET_TURNS: usize = 200;

/// A SEND of a reliable connection waits until a receive is posted, and then arrives.
pub(crate) async fn a_send_waits_for_a_receive(end: &mut End) -> CaseResult {
    for size in [0, 8, 48, 49, 70_000] {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        let bytes = pattern(1, size);
        match end.role() {
            Role::Target => {
                end.hear::<()>().await?;
                rig.receive(5, size)?;
                let arrived = rig.success(end, 5).await?;
                ensure!(arrived.buffer.is_some_and(|buffer| *buffer == *bytes), "it changed");
            }
            Role::Initiator => {
                rig.post(WorkRequest::send(filled(&rig.pd, &bytes)?).signaled(1))?;
                rig.stays_quiet(QUIET_TURNS).await?;
                ensure_eq!(rig.reclaimed().len(), 0, "buffers given back before the completion");
                end.tell(&())?;
                rig.success(end, 1).await?;
            }
        }
        rig.serve_until_met(end).await?;
    }
    Ok(())
}

/// A WRITE_WITH_IMM waits for a receive too, and so does the work behind it.
pub(crate) async fn a_write_with_imm_waits_for_a_receive(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 16, ALL)?;
            end.hear::<()>().await?;
            ensure_eq!(region.load_u64(8), 0, "a WRITE that is behind a waiting request");
            rig.qp.post_recvs(0..1)?;
            let arrived = rig.success(end, 0).await?;
            ensure_eq!(arrived.imm, Some(3), "immediate");
            ensure_eq!(held(&region, 0, 8), [1; 8], "its data");
            end.poll_until("the WRITE behind it", || {
                Ok((held(&region, 8, 8) == [2; 8]).then_some(()))
            })
            .await?;
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            rig.post(WorkRequest::write(&[1; 8], remote.slice(0, 8)?).imm(3).signaled(1))?;
            rig.post(WorkRequest::write(&[2; 8], remote.slice(8, 8)?).signaled(2))?;
            rig.stays_quiet(QUIET_TURNS).await?;
            end.tell(&())?;
            rig.success(end, 1).await?;
            rig.success(end, 2).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// With a finite number of retries, a receiver that is not ready in time is an error, and breaks the
/// queue pair.
pub(crate) async fn finite_retries_end_in_an_error(end: &mut End) -> CaseResult {
    for with_imm in [false, true] {
        let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
        let options = ConnectOptions::default().rnr_retry(2).rnr_timer_ns(1_000_000);
        rig.connect_with(end, &options).await?;
        match end.role() {
            Role::Target => {
                let _region = expose(end, &rig.pd, 8, ALL)?;
                rig.serve_until_met(end).await?;
            }
            Role::Initiator => {
                let there = discover(end).await?.all();
                rig.post(if with_imm {
                    WorkRequest::write(&[1; 8], there).imm(1).signaled(1)
                } else {
                    WorkRequest::send(b"anyone").signaled(1)
                })?;
                rig.post(WorkRequest::send(b"behind").signaled(2))?;
                let status = rig.failure(end, 1).await?;
                ensure_eq!(status, Status::RnrRetryExceeded, "after two retries");
                ensure_eq!(rig.failure(end, 2).await?, Status::Flushed, "the request behind it");
                ensure_eq!(rig.qp.state(), QpState::Error, "state");
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// A receive that is posted while finite retries still run is found.
pub(crate) async fn finite_retries_find_a_late_receive(end: &mut End) -> CaseResult {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    let options = ConnectOptions::default().rnr_retry(6).rnr_timer_ns(400_000_000);
    rig.connect_with(end, &options).await?;
    match end.role() {
        Role::Target => {
            end.hear::<()>().await?;
            rig.receive(1, 8)?;
            rig.success(end, 1).await?;
        }
        Role::Initiator => {
            rig.post(WorkRequest::send(b"late").signaled(1))?;
            end.tell(&())?;
            rig.success(end, 1).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// Without a receive, UC drops a SEND silently; the connection goes on.
pub(crate) async fn uc_drops_a_send_without_a_receive(end: &mut End) -> CaseResult {
    uc_drops(end, Operation::Send).await
}

/// Without a receive, UC drops a WRITE_WITH_IMM silently; the connection goes on.
pub(crate) async fn uc_drops_a_write_with_imm_without_a_receive(end: &mut End) -> CaseResult {
    uc_drops(end, Operation::WriteWithImm).await
}

async fn uc_drops(end: &mut End, operation: Operation) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Uc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 16, ALL)?;
            // Written after the dropped messages, so those have been handled by now.
            end.poll_until("the marker", || {
                rig.stays_quiet_once()?;
                Ok((region.load_u64(8) != 0).then_some(()))
            })
            .await?;
            rig.receive(1, 4096)?;
            end.tell(&())?;
            let arrived = rig.success(end, 1).await?;
            ensure_eq!(arrived.imm, Some(2), "the message that arrived");
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            for id in 0..3 {
                rig.post(if operation == Operation::Send {
                    WorkRequest::send(filled(&rig.pd, &[7; 4096])?).signaled(id)
                } else {
                    WorkRequest::write(&[1; 8], remote.slice(0, 8)?).imm(1).signaled(id)
                })?;
                rig.success(end, id).await?;
            }
            rig.post(WorkRequest::write(&[1; 8], remote.slice(8, 8)?).signaled(3))?;
            rig.success(end, 3).await?;
            end.hear::<()>().await?;
            rig.post(WorkRequest::send(b"").imm(2).signaled(4))?;
            rig.success(end, 4).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// A SEND longer than the receive it meets is a length error at the target, an invalid request at the
/// initiator, and breaks both queue pairs; nothing is written behind the buffer.
pub(crate) async fn a_send_longer_than_its_receive_breaks_both_ends(end: &mut End) -> CaseResult {
    for (room_bytes, size) in [(8, 9), (47, 48), (4096, 4097), (16, 100_000)] {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let mut buffer = rig.pd.alloc_private(room_bytes + 64)?.into_buffer();
                buffer.fill(0xee);
                buffer.set_len(room_bytes);
                rig.qp.post_recv(1, Some(buffer))?;
                rig.receive(2, 8)?;
                end.meet().await?;
                let broken = rig.completion(end).await?;
                ensure_eq!(
                    (broken.id, broken.status),
                    (1, Status::LocalLength),
                    "{size} bytes for a receive of {room_bytes}"
                );
                let Some(mut buffer) = broken.buffer else {
                    return Err(Halt::failed("the posted buffer was not given back"));
                };
                buffer.set_len(room_bytes + 64);
                ensure_eq!(buffer[room_bytes..], [0xee; 64], "bytes behind the receive");
                ensure_eq!(rig.failure(end, 2).await?, Status::Flushed, "the next receive");
                ensure_eq!(rig.qp.state(), QpState::Error, "state");
            }
            Role::Initiator => {
                end.meet().await?;
                rig.post(WorkRequest::send(filled(&rig.pd, &vec![1; size])?).signaled(1))?;
                let status = rig.failure(end, 1).await?;
                ensure!(
                    matches!(status, Status::RemoteInvalidRequest | Status::RemoteOperation),
                    "{size} bytes for a receive of {room_bytes}: {status:?}"
                );
                ensure_eq!(rig.qp.state(), QpState::Error, "state");
            }
        }
        rig.serve_until_met(end).await?;
    }
    Ok(())
}

/// A receive without a buffer takes an empty message, and is too short for any other.
pub(crate) async fn a_receive_without_a_buffer_takes_an_empty_send(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            rig.qp.post_recvs(0..2)?;
            end.meet().await?;
            let arrived = rig.success(end, 0).await?;
            ensure_eq!((arrived.byte_len, arrived.buffer.is_none()), (0, true), "an empty message");
            ensure_eq!(rig.failure(end, 1).await?, Status::LocalLength, "one byte");
        }
        Role::Initiator => {
            end.meet().await?;
            rig.post(WorkRequest::send(b"").signaled(0))?;
            rig.success(end, 0).await?;
            rig.post(WorkRequest::send(b"1").signaled(1))?;
            rig.failure(end, 1).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// Receives are consumed in the order of posting, by SENDs and WRITE_WITH_IMMs alike.
pub(crate) async fn receives_are_consumed_in_the_order_of_posting(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let ids = [9, 3, 7, 1, 8, 2, 6, 4];
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8, ALL)?;
            for id in ids {
                rig.receive(id, 8)?;
            }
            end.meet().await?;
            for (round, id) in ids.into_iter().enumerate() {
                let arrived = rig.success(end, id).await?;
                ensure_eq!(arrived.imm, Some(round as u32), "immediate");
            }
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            end.meet().await?;
            for round in 0..ids.len() as u32 {
                rig.post(if round % 2 == 0 {
                    WorkRequest::send(b"sent").imm(round).signaled(1)
                } else {
                    WorkRequest::write(&[1; 8], there).imm(round).signaled(1)
                })?;
                rig.success(end, 1).await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// Receives may be posted before the queue pair is connected.
pub(crate) async fn receives_may_be_posted_before_connecting(end: &mut End) -> CaseResult {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    rig.receive(1, 16)?;
    rig.receive(2, 16)?;
    let options = ConnectOptions::default().rnr_retry(0);
    rig.connect_with(end, &options).await?;
    for id in 1..=2 {
        rig.post(WorkRequest::send(&pattern(id, 16)[..]).signaled(10 + id))?;
    }
    let mut order = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let completion = rig.completion(end).await?;
        ensure_eq!(completion.status, Status::Success, "completion {}", completion.id);
        match completion.buffer {
            Some(buffer) => {
                ensure!(*buffer == *pattern(completion.id, 16), "message {}", completion.id);
                order.0.push(completion.id);
            }
            None => order.1.push(completion.id),
        }
    }
    ensure_eq!(order, (vec![1, 2], vec![11, 12]), "completions");
    rig.serve_until_met(end).await
}

/// Connecting does not wait for the other side: what is sent before it has connected waits there.
pub(crate) async fn messages_sent_before_the_peer_connects_wait(end: &mut End) -> CaseResult {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    let theirs = end.exchange(&rig.qp.endpoint().to_bytes().to_vec()).await?;
    let theirs = farcall_verbs::Endpoint::from_bytes(&theirs)?;
    match end.role() {
        Role::Initiator => {
            rig.qp.connect(&theirs, &patient())?;
            rig.post(WorkRequest::send(b"early bird").signaled(1))?;
            end.tell(&())?;
            rig.success(end, 1).await?;
        }
        Role::Target => {
            end.hear::<()>().await?;
            rig.receive(2, 10)?;
            rig.qp.connect(&theirs, &patient())?;
            let arrived = rig.success(end, 2).await?;
            ensure_eq!(arrived.buffer.as_deref(), Some(&b"early bird"[..]), "the message");
        }
    }
    rig.serve_until_met(end).await
}

/// Both directions of one connection carry long messages at the same time; neither waits for the
/// other's queue for ever.
pub(crate) async fn both_directions_at_once_do_not_wait_for_each_other(
    end: &mut End,
) -> CaseResult {
    const COUNT: u64 = 12;
    const SIZE: usize = 300_000;
    let pd = end.device().alloc_pd()?;
    let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 32, None)?;
    for id in 0..COUNT {
        rig.receive(id, SIZE)?;
    }
    join(&mut rig.qp, end, &patient()).await?;
    let seed = |role: Role, id: u64| id + if role == Role::Target { 100 } else { 0 };
    let peer = if end.role() == Role::Target { Role::Initiator } else { Role::Target };
    for id in 0..COUNT {
        let bytes = pattern(seed(end.role(), id), SIZE);
        rig.post(WorkRequest::send(filled(&pd, &bytes)?).signaled(1000 + id))?;
    }
    let (mut received, mut sent) = (0, 1000);
    while received < COUNT || sent < 1000 + COUNT {
        let completion = rig.completion(end).await?;
        ensure_eq!(completion.status, Status::Success, "completion {}", completion.id);
        if let Some(buffer) = completion.buffer {
            ensure_eq!(completion.id, received, "order of receives");
            ensure!(*buffer == *pattern(seed(peer, received), SIZE), "message {received} changed");
            received += 1;
        } else {
            ensure_eq!(completion.id, sent, "order of sends");
            sent += 1;
        }
    }
    rig.serve_until_met(end).await
}
