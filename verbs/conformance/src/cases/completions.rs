//! Signaling, buffers given back, and full queues.

use farcall_verbs::{
    Access, ConnectOptions, CqError, PostError, QpType, QueuePairConfig, Status, WorkCompletion,
    WorkRequest,
};

use crate::end::{End, Role, turn};
use crate::rig::{DEPTH, Rig, discover, expose, filled, join, patient, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();

/// An unsignaled request that succeeds makes no completion of its own.
pub(crate) async fn an_unsignaled_success_is_silent(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 64, ALL)?;
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?.slice(0, 8)?;
            for round in 0..10 {
                for _ in 0..5 {
                    rig.post(WorkRequest::write(&[1; 8], there).unsignaled())?;
                }
                rig.post(WorkRequest::write(&[1; 8], there).signaled(round))?;
                rig.success(end, round).await?;
            }
            rig.stays_quiet(20).await?;
            rig.serve_until_met(end).await
        }
    }
}

/// Buffers of unsignaled requests come back when a later signaled one has been polled: not before,
/// in the order of posting, and each once.
pub(crate) async fn a_signaled_completion_gives_back_what_it_retires(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 64, ALL)?;
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?.slice(0, 8)?;
            let pool = rig.pd.alloc_private(8 * 16)?.into_pool(8);
            for round in 0..8 {
                for number in 0..10_u8 {
                    let Some(mut buffer) = pool.take() else {
                        return Err(Halt::failed("a retired buffer has not come back to its pool"));
                    };
                    buffer.fill(number);
                    let request = WorkRequest::write(buffer, there).unsignaled();
                    rig.post(if number == 6 { request.signaled(round) } else { request })?;
                }
                ensure_eq!(rig.reclaimed().len(), 0, "buffers given back before a poll");
                rig.success(end, round).await?;
                let first: Vec<u8> = rig.reclaimed().iter().map(|buffer| buffer[0]).collect();
                let mut wanted: Vec<u8> = (0..=6).collect();
                if round > 0 {
                    // Those behind the signaled one of the round before are retired by this one.
                    wanted.splice(0..0, 7..10);
                }
                ensure_eq!(first, wanted, "buffers given back in round {round}");
                ensure_eq!(rig.reclaimed().len(), 0, "buffers given back twice");
                ensure_eq!(pool.available(), 16 - 3, "buffers in the pool");
            }
            rig.serve_until_met(end).await
        }
    }
}

