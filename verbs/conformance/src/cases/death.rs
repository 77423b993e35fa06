//! A peer that is killed.

use farcall_verbs::{Access, ConnectOptions, PostError, QpState, QpType, Status, WorkRequest};

use crate::end::{End, Role, turn};
use crate::rig::{DEATH_NOTICE_NS, DEPTH, Rig, discover, expose, filled, join_here, pattern, room};
use crate::usage::settles;
use crate::verdict::{CaseResult, ensure, ensure_eq};

/// A silent peer counts as gone early enough for the error to come within [`DEATH_NOTICE_NS`].
fn attentive() -> ConnectOptions {
    ConnectOptions::default().retry_timeout_ns(300_000_000)
}

fn kill_peer(end: &mut End) {
    if let Some(kill) = &mut end.powers().kill_peer {
        kill();
    }
}

/// Serves receives and answers until it is killed.
async fn serve_until_killed(end: &mut End, rig: &mut Rig) -> CaseResult {
    rig.qp.post_recvs(0..DEPTH as u64 / 2)?;
    let deadline_ns = end.deadline_ns();
    loop {
        if let Some(arrived) = rig.poll_once()? {
            ensure_eq!(arrived.status, Status::Success, "completion {}", arrived.id);
            if arrived.imm.is_some() {
                rig.qp.post_recv(0, None)?;
                // Traffic both ways; no room for one more is fine.
                match rig.qp.post_send_one(WorkRequest::send(b"").imm(1).signaled(0)) {
                    Ok(()) | Err((PostError::QueueFull, _)) => {}
                    Err((error, _)) => return Err(error.into()),
                }
            }
        }
        ensure!(end.device().now_ns() < deadline_ns, "this end was not killed");
        turn().await;
    }
}

/// Loads the connection with one kind of request, kills the peer in the middle, and shows that every
/// request ends, in errors, in time.
async fn killed_under_load(
    end: &mut End,
    make: impl Fn(&Rig, farcall_verbs::RemoteRegion) -> CaseResult<WorkRequest<'static>>,
) -> CaseResult {
    const BEFORE_THE_KILL: u64 = 500;
    let before = end.usage()?;
    let pd = end.device().alloc_pd()?;
    let mut rig = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
    rig.connect_with(end, &attentive()).await?;
    if end.role() == Role::Target {
        let _region = expose(end, &rig.pd, 1 << 20, Access::all())?;
        return serve_until_killed(end, &mut rig).await;
    }
    const RECEIVES: u64 = 32;
    let remote = discover(end).await?;
    rig.qp.post_recvs(1 << 32..(1 << 32) + RECEIVES)?;
    let (mut posted, mut ended, mut receives) = (0, 0, RECEIVES);
    let mut killed_at_ns = None;
    let deadline_ns = end.deadline_ns();
    let mut broken = false;
    while !(broken && ended == posted && receives == 0) {
        while !broken && posted - ended < 16 {
            match rig.qp.post_send_one(make(&rig, remote)?.signaled(posted)) {
                Ok(()) => posted += 1,
                Err((PostError::QueueFull, _)) => break,
                Err((PostError::State(QpState::Error), _)) => broken = true,
                Err((error, _)) => return Err(error.into()),
            }
        }
        while let Some(completion) = rig.poll_once()? {
            let is_receive = completion.id >= 1 << 32;
            if is_receive && completion.status == Status::Success {
                rig.qp.post_recv(completion.id, None).or_else(|error| match error {
                    PostError::State(QpState::Error) => {
                        receives -= 1;
                        Ok(())
                    }
                    other => Err(other),
                })?;
            } else if is_receive {
                receives -= 1;
            } else {
                ensure_eq!(completion.id, ended, "order of completions");
                ended += 1;
            }
            if completion.status != Status::Success {
                ensure!(killed_at_ns.is_some(), "{completion:?} before the peer was killed");
                broken = true;
            }
        }
        drop(rig.reclaimed());
        let now_ns = end.device().now_ns();
        match killed_at_ns {
            None if ended >= BEFORE_THE_KILL => {
                kill_peer(end);
                killed_at_ns = Some(end.device().now_ns());
            }
            None => ensure!(now_ns < deadline_ns, "only {ended} requests ended in time"),
            Some(killed_at_ns) => ensure!(
                now_ns < killed_at_ns + DEATH_NOTICE_NS,
                "1 s after the kill: {ended} of {posted} ended, {receives} receives are missing, \
                 state {:?}",
                rig.qp.state()
            ),
        }
        turn().await;
    }
    ensure_eq!(rig.qp.state(), QpState::Error, "state");

    // The device goes on, and nothing of the killed peer stays.
    let mut a = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
    let mut b = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
    join_here(&mut a.qp, &mut b.qp)?;
    b.receive(1, 8)?;
    a.post(WorkRequest::send(b"alive").signaled(1))?;
    a.success(end, 1).await?;
    b.success(end, 1).await?;
    drop((a, b, rig, pd));
    settles(end, before, 0, "the death of the other end").await
}

