//! One-sided operations that fail, and that meet their owner's stores: what is left in memory, and what each end may conclude.

use farcall_verbs::{Access, ConnectOptions, QpState, QpType, SharedRegion, Status, WorkRequest};

use crate::end::{End, Role, turn};
use crate::rig::{Rig, discover, expose, filled, held, room};
use crate::verdict::{CaseResult, ensure, ensure_eq};

const ALL: Access = Access::all().difference(Access::RELAXED_ORDERING);

/// A silent peer counts as gone after this time.
const RETRY_TIMEOUT_NS: u64 = 300_000_000;

fn impatient() -> ConnectOptions {
    ConnectOptions::default().retry_timeout_ns(RETRY_TIMEOUT_NS)
}

async fn connected(end: &mut End) -> CaseResult<Rig> {
    let mut rig = Rig::unconnected(end.device(), QpType::Rc)?;
    rig.connect_with(end, &impatient()).await?;
    Ok(rig)
}

/// The smallest path MTU of InfiniBand: every MTU is a multiple of it. The ends may have agreed on less than the port's.
const LEAST_MTU: usize = 256;

/// The first bytes of a WRITE of ones are there, in whole packets, and nothing behind them. Returns their number.
fn whole_packets(region: &SharedRegion, len: usize) -> CaseResult<usize> {
    let bytes = held(region, 0, region.len());
    let landed = bytes.iter().take_while(|byte| **byte == 1).count();
    ensure!(
        bytes[landed..].iter().all(|byte| *byte == 0),
        "more than the first {landed} bytes of a failed WRITE are there"
    );
    ensure!(
        landed == len || landed.is_multiple_of(LEAST_MTU),
        "{landed} bytes of a failed WRITE are there: a part of a packet"
    );
    Ok(landed)
}

/// A WRITE whose peer drops its queue pair meanwhile: it leaves whole packets, and all of them if it succeeded. Nothing lands behind the
/// initiator's completion.
pub(crate) async fn a_failed_write_leaves_whole_packets(end: &mut End) -> CaseResult {
    const ROUNDS: usize = 10;
    const LEN: usize = 300_000;
    for round in 0..ROUNDS {
        let mut rig = connected(end).await?;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, LEN + 4096, ALL)?;
                end.hear::<()>().await?;
                for _ in 0..round {
                    turn().await;
                }
                drop(rig);
                let succeeded: bool = end.hear().await?;
                let landed = whole_packets(&region, LEN)?;
                ensure!(
                    !succeeded || landed == LEN,
                    "{landed} of {LEN} bytes of a WRITE that succeeded"
                );
                end.meet().await?;
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, LEN as u64)?;
                let here = filled(&rig.pd, &[1; LEN])?;
                rig.post(WorkRequest::write(here, there).signaled(1))?;
                end.tell(&())?;
                let status = rig.completion(end).await?.status;
                ensure!(
                    matches!(status, Status::Success | Status::RetryExceeded),
                    "a WRITE to a queue pair that was dropped: {status:?}"
                );
                end.tell(&(status == Status::Success))?;
                end.meet().await?;
            }
        }
    }
    Ok(())
}

