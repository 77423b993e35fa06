//! Sleeping until something completes.

use std::os::fd::AsFd;
use std::time::Duration;

use farcall_verbs::{
    Access, CompletionChannel, GRH_BYTES, QpState, QpType, Status, WorkCompletion, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cases::datagram::{Datagrams, carry};
use crate::end::{End, Role, turn};
use crate::rig::{QKEY, Rig, discover, expose, filled, pattern};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// A sleeper that is not woken for longer has missed its wake-up.
const SLEEP_NS: u64 = 4_000_000_000;

/// Polls after which a queue has nothing left to do of what setting it up has caused.
const QUIET_POLLS: usize = 100;

fn channel(end: &End) -> CaseResult<CompletionChannel> {
    Ok(end.device().create_completion_channel()?)
}

/// The next completion, slept for: arm, look once more, sleep.
async fn slept_for(
    rig: &mut Rig,
    channel: &CompletionChannel,
    end: &End,
) -> CaseResult<WorkCompletion> {
    loop {
        if let Some(completion) = rig.poll_once()? {
            return Ok(completion);
        }
        rig.cq.arm();
        if let Some(completion) = rig.poll_once()? {
            return Ok(completion);
        }
        if !end.sleep_until_event(channel, SLEEP_NS).await? {
            return Err(match rig.poll_once()? {
                Some(lost) => {
                    Halt::failed(format!("{lost:?} arrived, and its sleeper was not woken"))
                }
                None => Halt::failed("nothing arrived, and no sleeper was woken"),
            });
        }
    }
}

/// A completion wakes the sleeper whose queue was armed.
pub(crate) async fn a_completion_wakes_a_sleeper(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 8, Access::all())?;
            rig.receive(1, 8)?;
            rig.qp.post_recvs(2..3)?;
            for id in [1, 2] {
                end.meet().await?;
                let arrived = slept_for(&mut rig, &channel, end).await?;
                ensure_eq!((arrived.id, arrived.status), (id, Status::Success), "receive");
            }
            ensure_eq!(region.load_u64(0), u64::MAX, "the WRITE_WITH_IMM");
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            end.meet().await?;
            rig.post(WorkRequest::send(b"wake up").signaled(1))?;
            let sent = slept_for(&mut rig, &channel, end).await?;
            ensure_eq!((sent.id, sent.status), (1, Status::Success), "SEND");
            end.meet().await?;
            rig.post(WorkRequest::write(&[0xff; 8], there).imm(1).signaled(2))?;
            let written = slept_for(&mut rig, &channel, end).await?;
            ensure_eq!((written.id, written.status), (2, Status::Success), "WRITE_WITH_IMM");
        }
    }
    rig.serve_until_met(end).await
}