/// A full send queue takes nothing more and gives back, in order, what it has not taken; after a
/// completion it goes on.
pub(crate) async fn a_full_send_queue_gives_back_the_rest_of_the_list(end: &mut End) -> CaseResult {
    const OVER: u64 = 5;
    let depth = 16;
    let mut rig = Rig::with(end.device(), QpType::Rc, depth as usize, None)?;
    rig.connect(end).await?;
    match end.role() {
        Role::Target => {
            end.hear::<()>().await?;
            rig.qp.post_recvs(0..16)?;
            for id in 0..16 {
                let arrived = rig.completion(end).await?;
                ensure_eq!((arrived.imm, arrived.id), (Some(id as u32), id), "arrival");
                rig.qp.post_recv(id, None)?;
            }
            end.tell(&())?;
            for _ in 0..OVER {
                rig.completion(end).await?;
            }
        }
        Role::Initiator => {
            let mut list: Vec<WorkRequest<'_>> = Vec::new();
            for id in 0..depth + OVER {
                list.push(WorkRequest::send(b"").imm(id as u32).signaled(id));
            }
            // No receive is posted yet, so none of them can complete.
            let refusal = rig.qp.post_send(&mut list);
            ensure_eq!(refusal, Err(PostError::QueueFull), "posting too many");
            ensure_eq!(list.len() as u64, OVER, "requests that stayed in the list");
            let one_more = rig.qp.post_send_one(WorkRequest::send(b"").signaled(99));
            ensure_eq!(one_more.map_err(|(error, _)| error), Err(PostError::QueueFull), "one more");
            ensure_eq!(rig.qp.post_send(&mut list), Err(PostError::QueueFull), "the list again");
            ensure_eq!(list.len() as u64, OVER, "requests that stayed in the list");
            end.tell(&())?;
            for id in 0..depth {
                rig.success(end, id).await?;
            }
            end.hear::<()>().await?;
            rig.qp.post_send(&mut list)?;
            ensure!(list.is_empty(), "{} requests stayed in the list", list.len());
            for id in depth..depth + OVER {
                rig.success(end, id).await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// A refused request comes back with its buffer, unchanged.
pub(crate) async fn a_refused_request_comes_back_with_its_buffer(end: &mut End) -> CaseResult {
    let mut rig = Rig::with(end.device(), QpType::Rc, 1, None)?;
    rig.connect(end).await?;
    if end.role() == Role::Initiator {
        let pool = rig.pd.alloc_private(64)?.into_pool(32);
        let (Some(first), Some(mut second)) = (pool.take(), pool.take()) else {
            return Err(Halt::failed("a new pool has fewer buffers than fit it"));
        };
        ensure!(pool.take().is_none(), "a pool gives more buffers than fit it");
        second.copy_from_slice(&pattern(5, 32));
        rig.post(WorkRequest::send(first).signaled(1))?;
        match rig.qp.post_send_one(WorkRequest::send(second).signaled(2)) {
            Err((PostError::QueueFull, request)) => drop(request),
            other => return Err(Halt::failed(format!("a second request of one: {other:?}"))),
        }
        ensure_eq!(pool.available(), 1, "buffers in the pool after the request is dropped");
        end.tell(&())?;
        rig.success(end, 1).await?;
    } else {
        end.hear::<()>().await?;
        rig.receive(1, 32)?;
        rig.success(end, 1).await?;
    }
    rig.serve_until_met(end).await
}

/// Unsignaled requests keep their places until a signaled one is polled: a queue full of them is full.
pub(crate) async fn a_queue_full_of_unsignaled_requests_is_full(end: &mut End) -> CaseResult {
    let mut rig = Rig::with(end.device(), QpType::Rc, 8, None)?;
    rig.connect(end).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8, ALL)?;
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            for lap in 0..3 {
                for _ in 0..7 {
                    rig.post(WorkRequest::write(&[1; 8], there).unsignaled())?;
                }
                rig.post(WorkRequest::write(&[1; 8], there).signaled(lap))?;
                let over = rig.qp.post_send_one(WorkRequest::write(&[1; 8], there).signaled(9));
                ensure_eq!(
                    over.map_err(|(error, _)| error),
                    Err(PostError::QueueFull),
                    "a ninth request of eight"
                );
                rig.success(end, lap).await?;
            }
            rig.serve_until_met(end).await
        }
    }
}

/// A full receive queue refuses one more.
pub(crate) async fn a_full_receive_queue_refuses_one_more(end: &mut End) -> CaseResult {
    let mut rig = Rig::with(end.device(), QpType::Rc, 8, None)?;
    rig.connect(end).await?;
    match end.role() {
        Role::Target => {
            for id in 0..8 {
                rig.receive(id, 8)?;
            }
            let ninth = room(&rig.pd, 8)?;
            ensure_eq!(rig.qp.post_recv(8, Some(ninth)), Err(PostError::QueueFull), "a ninth");
            ensure_eq!(rig.qp.post_recvs(8..9), Err(PostError::QueueFull), "a ninth, in bulk");
            end.tell(&())?;
            rig.success(end, 0).await?;
            ensure_eq!(rig.qp.post_recvs(8..10), Err(PostError::QueueFull), "two into one place");
            rig.qp.post_recvs(8..9)?;
            end.tell(&())?;
            for id in 1..9 {
                rig.success(end, id).await?;
            }
        }
        Role::Initiator => {
            end.hear::<()>().await?;
            rig.post(WorkRequest::send(b"").signaled(0))?;
            rig.success(end, 0).await?;
            end.hear::<()>().await?;
            for id in 1..9 {
                rig.post(WorkRequest::send(b"").signaled(id))?;
                rig.success(end, id).await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// More outstanding completions than the queue has room for are an error that the next polls tell.
pub(crate) async fn an_overrun_of_a_completion_queue_is_an_error(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let mut cq = end.device().create_cq(4, None)?;
    let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(256).max_recv_wr(256);
    let mut qp = pd.create_qp(config)?;
    join(&mut qp, end, &patient()).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &pd, 8, ALL)?;
            end.meet().await?;
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            let mut batch: [WorkCompletion; 4] = Default::default();
            end.poll_until("the overrun", || {
                // Before each poll, because a device that is slower than the polls would leave none behind.
                for id in 0..200 {
                    // The queue is full, or the queue pair is broken by the overrun already.
                    if qp.post_send_one(WorkRequest::write(&[1; 8], there).signaled(id)).is_err() {
                        break;
                    }
                }
                match cq.poll(&mut batch) {
                    Ok(_) => Ok(None),
                    Err(CqError::Overrun) => Ok(Some(())),
                    Err(other) => Err(other.into()),
                }
            })
            .await?;
            ensure_eq!(cq.poll(&mut batch), Err(CqError::Overrun), "a poll after the overrun");
            end.meet().await?;
        }
    }
    Ok(())
}

/// Arrivals overrun a completion queue as well.
pub(crate) async fn an_overrun_by_arrivals_is_an_error(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let capacity = if end.role() == Role::Target { 4 } else { 128 };
    let mut cq = end.device().create_cq(capacity, None)?;
    let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(64).max_recv_wr(64);
    let mut qp = pd.create_qp(config)?;
    // The queue pair that the overrun breaks may be silent to the last SENDs.
    join(&mut qp, end, &ConnectOptions::default().retry_timeout_ns(2_000_000_000)).await?;
    match end.role() {
        Role::Target => {
            qp.post_recvs(0..64)?;
            end.meet().await?;
            end.hear::<()>().await?;
            let mut batch: [WorkCompletion; 4] = Default::default();
            end.poll_until("the overrun", || match cq.poll(&mut batch) {
                Ok(_) => Ok(None),
                Err(CqError::Overrun) => Ok(Some(())),
                Err(other) => Err(other.into()),
            })
            .await?;
        }
        Role::Initiator => {
            end.meet().await?;
            let mut posted = 0;
            // The other end's queue pair may break by the overrun already: that is as good.
            while posted < 60 && qp.post_send_one(WorkRequest::send(b"").signaled(posted)).is_ok() {
                posted += 1;
            }
            // The other end polls only then, because polls that are faster than the device leave no overrun.
            let mut ended = 0;
            let mut batch: [WorkCompletion; 16] = Default::default();
            end.poll_until("the end of the SENDs", || {
                ended += cq.poll(&mut batch)? as u64;
                Ok((ended >= posted).then_some(()))
            })
            .await?;
            end.tell(&())?;
        }
    }
    end.meet().await
}

/// As many completions as the queue was made for are no overrun.
pub(crate) async fn a_completion_queue_holds_what_it_was_made_for(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let mut cq = end.device().create_cq(16, None)?;
    let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(16).max_recv_wr(16);
    let mut qp = pd.create_qp(config)?;
    join(&mut qp, end, &patient()).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &pd, 8, ALL)?;
            end.meet().await?;
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            for lap in 0..20 {
                for id in 0..16 {
                    let request = WorkRequest::write(&[1; 8], there).signaled(16 * lap + id);
                    qp.post_send_one(request).map_err(|(error, _)| error)?;
                }
                let mut ids = Vec::new();
                let mut batch: [WorkCompletion; 5] = Default::default();
                end.poll_until("sixteen completions", || {
                    let count = cq.poll(&mut batch)?;
                    ids.extend(batch[..count].iter().map(|completion| completion.id));
                    Ok((ids.len() >= 16).then_some(()))
                })
                .await?;
                ensure_eq!(ids, (16 * lap..16 * lap + 16).collect::<Vec<_>>(), "completions");
            }
            end.meet().await?;
        }
    }
    Ok(())
}