/// A WRITE that begins in its region and ends behind it is refused. Whole packets of it that fit may be there.
pub(crate) async fn a_write_beyond_its_region_leaves_whole_packets_at_most(
    end: &mut End,
) -> CaseResult {
    const LEN: usize = 20_000;
    let mut rig = connected(end).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, LEN, ALL)?;
            rig.serve_until_met(end).await?;
            let landed = whole_packets(&region, LEN)?;
            ensure!(landed < LEN, "a WRITE that was refused has landed as far as its region goes");
        }
        Role::Initiator => {
            let mut there = discover(end).await?;
            there.len += 100;
            let here = filled(&rig.pd, &[1; LEN + 100])?;
            rig.post(WorkRequest::write(here, there.all()).signaled(1))?;
            ensure_eq!(
                rig.failure(end, 1).await?,
                Status::RemoteAccess,
                "a WRITE beyond its region"
            );
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// A region that is gone denies access at once; a queue pair that is gone is silent. So an error does not say whether a peer lives.
pub(crate) async fn what_a_peer_takes_down_first_decides_the_error(end: &mut End) -> CaseResult {
    for region_first in [true, false] {
        let mut rig = connected(end).await?;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, 64, ALL)?;
                end.meet().await?;
                if region_first {
                    drop(region);
                    end.meet().await?;
                    rig.serve_until_met(end).await?;
                } else {
                    drop(rig);
                    end.meet().await?;
                    end.meet().await?;
                }
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, 8)?;
                end.meet().await?;
                end.meet().await?;
                let begin_ns = end.device().now_ns();
                rig.post(WorkRequest::write(&[1; 8], there).signaled(1))?;
                let status = rig.failure(end, 1).await?;
                let took_ns = end.device().now_ns() - begin_ns;
                let network = end.device().caps().network;
                if region_first {
                    ensure_eq!(status, Status::RemoteAccess, "its region is gone");
                } else if network {
                    ensure_eq!(status, Status::RetryExceeded, "its queue pair is gone");
                    ensure!(
                        took_ns >= RETRY_TIMEOUT_NS / 2,
                        "its queue pair is gone: an error after {took_ns} ns, before the retry timeout"
                    );
                } else {
                    // Without a network the system tells this end of the loss, maybe before the post.
                    ensure!(
                        matches!(status, Status::RetryExceeded | Status::Flushed),
                        "its queue pair is gone: {status:?}"
                    );
                }
                end.meet().await?;
            }
        }
    }
    Ok(())
}

/// Work that was posted on a queue pair and is not done when it is dropped has no completion, now or later: only the error state flushes.
pub(crate) async fn a_dropped_queue_pair_makes_no_completions(end: &mut End) -> CaseResult {
    for round in 0..20 {
        let mut rig = connected(end).await?;
        if end.role() == Role::Initiator {
            rig.qp.post_recvs(0..5)?;
            for id in 10..15 {
                // The peer has no receive, so they wait.
                rig.post(WorkRequest::send(b"").imm(1).signaled(id))?;
            }
            for _ in 0..round {
                turn().await;
            }
            let other = Rig::unconnected(end.device(), QpType::Rc)?;
            let gone = std::mem::replace(&mut rig.qp, other.qp);
            ensure_eq!(gone.state(), QpState::ReadyToSend, "state");
            drop(gone);
            rig.stays_quiet(50).await?;
        }
        end.meet().await?;
    }
    Ok(())
}

/// A process that is stopped takes no turn, but what is written into its memory completes: silence of its CPU is not its death.
pub(crate) async fn a_stopped_process_still_completes_writes(end: &mut End) -> CaseResult {
    const WRITES: u64 = 200;
    let mut rig = connected(end).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 8, ALL)?;
            rig.serve_until_met(end).await?;
            rig.serve_until_met(end).await?;
            ensure_eq!(region.load_u64(0), WRITES, "the word written last");
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            // The first one also asks for the region, which may need the peer's CPU.
            rig.post(WorkRequest::write(&[0; 8], there).signaled(0))?;
            rig.success(end, 0).await?;
            rig.serve_until_met(end).await?;
            let mut stop = end.powers().stop_peer.take();
            let mut set_stopped = |stops| stop.iter_mut().for_each(|stop| stop(stops));
            set_stopped(true);
            for id in 1..=WRITES {
                let written = rig.post(WorkRequest::write(&id.to_ne_bytes(), there).signaled(id));
                let done = match written {
                    Ok(()) => rig.success(end, id).await.map(drop),
                    Err(error) => Err(error),
                };
                if done.is_err() {
                    set_stopped(false);
                }
                done?;
            }
            set_stopped(false);
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// An atomic that fails may have run all the same: who repeats it may add twice, and who does not may not have added at all. One that
/// succeeds has run once.
pub(crate) async fn an_atomic_that_failed_may_have_run(end: &mut End) -> CaseResult {
    const ROUNDS: u64 = 30;
    let pd = end.device().alloc_pd()?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &pd, 8, ALL)?;
            for _ in 0..ROUNDS {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
                rig.connect_with(end, &impatient()).await?;
                rig.serve_until_met(end).await?;
            }
            let (succeeded, failed): (u64, u64) = end.hear().await?;
            let sum = region.load_u64(0);
            ensure!(
                (succeeded..=succeeded + failed).contains(&sum),
                "{succeeded} additions succeeded and {failed} failed, and the sum is {sum}"
            );
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            let (mut succeeded, mut failed) = (0_u64, 0_u64);
            for round in 0..ROUNDS {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
                rig.connect_with(end, &impatient()).await?;
                rig.post(WorkRequest::fetch_add(room(&pd, 8)?, there, 1).signaled(1))?;
                for _ in 0..round % 6 {
                    turn().await;
                }
                rig.qp.to_error();
                match rig.completion(end).await?.status {
                    Status::Success => succeeded += 1,
                    _ => failed += 1,
                }
                rig.serve_until_met(end).await?;
            }
            end.tell(&(succeeded, failed))?;
        }
    }
    end.meet().await
}

