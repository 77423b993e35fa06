//! Ownership: drop orders, work in flight, and leaks.

use std::any::Any;

use farcall_verbs::{
    Access, ConnectOptions, Endpoint, GRH_BYTES, PostError, QpState, QpType, Status, WorkRequest,
};

use crate::end::{End, Role, turn};
use crate::rig::{QKEY, Rig, discover, expose, filled, held, join_here, patient, pattern, room};
use crate::usage::{Usage, settles};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();

/// The permutation of `0..count` with this number, in the factorial number system.
fn permutation(mut number: usize, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    (1..=count).rev().map(|choices| left.remove(take_digit(&mut number, choices))).collect()
}

fn take_digit(number: &mut usize, base: usize) -> usize {
    let digit = *number % base;
    *number /= base;
    digit
}

/// Queue pair, completion queue, domain, region and buffers may be dropped in any order, with work
/// posted; the device goes on.
pub(crate) async fn resources_may_be_dropped_in_any_order(end: &mut End) -> CaseResult {
    const RESOURCES: usize = 5;
    for number in 0..120 {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        let region = rig.pd.alloc_shared(64, ALL)?;
        let theirs = end.exchange(&region.remote()).await?;
        let pool = rig.pd.alloc_private(4096)?.into_pool(64);
        rig.qp.post_recv(1, pool.take())?;
        rig.post(WorkRequest::write(&[1; 8], theirs.slice(0, 8)?).signaled(2))?;
        rig.post(WorkRequest::write(region.slice(8, 8), theirs.slice(8, 8)?).unsignaled())?;
        if let Some(buffer) = pool.take() {
            rig.post(WorkRequest::send(buffer).signaled(3))?;
        }
        end.meet().await?;
        let Rig { qp, cq, pd, .. } = rig;
        let mut resources: [Option<Box<dyn Any>>; RESOURCES] = [
            Some(Box::new(qp)),
            Some(Box::new(cq)),
            Some(Box::new(pd)),
            Some(Box::new(region)),
            Some(Box::new(pool)),
        ];
        for index in permutation(number, RESOURCES) {
            resources[index] = None;
        }
        end.meet().await?;
    }
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    rig.receive(1, 8)?;
    rig.post(WorkRequest::send(b"go on").signaled(1))?;
    rig.success(end, 1).await?;
    rig.success(end, 1).await?;
    rig.serve_until_met(end).await
}

/// A resource keeps what it needs: only handles are dropped here, and work goes on.
pub(crate) async fn a_queue_pair_outlives_the_handles_it_was_made_from(
    end: &mut End,
) -> CaseResult {
    let mut rig = {
        let device = end.device().clone();
        let pd = device.alloc_pd()?;
        Rig::within(&device, &pd, QpType::Rc, 8, None)?
    };
    let pool = rig.pd.alloc_private(64)?.into_pool(64);
    let buffer = pool.take();
    drop(pool);
    rig.qp.post_recv(1, buffer)?;
    rig.connect(end).await?;
    rig.post(WorkRequest::send(b"held").signaled(2))?;
    let mut arrived = None;
    for _ in 0..2 {
        let completion = rig.completion(end).await?;
        ensure_eq!(completion.status, Status::Success, "completion {}", completion.id);
        arrived = arrived.or(completion.buffer);
    }
    rig.serve_until_met(end).await?;
    drop(rig);
    // The last handle of its pool, domain and device.
    ensure_eq!(arrived.as_deref(), Some(&b"held"[..]), "the message");
    Ok(())
}

