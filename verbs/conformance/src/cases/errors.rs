//! Broken connections: queued work comes back, and no wait is endless.

use farcall_verbs::{
    Access, ConnectError, ConnectOptions, Endpoint, PostError, QpState, QpType, Status, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{Rig, discover, expose, filled, patient, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();

/// Gives up on a silent peer well within a case's patience.
fn impatient() -> ConnectOptions {
    ConnectOptions::default().retry_timeout_ns(300_000_000)
}

/// Breaking a queue pair gives back every posted receive, once, in order, flushed.
pub(crate) async fn breaking_a_queue_pair_flushes_its_receives(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    for id in 0..10 {
        let bytes = pattern(id, 16);
        let buffer = filled(&rig.pd, &bytes)?;
        rig.qp.post_recv(id, (id % 3 != 0).then_some(buffer))?;
    }
    end.meet().await?;
    if end.role() == Role::Target {
        rig.qp.to_error();
        ensure_eq!(rig.qp.state(), QpState::Error, "state");
        for id in 0..10 {
            let flushed = rig.completion(end).await?;
            ensure_eq!((flushed.id, flushed.status), (id, Status::Flushed), "receive");
            ensure_eq!(flushed.qp, rig.qp.number(), "queue pair");
            ensure_eq!(flushed.buffer.is_some(), id % 3 != 0, "buffer of receive {id}");
        }
        rig.stays_quiet(20).await?;
    }
    end.meet().await
}

/// Breaking a queue pair flushes its queued sends, and their buffers come back.
pub(crate) async fn breaking_a_queue_pair_flushes_its_sends(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    if end.role() == Role::Initiator {
        let pool = rig.pd.alloc_private(10 * 64)?.into_pool(64);
        // No receive is posted there, so all of them wait.
        for id in 0..10 {
            let Some(buffer) = pool.take() else {
                return Err(Halt::failed("a new pool has fewer buffers than fit it"));
            };
            rig.post(WorkRequest::send(buffer).signaled(id))?;
        }
        rig.stays_quiet(20).await?;
        rig.qp.to_error();
        for id in 0..10 {
            ensure_eq!(rig.failure(end, id).await?, Status::Flushed, "SEND {id}");
        }
        ensure_eq!(rig.reclaimed().len(), 10, "buffers given back");
        ensure_eq!(pool.available(), 10, "buffers in the pool");
        rig.stays_quiet(20).await?;
    }
    end.meet().await
}

/// Work posted on a broken queue pair is refused or flushed; its buffer is not lost.
pub(crate) async fn a_broken_queue_pair_takes_no_work(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let pool = rig.pd.alloc_private(64)?.into_pool(32);
    rig.qp.to_error();
    let Some(buffer) = pool.take() else {
        return Err(Halt::failed("a new pool is empty"));
    };
    match rig.qp.post_send_one(WorkRequest::send(buffer).signaled(1)) {
        Err((PostError::State(QpState::Error), request)) => drop(request),
        Ok(()) => {
            ensure_eq!(rig.failure(end, 1).await?, Status::Flushed, "a SEND");
            drop(rig.reclaimed());
        }
        other => return Err(Halt::failed(format!("a SEND: {other:?}"))),
    }
    match rig.qp.post_recv(2, pool.take()) {
        Err(PostError::State(QpState::Error)) => {}
        Ok(()) => ensure_eq!(rig.failure(end, 2).await?, Status::Flushed, "a receive"),
        other => return Err(Halt::failed(format!("a receive: {other:?}"))),
    }
    ensure_eq!(pool.available(), 2, "buffers in the pool");
    end.meet().await
}

/// A queue pair that is not connected yet sends nothing.
pub(crate) async fn an_unconnected_queue_pair_sends_nothing(end: &mut End) -> CaseResult {
    for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut rig = Rig::unconnected(end.device(), ty)?;
        ensure_eq!(rig.qp.state(), QpState::Init, "state of a new queue pair");
        let refusal = rig.qp.post_send_one(WorkRequest::send(b"").signaled(1));
        match refusal {
            Err((PostError::State(QpState::Init), _)) => {}
            other => return Err(Halt::failed(format!("a SEND on {ty:?}: {other:?}"))),
        }
    }
    end.meet().await
}

/// A queue pair is connected once, and to one of its own type.
pub(crate) async fn a_queue_pair_is_connected_once(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    ensure_eq!(rig.qp.state(), QpState::ReadyToSend, "state");
    let peer = rig.qp.endpoint();
    match rig.qp.connect(&peer, &patient()) {
        Err(ConnectError::State(QpState::ReadyToSend)) => {}
        other => return Err(Halt::failed(format!("connecting twice: {other:?}"))),
    }
    match rig.qp.activate(1) {
        Err(ConnectError::Type(QpType::Rc)) => {}
        other => return Err(Halt::failed(format!("activating RC: {other:?}"))),
    }
    let mut datagrams = Rig::unconnected(end.device(), QpType::Ud)?;
    match datagrams.qp.connect(&peer, &patient()) {
        Err(ConnectError::Type(QpType::Ud)) => {}
        other => return Err(Halt::failed(format!("connecting UD: {other:?}"))),
    }
    let mut unreliable = Rig::unconnected(end.device(), QpType::Uc)?;
    match unreliable.qp.connect(&peer, &patient()) {
        Err(ConnectError::Mismatch(_)) => {}
        other => return Err(Halt::failed(format!("connecting UC to RC: {other:?}"))),
    }
    end.meet().await
}

/// Bytes that are not an endpoint are an error, never more than that.
pub(crate) async fn bytes_that_are_no_endpoint_are_refused(end: &mut End) -> CaseResult {
    let rig = Rig::unconnected(end.device(), QpType::Rc)?;
    let good = rig.qp.endpoint().to_bytes().to_vec();
    ensure!(good.len() <= Endpoint::MAX_BYTES, "an endpoint of {} bytes", good.len());
    ensure_eq!(Endpoint::from_bytes(&good)?.to_bytes(), good, "an endpoint and back");
    ensure_eq!(Endpoint::from_bytes(&good)?.qp(), rig.qp.number(), "the queue pair it names");
    for len in 0..good.len() {
        let cut = Endpoint::from_bytes(&good[..len]);
        ensure!(cut.is_err(), "an endpoint cut to {len} of {} bytes", good.len());
    }
    ensure!(Endpoint::from_bytes(&[0; 65]).is_err(), "65 bytes");
    let options = impatient().setup_timeout(std::time::Duration::from_secs(1));
    for position in 0..good.len() {
        let mut bytes = good.clone();
        bytes[position] ^= 0x41;
        let Ok(endpoint) = Endpoint::from_bytes(&bytes) else { continue };
        // It may or may not name a queue pair: connecting fails, or the first message does.
        let mut other = Rig::unconnected(end.device(), QpType::Rc)?;
        if other.qp.connect(&endpoint, &options).is_ok() {
            other.qp.to_error();
        }
    }
    end.meet().await
}

/// After the peer has dropped its queue pair, requests end in an error; those behind are flushed.
async fn peer_is_gone(end: &mut End, drop_it: bool, queued_first: bool) -> CaseResult {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    rig.connect_with(end, &impatient()).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8, ALL)?;
            if queued_first {
                end.hear::<()>().await?;
            }
            if drop_it {
                drop(rig);
            } else {
                rig.qp.to_error();
            }
            end.tell(&())?;
            end.meet().await
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            rig.receive(50, 8)?;
            if queued_first {
                for id in 0..5 {
                    rig.post(WorkRequest::send(b"waits for a receive").signaled(id))?;
                }
                rig.stays_quiet(10).await?;
                end.tell(&())?;
            }
            end.hear::<()>().await?;
            if !queued_first {
                for id in 0..5 {
                    let request = if id % 2 == 0 {
                        WorkRequest::send(b"anybody").signaled(id)
                    } else {
                        WorkRequest::write(&[1; 8], there).signaled(id)
                    };
                    // The device may know already that the peer is gone, and refuse.
                    match rig.qp.post_send_one(request) {
                        Ok(()) | Err((PostError::State(QpState::Error), _)) => {}
                        Err((error, _)) => return Err(error.into()),
                    }
                }
            }
            let mut sends = Vec::new();
            let mut receives = Vec::new();
            let receive_wanted = 1;
            let first = rig.completion(end).await?;
            ensure!(first.status != Status::Success, "a message to a missing queue pair succeeded");
            let mut next = Some(first);
            while let Some(completion) = next.take() {
                ensure!(completion.status != Status::Success, "{completion:?}");
                if completion.id == 50 { &mut receives } else { &mut sends }.push(completion.id);
                let wanted = if queued_first { 5 } else { sends.len() };
                if sends.len() < wanted || receives.len() < receive_wanted {
                    next = Some(rig.completion(end).await?);
                } else {
                    next = rig.poll_once()?;
                }
            }
            ensure_eq!(rig.qp.state(), QpState::Error, "state");
            ensure!(sends.is_sorted() && sends.len() <= 5, "failed requests: {sends:?}");
            end.meet().await
        }
    }
}