const LINES: usize = 16;
const VERSIONS: u64 = 2_000;

/// Stores the number of each version into all words of all lines, of each line into the first word last, until the peer has seen enough.
async fn store_versions(end: &mut End, rig: &mut Rig) -> CaseResult {
    let region = expose(end, &rig.pd, 64 * LINES, ALL)?;
    end.tell(&())?;
    let deadline_ns = end.deadline_ns();
    let mut version = 0;
    while end.overhear::<()>()?.is_none() {
        version += 1;
        for line in 0..LINES {
            for word in (0..8).rev() {
                region.store_release_u64(64 * line + 8 * word, version);
            }
        }
        rig.poll_once()?;
        ensure!(end.device().now_ns() < deadline_ns, "the other end has not come in time");
        turn().await;
    }
    Ok(())
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

/// Each line of 64 bytes of a READ is read from its first word on: a line whose owner stores that word last is whole. Of several lines
/// nothing is promised: they may be of several versions, in any order.
pub(crate) async fn a_line_of_a_read_is_read_first_word_first(end: &mut End) -> CaseResult {
    let mut rig = connected(end).await?;
    match end.role() {
        Role::Target => store_versions(end, &mut rig).await?,
        Role::Initiator => {
            let there = discover(end).await?.all();
            end.hear::<()>().await?;
            for id in 0..VERSIONS / 4 {
                rig.post(WorkRequest::read(room(&rig.pd, 64 * LINES)?, there).signaled(id))?;
                rig.success(end, id).await?;
                for buffer in rig.reclaimed() {
                    for line in buffer.chunks(64) {
                        let first = words(line).next().unwrap_or(0);
                        let whole = words(line).all(|word| word >= first);
                        ensure!(whole, "the first word of a line is newer: {line:?}");
                    }
                }
            }
            end.tell(&())?;
        }
    }
    end.meet().await
}

/// Two READs are no snapshot: what the owner stores between them is in the second one only. But the second one is no older.
pub(crate) async fn a_later_read_is_no_older(end: &mut End) -> CaseResult {
    let mut rig = connected(end).await?;
    match end.role() {
        Role::Target => store_versions(end, &mut rig).await?,
        Role::Initiator => {
            let there = discover(end).await?;
            // The owner stores the last line behind the first one, so it is read first.
            let (last, first) = (there.slice(64 * (LINES as u64 - 1), 8)?, there.slice(0, 8)?);
            let into = rig.pd.alloc_shared(16, Access::empty())?;
            end.hear::<()>().await?;
            for id in 0..VERSIONS / 4 {
                let mut list = vec![
                    WorkRequest::read(into.slice(0, 8), last),
                    WorkRequest::read(into.slice(8, 8), first).signaled(id),
                ];
                rig.qp.post_send(&mut list)?;
                rig.success(end, id).await?;
                let (last, first) = (into.load_u64(0), into.load_u64(8));
                ensure!(first >= last, "a READ saw version {last}, and one behind it {first}");
            }
            end.tell(&())?;
        }
    }
    end.meet().await
}