/// Two ends that both sleep for each message never miss one, however the moments fall.
pub(crate) async fn no_wake_up_is_lost_between_two_sleepers(end: &mut End) -> CaseResult {
    const ROUNDS: u64 = 4_000;
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    rig.qp.post_recvs(0..32)?;
    end.meet().await?;
    let mut delay = pattern(end.role() as u64 + 1, ROUNDS as usize).into_iter();
    let starts = end.role() == Role::Initiator;
    for round in 0..ROUNDS {
        for half in [starts, !starts] {
            if half {
                // Sometimes at once, sometimes when the other end is about to sleep, or sleeps.
                for _ in 0..delay.next().unwrap_or(0) % 8 {
                    turn().await;
                }
                let request = WorkRequest::send(b"").imm(round as u32);
                rig.post(if round % 8 == 0 { request.signaled(round) } else { request.into() })?;
            } else {
                let mut arrived = slept_for(&mut rig, &channel, end).await?;
                while arrived.imm.is_none() {
                    ensure_eq!(arrived.status, Status::Success, "a SEND");
                    arrived = slept_for(&mut rig, &channel, end).await?;
                }
                ensure_eq!(arrived.imm, Some(round as u32), "the message");
                rig.qp.post_recv(0, None)?;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// Bursts from a sender that sleeps for room to a receiver that sleeps when it is idle.
pub(crate) async fn no_wake_up_is_lost_in_bursts(end: &mut End) -> CaseResult {
    const MESSAGES: u64 = 6_000;
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    let mut bursts = pattern(3, MESSAGES as usize).into_iter().map(|byte| u64::from(byte % 16) + 1);
    match end.role() {
        Role::Initiator => {
            let (mut posted, mut done) = (0, 0);
            while done < MESSAGES {
                let burst = bursts.next().unwrap_or(1);
                while posted < MESSAGES && posted < done + burst {
                    let request = WorkRequest::send(b"").imm(posted as u32);
                    rig.post(request.signaled(posted))?;
                    posted += 1;
                }
                let sent = slept_for(&mut rig, &channel, end).await?;
                ensure_eq!((sent.id, sent.status), (done, Status::Success), "SEND");
                done += 1;
            }
        }
        Role::Target => {
            // Receives come in bursts too: the sender sleeps until one lets it go on.
            let (mut posted, mut taken) = (0, 0);
            while taken < MESSAGES {
                if posted == taken {
                    let burst = bursts.next().unwrap_or(1);
                    rig.qp.post_recvs(posted..posted + burst)?;
                    posted += burst;
                }
                let arrived = slept_for(&mut rig, &channel, end).await?;
                ensure_eq!((arrived.id, arrived.imm), (taken, Some(taken as u32)), "receive");
                taken += 1;
            }
        }
    }
    rig.serve_until_met(end).await
}

/// A sender that sleeps while its peer is not ready is woken when a receive has let its SEND through.
pub(crate) async fn a_sleeping_sender_is_woken_by_a_late_receive(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    for size in [0, 48, 500_000] {
        match end.role() {
            Role::Initiator => {
                let bytes = filled(&rig.pd, &pattern(2, size))?;
                rig.post(WorkRequest::send(bytes).signaled(1))?;
                end.tell(&())?;
                let sent = slept_for(&mut rig, &channel, end).await?;
                ensure_eq!((sent.id, sent.status), (1, Status::Success), "SEND of {size} bytes");
            }
            Role::Target => {
                end.hear::<()>().await?;
                for _ in 0..50 {
                    turn().await;
                }
                rig.receive(2, size)?;
                let arrived = slept_for(&mut rig, &channel, end).await?;
                ensure_eq!((arrived.id, arrived.status), (2, Status::Success), "receive");
                let same = arrived.buffer.is_some_and(|buffer| *buffer == *pattern(2, size));
                ensure!(same, "the message changed");
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// One event may stand for completions of several queues: each of them is found.
pub(crate) async fn one_channel_serves_several_completion_queues(end: &mut End) -> CaseResult {
    const QUEUES: usize = 4;
    const ROUNDS: u32 = 200;
    let channel = channel(end)?;
    let mut rigs = Vec::new();
    for _ in 0..QUEUES {
        let mut rig = Rig::waking(end.device(), &channel)?;
        rig.connect(end).await?;
        rig.qp.post_recvs(0..32)?;
        rigs.push(rig);
    }
    end.meet().await?;
    for round in 0..ROUNDS {
        match end.role() {
            Role::Initiator => {
                for rig in &mut rigs {
                    rig.post(WorkRequest::send(b"").imm(round).signaled(1))?;
                }
                for rig in &mut rigs {
                    rig.success(end, 1).await?;
                }
                end.hear::<()>().await?;
            }
            Role::Target => {
                let mut missing = vec![true; QUEUES];
                loop {
                    let mut found = false;
                    for (rig, missing) in rigs.iter_mut().zip(&mut missing) {
                        rig.cq.arm();
                        if let Some(arrived) = rig.poll_once()? {
                            ensure_eq!(arrived.imm, Some(round), "the message");
                            rig.qp.post_recv(0, None)?;
                            (*missing, found) = (false, true);
                        }
                    }
                    if missing.iter().all(|missing| !missing) {
                        break;
                    }
                    if !found {
                        let woken = end.sleep_until_event(&channel, SLEEP_NS).await?;
                        ensure!(woken, "not woken; missing in round {round}: {missing:?}");
                    }
                }
                end.tell(&())?;
            }
        }
    }
    end.meet().await
}

/// A wait ends by its timeout when nothing happens.
pub(crate) async fn a_wait_ends_by_its_timeout(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    rig.cq.arm();
    let start_ns = end.device().now_ns();
    // A wake-up without a reason is allowed, but not for ever.
    let mut spurious = 0;
    while end.sleep_until_event(&channel, 30_000_000).await? {
        ensure!(rig.poll_once()?.is_none(), "a completion of nothing");
        spurious += 1;
        ensure!(spurious < 10, "woken {spurious} times for nothing");
    }
    let waited_ns = end.device().now_ns() - start_ns;
    ensure!(waited_ns >= 29_000_000, "a wait of 30 ms ended after {waited_ns} ns");
    end.meet().await
}

/// A wake-up from any thread ends a wait, also one that has not begun.
pub(crate) async fn a_wake_ends_a_wait(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    channel.wake();
    ensure!(end.sleep_until_event(&channel, SLEEP_NS).await?, "a wake before the wait was lost");
    while end.sleep_until_event(&channel, 0).await? {}
    if end.powers().may_block {
        for _ in 0..200 {
            let waker = channel.clone();
            let thread = std::thread::spawn(move || waker.wake());
            let woken = end.sleep_until_event(&channel, SLEEP_NS).await?;
            ensure!(thread.join().is_ok(), "the waking thread panicked");
            ensure!(woken, "a wake was lost");
        }
    }
    end.meet().await
}

/// The channel's descriptor is readable when there is an event, so that a program can poll it with others.
pub(crate) async fn the_channels_descriptor_tells_of_events(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    rig.qp.post_recvs(0..1)?;
    rig.cq.arm();
    rig.stays_quiet_once()?;
    end.meet().await?;
    rig.post(WorkRequest::send(b"").unsignaled())?;
    end.poll_until("the descriptor to become readable", || {
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok((ready > 0).then_some(()))
    })
    .await?;
    ensure!(channel.wait(Duration::ZERO)?, "a readable descriptor without an event");
    rig.success(end, 0).await?;
    rig.serve_until_met(end).await
}

/// An error wakes a sleeper too: a queue pair that breaks flushes what it waits for.
pub(crate) async fn a_flush_wakes_a_sleeper(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    rig.qp.post_recvs(0..4)?;
    rig.cq.arm();
    rig.stays_quiet_once()?;
    end.meet().await?;
    rig.qp.to_error();
    for id in 0..4 {
        let flushed = slept_for(&mut rig, &channel, end).await?;
        ensure_eq!((flushed.id, flushed.status), (id, Status::Flushed), "receive");
    }
    ensure_eq!(rig.qp.state(), QpState::Error, "state");
    end.meet().await
}

/// A sleeper whose peer drops its queue pair is woken by the failure of what it sent.
pub(crate) async fn a_dropped_peer_wakes_a_sleeper(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    let options = farcall_verbs::ConnectOptions::default().retry_timeout_ns(300_000_000);
    rig.connect_with(end, &options).await?;
    match end.role() {
        Role::Target => {
            end.hear::<()>().await?;
            drop(rig);
        }
        Role::Initiator => {
            rig.post(WorkRequest::send(b"anybody").signaled(1))?;
            end.tell(&())?;
            let failed = slept_for(&mut rig, &channel, end).await?;
            ensure_eq!(failed.id, 1, "the completion");
            ensure!(
                failed.status != Status::Success,
                "a message to a dropped queue pair succeeded"
            );
        }
    }
    end.meet().await
}

/// What arrived before the arm makes the event.
pub(crate) async fn a_message_before_the_arm_makes_an_event(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect(end).await?;
    rig.qp.post_recvs(0..1)?;
    end.meet().await?;
    // The first one may cost the receiver work of its own, which wakes it.
    match end.role() {
        Role::Initiator => rig.post(WorkRequest::send(b"").unsignaled())?,
        Role::Target => {
            rig.success(end, 0).await?;
            rig.qp.post_recvs(0..1)?;
        }
    }
    rig.stays_quiet(QUIET_POLLS).await?;
    end.meet().await?;
    if end.role() == Role::Initiator {
        rig.post(WorkRequest::send(b"").signaled(1))?;
        rig.success(end, 1).await?;
    }
    found_by_the_arm(&mut rig, &channel, end).await
}

/// The same for a datagram.
pub(crate) async fn a_datagram_before_the_arm_makes_an_event(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let rig = Rig::waking_datagrams(end.device(), &channel)?;
    let mut datagrams = Datagrams::activate(rig, end).await?;
    carry(end, &mut datagrams, b"first", None).await?;
    if end.role() == Role::Target {
        datagrams.base.receive(0, GRH_BYTES + 5)?;
    }
    datagrams.base.stays_quiet(QUIET_POLLS).await?;
    end.meet().await?;
    if end.role() == Role::Initiator {
        let bytes = filled(&datagrams.base.pd, b"early")?;
        let request = WorkRequest::send(bytes).to(&datagrams.handle, datagrams.peer, QKEY);
        datagrams.base.post(request.signaled(1))?;
        datagrams.base.success(end, 1).await?;
    }
    found_by_the_arm(&mut datagrams.base, &channel, end).await
}

/// The target arms after the initiator has sent, does not look, and sleeps until the event of receive 0.
async fn found_by_the_arm(rig: &mut Rig, channel: &CompletionChannel, end: &mut End) -> CaseResult {
    match end.role() {
        Role::Initiator => end.tell(&())?,
        Role::Target => {
            end.hear::<()>().await?;
            while end.sleep_until_event(channel, 0).await? {}
            rig.cq.arm();
            let event = end.sleep_until_event(channel, SLEEP_NS).await?;
            ensure!(event, "no event of what had arrived before");
            rig.success(end, 0).await?;
        }
    }
    end.meet().await
}

/// A queue that was not armed makes no event.
pub(crate) async fn a_queue_that_is_not_armed_wakes_no_sleeper(end: &mut End) -> CaseResult {
    let channel = channel(end)?;
    let mut waking = Rig::waking(end.device(), &channel)?;
    waking.connect(end).await?;
    waking.qp.post_recvs(0..8)?;
    let mut marker = Rig::connected(end, QpType::Rc).await?;
    marker.qp.post_recvs(0..1)?;
    end.meet().await?;
    while end.sleep_until_event(&channel, 0).await? {}
    for _ in 0..4 {
        waking.post(WorkRequest::send(b"").unsignaled())?;
    }
    waking.post(WorkRequest::send(b"").signaled(100))?;
    marker.post(WorkRequest::send(b"").unsignaled())?;
    marker.success(end, 0).await?;
    let event = end.sleep_until_event(&channel, 0).await?;
    ensure!(!event, "an event of a queue that was not armed");
    for _ in 0..6 {
        ensure_eq!(waking.completion(end).await?.status, Status::Success, "completion");
    }
    marker.serve_until_met(end).await
}