/// A READ that finds neither queue pair nor region any more fails because nobody answers: only who is there denies access.
pub(crate) async fn a_queue_pair_is_gone_before_its_memory(end: &mut End) -> CaseResult {
    const ROUNDS: usize = 10;
    let soon = ConnectOptions::default().retry_timeout_ns(300_000_000);
    for round in 0..ROUNDS {
        let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
        rig.connect_with(end, &soon).await?;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, 4096, Access::REMOTE_READ)?;
                end.hear::<()>().await?;
                drop(rig);
                drop(region);
            }
            Role::Initiator => {
                let theirs = discover(end).await?;
                let mut buffer = room(&rig.pd, 4096)?;
                let mut is_told = false;
                let status = loop {
                    buffer.set_len(4096);
                    let read = WorkRequest::read(buffer, theirs.slice(0, 4096)?).signaled(1);
                    match rig.qp.post_send_one(read) {
                        Ok(()) => {}
                        Err((PostError::State(QpState::Error), _)) => break Status::Flushed,
                        Err((error, _)) => return Err(error.into()),
                    }
                    if !std::mem::replace(&mut is_told, true) {
                        end.tell(&())?;
                    }
                    let completion = rig.completion(end).await?;
                    if completion.status != Status::Success {
                        break completion.status;
                    }
                    let read = completion.buffer.or_else(|| rig.reclaimed().pop());
                    buffer = read.ok_or_else(|| Halt::failed("a READ kept its buffer"))?;
                    turn().await;
                };
                let is_gone = matches!(status, Status::RetryExceeded | Status::Flushed);
                ensure!(is_gone, "round {round}: {status:?}");
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// A queue pair that is dropped while a long SEND leaves does not let its bytes be changed on the way.
pub(crate) async fn a_dropped_queue_pair_does_not_send_what_its_buffer_holds_later(
    end: &mut End,
) -> CaseResult {
    const LEN: usize = 256 << 10;
    for round in 0..30 {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        let bytes = pattern(round, LEN);
        match end.role() {
            Role::Target => {
                rig.receive(1, LEN)?;
                end.tell(&())?;
                let peer_is_done = end.deadline_ns();
                let mut polls = 0;
                let arrived = loop {
                    if let Some(arrived) = rig.poll_once()? {
                        break Some(arrived);
                    }
                    polls += 1;
                    // The message may be lost with its queue pair: then nothing comes.
                    if polls > 2_000 || end.device().now_ns() > peer_is_done {
                        break None;
                    }
                    turn().await;
                };
                if let Some(arrived) = arrived
                    && arrived.status == Status::Success
                {
                    let whole = arrived.buffer.is_some_and(|buffer| *buffer == *bytes);
                    ensure!(whole, "round {round}: a message changed after its sender was dropped");
                }
            }
            Role::Initiator => {
                end.hear::<()>().await?;
                let pd = rig.pd.clone();
                let pool = pd.alloc_private(LEN)?.into_pool(LEN);
                let Some(mut buffer) = pool.take() else {
                    return Err(Halt::failed("a new pool is empty"));
                };
                buffer.copy_from_slice(&bytes);
                rig.post(WorkRequest::send(buffer).signaled(1))?;
                if round % 3 == 0 {
                    turn().await;
                    rig.poll_once()?;
                }
                drop(rig);
                if let Some(mut buffer) = pool.take() {
                    buffer.fill(0xdd);
                }
                room(&pd, LEN)?.fill(0xdd);
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// A READ in flight when its queue pair is dropped writes into no memory that has another owner.
pub(crate) async fn a_dropped_queue_pair_does_not_write_into_memory_given_back(
    end: &mut End,
) -> CaseResult {
    const LEN: usize = 64 << 10;
    for round in 0..30 {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, LEN, ALL)?;
                region.copy_in(0, &pattern(1, LEN));
                rig.serve_until_met(end).await?;
                end.meet().await?;
            }
            Role::Initiator => {
                let there = discover(end).await?.all();
                rig.serve_until_met(end).await?;
                let pd = rig.pd.clone();
                let pool = pd.alloc_private(4 * LEN)?.into_pool(LEN);
                for id in 0..4 {
                    let Some(buffer) = pool.take() else {
                        return Err(Halt::failed("a new pool has fewer buffers than fit it"));
                    };
                    rig.post(WorkRequest::read(buffer, there).signaled(id))?;
                }
                drop(rig);
                let mut mine = Vec::new();
                while let Some(mut buffer) = pool.take() {
                    buffer.fill(round);
                    mine.push(buffer);
                }
                for _ in 0..20 {
                    turn().await;
                }
                let intact = mine.iter().all(|buffer| buffer.iter().all(|byte| *byte == round));
                ensure!(intact, "round {round}: a READ has written into a buffer given back");
                end.meet().await?;
            }
        }
    }
    Ok(())
}

/// A posted receive whose queue pair is dropped goes back to its pool, or is kept; it is never given twice.
pub(crate) async fn posted_receives_of_a_dropped_queue_pair_are_not_given_twice(
    end: &mut End,
) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let pool = pd.alloc_private(32 * 64)?.into_pool(64);
    for _ in 0..10 {
        let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 32, None)?;
        rig.connect(end).await?;
        while let Some(buffer) = pool.take() {
            rig.qp.post_recv(1, Some(buffer))?;
        }
        rig.post(WorkRequest::send(b"one of many").signaled(2))?;
        end.meet().await?;
        drop(rig);
        ensure!(pool.available() <= 32, "{} buffers in a pool of 32", pool.available());
        end.meet().await?;
    }
    Ok(())
}