/// Killed under a load of WRITEs.
pub(crate) async fn a_peer_killed_under_writes_ends_them_in_errors(end: &mut End) -> CaseResult {
    killed_under_load(end, |rig, remote| {
        Ok(WorkRequest::write(filled(&rig.pd, &[1; 4096])?, remote.slice(0, 4096)?).into())
    })
    .await
}

/// Killed under a load of WRITE_WITH_IMMs that it answers.
pub(crate) async fn a_peer_killed_under_write_with_imm_ends_them_in_errors(
    end: &mut End,
) -> CaseResult {
    killed_under_load(end, |rig, remote| {
        let here = filled(&rig.pd, &[1; 32])?;
        Ok(WorkRequest::write(here, remote.slice(64, 32)?).imm(7).into())
    })
    .await
}

/// Killed under a load of SENDs that it answers.
pub(crate) async fn a_peer_killed_under_sends_ends_them_in_errors(end: &mut End) -> CaseResult {
    killed_under_load(end, |_, _| Ok(WorkRequest::send(b"").imm(3).into())).await
}

/// Killed under a load of READs.
pub(crate) async fn a_peer_killed_under_reads_ends_them_in_errors(end: &mut End) -> CaseResult {
    killed_under_load(end, |rig, remote| {
        Ok(WorkRequest::read(room(&rig.pd, 4096)?, remote.slice(0, 4096)?))
    })
    .await
}

/// Killed while a SEND waits for a receive and the sender sleeps: the sleeper is woken.
pub(crate) async fn a_killed_peer_wakes_a_sleeper(end: &mut End) -> CaseResult {
    let channel = end.device().create_completion_channel()?;
    let mut rig = Rig::waking(end.device(), &channel)?;
    rig.connect_with(end, &attentive()).await?;
    if end.role() == Role::Target {
        // Posts no receive: only the kill ends it.
        return end.hear::<()>().await;
    }
    rig.post(WorkRequest::send(filled(&rig.pd, &pattern(1, 64))?).signaled(1))?;
    kill_peer(end);
    let killed_at_ns = end.device().now_ns();
    loop {
        rig.cq.arm();
        if let Some(failed) = rig.poll_once()? {
            ensure_eq!(failed.id, 1, "the completion");
            ensure!(failed.status != Status::Success, "a message to a killed peer succeeded");
            break;
        }
        let past_ns = end.device().now_ns() - killed_at_ns;
        ensure!(past_ns < DEATH_NOTICE_NS, "the sleeper was not woken within 1 s");
        end.sleep_until_event(&channel, DEATH_NOTICE_NS - past_ns).await?;
    }
    ensure_eq!(rig.reclaimed().len(), 1, "buffers given back");
    Ok(())
}

/// Killed while many connections are open: each of them ends.
pub(crate) async fn a_killed_peer_ends_all_its_connections(end: &mut End) -> CaseResult {
    const PAIRS: usize = 40;
    let mut rigs = Vec::new();
    for _ in 0..PAIRS {
        let mut rig = Rig::with(end.device(), QpType::Rc, 8, None)?;
        rig.connect_with(end, &attentive()).await?;
        rigs.push(rig);
    }
    if end.role() == Role::Target {
        return end.hear::<()>().await;
    }
    for rig in &mut rigs {
        rig.receive(2, 8)?;
        rig.post(WorkRequest::send(b"waits").signaled(1))?;
    }
    kill_peer(end);
    let killed_at_ns = end.device().now_ns();
    for (index, rig) in rigs.iter_mut().enumerate() {
        for _ in 0..2 {
            let ended = rig.completion(end).await?;
            ensure!(ended.status != Status::Success, "{ended:?}");
        }
        let past_ns = end.device().now_ns() - killed_at_ns;
        ensure!(past_ns < DEATH_NOTICE_NS, "connection {index} ended {past_ns} ns after the kill");
    }
    Ok(())
}