/// A poll gives no more completions than its array has room for, and loses none of the others.
pub(crate) async fn a_short_poll_leaves_the_rest_for_the_next(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            rig.qp.post_recvs(0..40)?;
            end.meet().await?;
            let mut one: [WorkCompletion; 1] = Default::default();
            ensure_eq!(rig.cq.poll(&mut []), Ok(0), "a poll into no room");
            for id in 0..40 {
                let cq = &mut rig.cq;
                end.poll_until("the next", || Ok((cq.poll(&mut one)? == 1).then_some(()))).await?;
                ensure_eq!((one[0].id, one[0].imm), (id, Some(id as u32)), "completion {id}");
            }
            ensure_eq!(rig.cq.poll(&mut one), Ok(0), "a poll of an empty queue");
        }
        Role::Initiator => {
            end.meet().await?;
            for id in 0..40 {
                rig.post(WorkRequest::send(b"").imm(id).signaled(id.into()))?;
            }
            for id in 0..40 {
                rig.success(end, id).await?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// Send and receive completions go each to their own queue.
pub(crate) async fn each_side_of_a_queue_pair_has_its_completion_queue(
    end: &mut End,
) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let mut send_cq = end.device().create_cq(DEPTH, None)?;
    let mut recv_cq = end.device().create_cq(DEPTH, None)?;
    let mut qp = pd.create_qp(QueuePairConfig::new(QpType::Rc, &send_cq, &recv_cq))?;
    qp.post_recvs(100..110)?;
    join(&mut qp, end, &patient()).await?;
    for id in 0..10 {
        let request = WorkRequest::send(b"").signaled(id);
        qp.post_send_one(request).map_err(|(error, _)| error)?;
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut batch: [WorkCompletion; 4] = Default::default();
    end.poll_until("ten completions on each queue", || {
        for (cq, ids) in [(&mut send_cq, &mut sent), (&mut recv_cq, &mut received)] {
            let count = cq.poll(&mut batch)?;
            for completion in &batch[..count] {
                ensure_eq!(completion.status, Status::Success, "status");
                ids.push(completion.id);
            }
        }
        Ok((sent.len() == 10 && received.len() == 10).then_some(()))
    })
    .await?;
    ensure_eq!(sent, (0..10).collect::<Vec<_>>(), "send completions");
    ensure_eq!(received, (100..110).collect::<Vec<_>>(), "receive completions");
    end.meet().await
}

/// Several requests under one doorbell, some signaled: the peer has them all after the guard is gone.
pub(crate) async fn a_doorbell_rings_for_all_that_was_posted_under_it(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 8 * 30, ALL)?;
            rig.qp.post_recvs(0..30)?;
            end.meet().await?;
            for id in 0..30 {
                let arrived = rig.success(end, id).await?;
                ensure_eq!(arrived.imm, Some(id as u32), "immediate");
                ensure_eq!(region.load_u64(8 * id as usize), id + 1, "the word of {id}");
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            end.meet().await?;
            for lap in 0..3 {
                let mut doorbell = rig.qp.doorbell();
                for id in 10 * lap..10 * lap + 10_u64 {
                    let here = filled(&rig.pd, &(id + 1).to_ne_bytes())?;
                    let there = remote.slice(8 * id, 8)?;
                    let request = WorkRequest::write(here, there).imm(id as u32).unsignaled();
                    let last = id == 10 * lap + 9;
                    let request = if last { request.signaled(lap) } else { request };
                    doorbell.post(request).map_err(|(error, _)| error)?;
                }
                drop(doorbell);
                rig.success(end, lap).await?;
                ensure_eq!(rig.reclaimed().len(), 10, "buffers given back");
            }
        }
    }
    turn().await;
    rig.serve_until_met(end).await
}