/// Hundreds of connections opened, used and closed leave nothing behind, at either end.
pub(crate) async fn connections_that_come_and_go_leave_nothing(end: &mut End) -> CaseResult {
    const WARM_UP: u64 = 20;
    let pd = end.device().alloc_pd()?;
    let mut before = end.usage()?;
    for round in 0..300 {
        if round == WARM_UP {
            before = end.usage()?;
        }
        let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
        rig.receive(1, 16)?;
        rig.connect(end).await?;
        rig.post(WorkRequest::send(&round.to_le_bytes()).signaled(1))?;
        for _ in 0..2 {
            rig.success(end, 1).await?;
        }
        rig.serve_until_met(end).await?;
        // One end drops first, then the other.
        if (round % 2 == 0) == (end.role() == Role::Target) {
            drop(rig);
            end.meet().await?;
        } else {
            end.meet().await?;
            drop(rig);
        }
        end.meet().await?;
    }
    settles(end, before, 0, "300 connections").await?;
    end.meet().await
}

/// Carries one more message each way, at which a peer may notice that regions are gone, and waits until both ends hold no more
/// than before. A device that maps a peer's regions may keep the last few until it needs the place.
pub(super) async fn settles_after_a_message(
    end: &mut End,
    rig: &mut Rig,
    before: Usage,
    what: &str,
) -> CaseResult {
    const KEPT: usize = 16;
    rig.receive(2, 8)?;
    end.meet().await?;
    rig.post(WorkRequest::send(b"after").signaled(2))?;
    for _ in 0..2 {
        rig.success(end, 2).await?;
    }
    settles(end, before, KEPT, what).await?;
    rig.serve_until_met(end).await
}

/// Hundreds of regions registered, used by the peer and dropped leave nothing behind, at either end.
pub(crate) async fn regions_that_come_and_go_leave_nothing(end: &mut End) -> CaseResult {
    const WARM_UP: usize = 20;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let mut before = end.usage()?;
    for round in 0..300 {
        if round == WARM_UP {
            before = end.usage()?;
        }
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, 10_000, ALL)?;
                rig.serve_until_met(end).await?;
                ensure_eq!(held(&region, 0, 8), (round as u64).to_le_bytes(), "round {round}");
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, 8)?;
                let word = (round as u64).to_le_bytes();
                rig.post(WorkRequest::write(&word, there).signaled(1))?;
                rig.success(end, 1).await?;
                rig.serve_until_met(end).await?;
            }
        }
        end.meet().await?;
    }
    settles_after_a_message(end, &mut rig, before, "300 regions").await
}

/// Datagram queue pairs and ways to peers that come and go leave nothing behind.
pub(crate) async fn datagram_peers_that_come_and_go_leave_nothing(end: &mut End) -> CaseResult {
    const WARM_UP: usize = 10;
    let mut before = end.usage()?;
    for round in 0..100 {
        if round == WARM_UP {
            before = end.usage()?;
        }
        let mut datagrams = super::datagram::Datagrams::open(end).await?;
        super::datagram::carry(end, &mut datagrams, b"hello", None).await?;
        drop(datagrams);
        end.meet().await?;
    }
    settles(end, before, 0, "100 datagram queue pairs").await?;
    end.meet().await
}