/// Connecting to a peer that was killed is an error, within a bounded time.
pub(crate) async fn connecting_to_a_killed_peer_ends_in_an_error(end: &mut End) -> CaseResult {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    let theirs = end.exchange(&rig.qp.endpoint().to_bytes().to_vec()).await?;
    if end.role() == Role::Target {
        return end.hear::<()>().await;
    }
    kill_peer(end);
    let theirs = farcall_verbs::Endpoint::from_bytes(&theirs)?;
    if rig.qp.connect(&theirs, &attentive()).is_ok() {
        rig.post(WorkRequest::send(b"anybody").signaled(1))?;
        rig.failure(end, 1).await?;
    }
    Ok(())
}

/// The id of a message that is sent only to find out that the other end is dead.
const PROBE: u64 = u64::MAX;

/// Takes completions, and counts the receives among them.
fn polled_receives(rig: &mut Rig) -> CaseResult<u64> {
    let mut count = 0;
    while let Some(completion) = rig.poll_once()? {
        count += u64::from(completion.id != PROBE);
    }
    Ok(count)
}

/// A sender that is killed keeps none of the shared receives that it was about to use: the others still
/// have every one that was posted.
pub(crate) async fn a_killed_sender_keeps_no_shared_receives(end: &mut End) -> CaseResult {
    const RECEIVES: u64 = 32;
    let pd = end.device().alloc_pd()?;
    let mut srq = pd.create_srq(RECEIVES as usize)?;
    let shared = (end.role() == Role::Initiator).then_some(&srq);
    let mut rig = Rig::within(end.device(), &pd, QpType::Rc, RECEIVES as usize, shared)?;
    rig.connect_with(end, &attentive()).await?;
    if end.role() == Role::Target {
        // Sends whenever it may, until it is killed.
        let deadline_ns = end.deadline_ns();
        loop {
            match rig.qp.post_send_one(WorkRequest::send(&[7; 100]).signaled(1)) {
                Ok(()) | Err((PostError::QueueFull, _)) => {}
                Err((error, _)) => return Err(error.into()),
            }
            while rig.poll_once()?.is_some() {}
            ensure!(end.device().now_ns() < deadline_ns, "this end was not killed");
            turn().await;
        }
    }
    let (mut posted, mut used) = (0, 0);
    let deadline_ns = end.deadline_ns();
    let mut killed = false;
    // Every receive that the sender has used completes here, the last ones after its death.
    while !(killed && rig.qp.state() == QpState::Error) {
        while !killed && posted < used + RECEIVES {
            srq.post_recv(posted, Some(room(&pd, 100)?))?;
            posted += 1;
        }
        used += polled_receives(&mut rig)?;
        if used > 400 && !killed {
            kill_peer(end);
            killed = true;
            // An end that only receives need not notice the death of its peer; its device may.
            match rig.qp.post_send_one(WorkRequest::send(b"").signaled(PROBE)) {
                Ok(()) | Err((PostError::State(QpState::Error), _)) => {}
                Err((error, _)) => return Err(error.into()),
            }
        }
        ensure!(end.device().now_ns() < deadline_ns, "{used} messages; killed: {killed}");
        turn().await;
    }
    used += polled_receives(&mut rig)?;
    drop(rig);

    let mut mine = Rig::within(end.device(), &pd, QpType::Rc, RECEIVES as usize, Some(&srq))?;
    let mut other = Rig::within(end.device(), &pd, QpType::Rc, RECEIVES as usize, None)?;
    join_here(&mut other.qp, &mut mine.qp)?;
    let left = posted - used;
    for id in 0..left {
        other.post(WorkRequest::send(b"mine").signaled(id))?;
    }
    for count in 0..left {
        let deadline_ns = end.deadline_ns();
        while mine.poll_once()?.is_none() {
            other.poll_once()?;
            let late = end.device().now_ns() > deadline_ns;
            ensure!(!late, "{left} receives were left, but only {count} SENDs found one");
            turn().await;
        }
    }
    Ok(())
}