/// Requests to a queue pair that was dropped before.
pub(crate) async fn requests_to_a_dropped_queue_pair_fail(end: &mut End) -> CaseResult {
    peer_is_gone(end, true, false).await
}

/// Requests that wait when the peer drops its queue pair.
pub(crate) async fn requests_that_wait_fail_when_the_peer_drops(end: &mut End) -> CaseResult {
    peer_is_gone(end, true, true).await
}

/// Requests to a queue pair that was broken before.
pub(crate) async fn requests_to_a_broken_queue_pair_fail(end: &mut End) -> CaseResult {
    peer_is_gone(end, false, false).await
}

/// Requests that wait when the peer breaks its queue pair.
pub(crate) async fn requests_that_wait_fail_when_the_peer_breaks(end: &mut End) -> CaseResult {
    peer_is_gone(end, false, true).await
}

/// Connecting to a queue pair that is gone ends in an error, there or with the first message.
pub(crate) async fn connecting_to_a_missing_queue_pair_ends_in_an_error(
    end: &mut End,
) -> CaseResult {
    let rig = Rig::unconnected(end.device(), QpType::Rc)?;
    let mine = rig.qp.endpoint().to_bytes().to_vec();
    drop(rig);
    let theirs = end.exchange(&mine).await?;
    let theirs = Endpoint::from_bytes(&theirs)?;
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    if rig.qp.connect(&theirs, &impatient()).is_ok() {
        rig.post(WorkRequest::send(b"anybody").signaled(1))?;
        rig.failure(end, 1).await?;
    }
    end.meet().await
}