/// A device may be opened, used and closed again and again.
pub(crate) async fn devices_that_come_and_go_leave_nothing(end: &mut End) -> CaseResult {
    const WARM_UP: usize = 5;
    let Some(reopen) = end.powers().reopen.take() else {
        return Err(Halt::failed("the fixture offered to open the device again"));
    };
    let mut before = end.usage()?;
    for round in 0..40 {
        if round == WARM_UP {
            before = end.usage()?;
        }
        let device = reopen()?;
        let mut rig = Rig::unconnected(&device, QpType::Rc)?;
        rig.connect(end).await?;
        rig.receive(1, 8)?;
        rig.post(WorkRequest::send(filled(&rig.pd, b"again")?).signaled(1))?;
        for _ in 0..2 {
            rig.success(end, 1).await?;
        }
        rig.serve_until_met(end).await?;
        drop(rig);
        drop(device);
        end.meet().await?;
    }
    settles(end, before, 0, "40 openings of the device").await?;
    end.meet().await
}

/// Two queue pairs of one device may be connected with each other, and even one with itself.
pub(crate) async fn a_device_may_talk_to_itself(end: &mut End) -> CaseResult {
    let device = end.device().clone();
    let pd = device.alloc_pd()?;
    let mut a = Rig::within(&device, &pd, QpType::Rc, 8, None)?;
    let mut b = Rig::within(&device, &pd, QpType::Rc, 8, None)?;
    join_here(&mut a.qp, &mut b.qp)?;
    b.receive(1, 100_000)?;
    a.post(WorkRequest::send(filled(&pd, &pattern(1, 100_000))?).signaled(2))?;
    // One thread at both sides: it has to give each its turn.
    let (mut sent, mut arrived) = (None, None);
    let deadline_ns = end.deadline_ns();
    while sent.is_none() || arrived.is_none() {
        sent = sent.or(a.poll_once()?);
        arrived = arrived.or(b.poll_once()?);
        ensure!(end.device().now_ns() < deadline_ns, "a message to the same device did not arrive");
        turn().await;
    }
    let arrived = arrived.and_then(|arrived| arrived.buffer);
    ensure!(arrived.is_some_and(|buffer| *buffer == *pattern(1, 100_000)), "it changed");

    let mut own = Rig::within(&device, &pd, QpType::Rc, 8, None)?;
    let itself = own.qp.endpoint();
    own.qp.connect(&itself, &patient())?;
    own.receive(3, 8)?;
    own.post(WorkRequest::send(b"echo").signaled(4))?;
    let mut ids = [own.completion(end).await?.id, own.completion(end).await?.id];
    ids.sort_unstable();
    ensure_eq!(ids, [3, 4], "completions of a queue pair that talks to itself");
    end.meet().await
}

/// A queue pair that answers datagram peers which come and go keeps nothing for those that have left.
pub(crate) async fn a_long_lived_datagram_queue_pair_forgets_peers_that_are_gone(
    end: &mut End,
) -> CaseResult {
    const WARM_UP: usize = 20;
    // The state of the last few peers may stay until the next one arrives.
    const KEPT: usize = 16;
    let mut server = super::datagram::Datagrams::open(end).await?;
    let mut before = end.usage()?;
    for round in 0..150 {
        if round == WARM_UP {
            before = end.usage()?;
        }
        let base = &mut server.base;
        match end.role() {
            Role::Initiator => {
                let theirs: Vec<u8> = end.hear().await?;
                let theirs = Endpoint::from_bytes(&theirs)?;
                let handle = base.pd.create_address_handle(&theirs)?;
                let answer = WorkRequest::send(b"welcome").to(&handle, theirs.qp(), QKEY);
                base.post(answer.signaled(1))?;
                base.success(end, 1).await?;
                base.serve_until_met(end).await?;
            }
            Role::Target => {
                let mut client = Rig::within(end.device(), &base.pd, QpType::Ud, 4, None)?;
                client.qp.activate(QKEY)?;
                client.receive(1, GRH_BYTES + 7)?;
                end.tell(client.qp.endpoint().to_bytes())?;
                client.success(end, 1).await?;
                drop(client);
                base.serve_until_met(end).await?;
            }
        }
    }
    settles(end, before, KEPT, "150 datagram peers").await?;
    end.meet().await
}