/// A completion queue may be smaller than what its queue pairs could have outstanding, as long as what
/// is outstanding fits; buffers still come back by polled completions only.
pub(crate) async fn a_small_completion_queue_serves_large_queue_pairs(end: &mut End) -> CaseResult {
    const CAPACITY: usize = 16;
    let pd = end.device().alloc_pd()?;
    let mut cq = end.device().create_cq(CAPACITY, None)?;
    let mut qps = Vec::new();
    for _ in 0..3 {
        let config = QueuePairConfig::new(QpType::Rc, &cq, &cq).max_send_wr(64).max_recv_wr(64);
        let mut qp = pd.create_qp(config)?;
        join(&mut qp, end, &patient()).await?;
        qps.push(qp);
    }
    let mut one: [WorkCompletion; 1] = Default::default();
    match end.role() {
        Role::Target => {
            let _region = expose(end, &pd, 8, ALL)?;
            end.meet().await?;
            for lap in 0..20 {
                for qp in &mut qps {
                    qp.post_recvs(0..5)?;
                }
                for _ in 0..15 {
                    end.poll_until("a receive", || Ok((cq.poll(&mut one)? == 1).then_some(())))
                        .await?;
                    ensure_eq!(one[0].imm, Some(lap), "lap of an arrival");
                }
                end.meet().await?;
            }
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            end.meet().await?;
            for lap in 0..20 {
                for qp in &mut qps {
                    for id in 0..5 {
                        let here = filled(&pd, &[1; 8])?;
                        let request = WorkRequest::write(here, there).imm(lap).signaled(id);
                        qp.post_send_one(request).map_err(|(error, _)| error)?;
                    }
                }
                let mut polled = 0;
                let mut given_back = 0;
                while polled < 15 {
                    end.poll_until("a SEND", || Ok((cq.poll(&mut one)? == 1).then_some(())))
                        .await?;
                    ensure_eq!(one[0].status, Status::Success, "completion");
                    polled += 1;
                    qps.iter_mut().for_each(|qp| qp.reclaim(&mut |_| given_back += 1));
                    ensure_eq!(given_back, polled, "buffers given back after {polled} completions");
                }
                end.meet().await?;
            }
        }
    }
    Ok(())
}