/// Messages in flight to a queue pair that was dropped do not reach the one that comes after it.
pub(crate) async fn a_new_queue_pair_receives_nothing_sent_to_an_old_one(
    end: &mut End,
) -> CaseResult {
    for _ in 0..20 {
        let mut old = Rig::unconnected(end.device(), QpType::Rc)?;
        old.connect_with(end, &impatient()).await?;
        let mut new;
        match end.role() {
            Role::Target => {
                let (device, pd) = (end.device().clone(), old.pd.clone());
                drop(old);
                new = Rig::within(&device, &pd, QpType::Rc, 8, None)?;
                new.receive(1, 64)?;
                new.connect(end).await?;
                let arrived = new.success(end, 1).await?;
                ensure_eq!(arrived.buffer.as_deref(), Some(&b"for the new"[..]), "the message");
            }
            Role::Initiator => {
                new = Rig::within(end.device(), &old.pd, QpType::Rc, 8, None)?;
                for id in 0..4 {
                    // Refused once the device knows that the peer is gone.
                    let _ = old.qp.post_send_one(WorkRequest::send(b"for the old").signaled(id));
                }
                new.connect(end).await?;
                new.post(WorkRequest::send(b"for the new").signaled(1))?;
                new.success(end, 1).await?;
            }
        }
        new.serve_until_met(end).await?;
    }
    Ok(())
}

/// What a READ was to fill comes back after an error, too.
pub(crate) async fn a_failed_read_gives_back_its_buffer(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8, Access::empty())?;
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            rig.post(WorkRequest::read(room(&rig.pd, 8)?, there).signaled(1))?;
            rig.failure(end, 1).await?;
            ensure_eq!(rig.reclaimed().len(), 1, "buffers given back");
            rig.serve_until_met(end).await
        }
    }
}

/// A sender that has seen its messages complete may leave at once: they are delivered all the same,
/// before what is flushed.
pub(crate) async fn messages_that_arrived_are_delivered_after_the_peer_has_left(
    end: &mut End,
) -> CaseResult {
    const MESSAGES: u64 = 20;
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    rig.connect_with(end, &impatient()).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 8, ALL)?;
            for id in 0..MESSAGES + 5 {
                rig.receive(id, 100)?;
            }
            end.meet().await?;
            // Not polled before the other end has left.
            end.hear::<()>().await?;
            for id in 0..MESSAGES {
                let arrived = rig.success(end, id).await?;
                let whole = id % 2 == 1
                    || arrived.buffer.is_some_and(|buffer| *buffer == *pattern(id, 100));
                ensure!(whole, "message {id} changed");
            }
            ensure_eq!(region.load_u64(0), MESSAGES - 1, "the last WRITE_WITH_IMM");
            rig.qp.to_error();
            for id in MESSAGES..MESSAGES + 5 {
                ensure_eq!(rig.failure(end, id).await?, Status::Flushed, "an unused receive");
            }
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            end.meet().await?;
            for id in 0..MESSAGES {
                let (bytes, word) = (pattern(id, 100), id.to_ne_bytes());
                rig.post(if id % 2 == 0 {
                    WorkRequest::send(&bytes[..]).signaled(id)
                } else {
                    WorkRequest::write(&word, there).imm(7).signaled(id)
                })?;
                rig.success(end, id).await?;
            }
            drop(rig);
            end.tell(&())?;
        }
    }
    end.meet().await
}
