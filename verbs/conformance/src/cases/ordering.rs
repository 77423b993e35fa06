//! In which order one queue pair's work becomes visible to the other side.

use farcall_verbs::{Access, CompletionOpcode, QpType, WorkRequest};

use crate::end::{End, Role, turn};
use crate::rig::{DEPTH, Rig, discover, expose, filled, held, pattern, room};
use crate::verdict::{CaseResult, ensure, ensure_eq};

const ALL: Access = Access::all().difference(Access::RELAXED_ORDERING);
/// Rounds of a case that tries to catch the device in the act.
const ROUNDS: u64 = 3_000;

/// A reader that sees a WRITE sees every WRITE before it of the same queue pair.
pub(crate) async fn a_later_write_is_never_seen_before_an_earlier(end: &mut End) -> CaseResult {
    // Two pages apart, and one more region: nothing but the queue pair orders them.
    const PLACES: [usize; 3] = [0, 4096, 8192];
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let near = expose(end, &rig.pd, 3 * 4096, ALL)?;
            let far = expose(end, &rig.pd, 64, ALL)?;
            end.meet().await?;
            let (mut deadline_ns, mut before) = (end.deadline_ns(), 0);
            while far.load_u64(0) < ROUNDS {
                // Written near to far, so read far to near.
                let last = far.load_u64(0);
                if last > before {
                    (deadline_ns, before) = (end.deadline_ns(), last);
                }
                let mut seen = [last; PLACES.len() + 1];
                for (index, place) in PLACES.into_iter().enumerate().rev() {
                    seen[index] = near.load_u64(place);
                }
                ensure!(seen.is_sorted_by(|a, b| a >= b), "a later WRITE came first: {seen:?}");
                ensure!(
                    end.device().now_ns() < deadline_ns,
                    "only {last} rounds were seen in time"
                );
                turn().await;
            }
        }
        Role::Initiator => {
            let (near, far) = (discover(end).await?, discover(end).await?);
            end.meet().await?;
            for round in 1..=ROUNDS {
                let word = round.to_le_bytes();
                let mut list = Vec::new();
                for place in PLACES {
                    let there = near.slice(place as u64, 8)?;
                    list.push(WorkRequest::write(&word, there).unsignaled());
                }
                list.push(WorkRequest::write(&word, far.slice(0, 8)?).signaled(round));
                rig.qp.post_send(&mut list)?;
                rig.success(end, round).await?;
            }
        }
    }
    end.meet().await
}

/// Where WRITEs land left to right, the last aligned 8 bytes land last: a reader that sees them sees the rest.
pub(crate) async fn the_last_eight_bytes_of_a_write_land_last(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    for words in [2, 3, 8, 9, 64, 1000] {
        let len = 8 * words;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, len, ALL)?;
                end.meet().await?;
                let deadline_ns = end.deadline_ns();
                let rounds = ROUNDS / 4;
                let mut last = 0;
                while last < rounds {
                    last = region.load_u64(len - 8);
                    for word in (0..words).rev() {
                        let found = region.load_u64(8 * word);
                        ensure!(
                            found >= last,
                            "word {word} of {words} is of WRITE {found}, the last word of {last}"
                        );
                    }
                    ensure!(end.device().now_ns() < deadline_ns, "only {last} WRITEs in time");
                    turn().await;
                }
                end.meet().await?;
            }
            Role::Initiator => {
                let remote = discover(end).await?;
                end.meet().await?;
                for round in 1..=ROUNDS / 4 {
                    let bytes = round.to_le_bytes().repeat(words);
                    let here = filled(&rig.pd, &bytes)?;
                    rig.post(WorkRequest::write(here, remote.all()).signaled(round))?;
                    rig.success(end, round).await?;
                    rig.reclaimed();
                }
                end.meet().await?;
            }
        }
    }
    Ok(())
}

/// When a WRITE_WITH_IMM completes at the target, its data and all WRITEs before it are there.
pub(crate) async fn a_write_with_imm_brings_its_data_first(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let max_inline = end.device().caps().max_inline;
    let sizes = [8, 47, 48, 56, 4096, 100_000, 3];
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 200_000, ALL)?;
            rig.qp.post_recvs(0..DEPTH as u64)?;
            end.meet().await?;
            for round in 0..ROUNDS as u32 / 2 {
                let size = sizes[round as usize % sizes.len()];
                let bytes = pattern(round.into(), size);
                let mut last = [0];
                let arrived = rig.completion(end).await?;
                // What lands last is looked at first, and at once.
                region.copy_out(size - 1, &mut last);
                ensure_eq!(arrived.imm, Some(round), "immediate");
                ensure_eq!(last[0], bytes[size - 1], "round {round}: the last of {size} bytes");
                ensure!(held(&region, 0, size) == bytes, "round {round}: data not there yet");
                ensure!(held(&region, 100_000, size) == bytes, "round {round}: an earlier WRITE");
                rig.qp.post_recv(0, None)?;
                end.tell(&())?;
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            end.meet().await?;
            for round in 0..ROUNDS as u32 / 2 {
                let size = sizes[round as usize % sizes.len()];
                let bytes = pattern(round.into(), size);
                let earlier = remote.slice(100_000, size as u64)?;
                let place = remote.slice(0, size as u64)?;
                let first = WorkRequest::write(filled(&rig.pd, &bytes)?, earlier).unsignaled();
                // Devices may have a short way for the small and inline ones.
                let second = if round % 2 == 0 && size <= max_inline {
                    WorkRequest::write(bytes.as_slice(), place).imm(round)
                } else {
                    WorkRequest::write(filled(&rig.pd, &bytes)?, place).imm(round)
                };
                let mut list = vec![first, second.signaled(round.into())];
                rig.qp.post_send(&mut list)?;
                rig.success(end, round.into()).await?;
                rig.reclaimed();
                end.hear::<()>().await?;
            }
        }
    }
    end.meet().await
}

/// Into a region of relaxed ordering the bytes of a WRITE may land in any order; when it completes at the
/// target, all of them are there nevertheless, those of WRITEs before it, and nothing else.
pub(crate) async fn a_relaxed_write_is_whole_when_it_completes(end: &mut End) -> CaseResult {
    const LEN: usize = 70_000;
    const GAP: usize = 100;
    let relaxed = Access::REMOTE_WRITE | Access::RELAXED_ORDERING;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 2 * (LEN + GAP), relaxed)?;
            ensure_eq!(region.access(), relaxed, "the region's access");
            rig.qp.post_recvs(0..DEPTH as u64)?;
            end.meet().await?;
            for round in 0..60_u32 {
                let bytes = pattern(round.into(), LEN);
                let arrived = rig.completion(end).await?;
                ensure_eq!(arrived.imm, Some(round), "immediate");
                for place in [0, LEN + GAP] {
                    ensure!(held(&region, place, LEN) == bytes, "round {round}: not all is there");
                    let beside = held(&region, place + LEN, GAP);
                    ensure!(beside.iter().all(|byte| *byte == 0), "round {round}: too much is");
                }
                rig.qp.post_recv(0, None)?;
                end.tell(&())?;
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            let first = remote.slice(0, LEN as u64)?;
            let second = remote.slice((LEN + GAP) as u64, LEN as u64)?;
            end.meet().await?;
            for round in 0..60_u32 {
                let bytes = pattern(round.into(), LEN);
                rig.post(WorkRequest::write(filled(&rig.pd, &bytes)?, first).unsignaled())?;
                let here = filled(&rig.pd, &bytes)?;
                rig.post(WorkRequest::write(here, second).imm(round).signaled(round.into()))?;
                rig.success(end, round.into()).await?;
                rig.reclaimed();
                end.hear::<()>().await?;
            }
        }
    }
    end.meet().await
}

/// When a SEND arrives, the WRITEs before it are visible.
pub(crate) async fn a_send_arrives_after_the_writes_before_it(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 4096, ALL)?;
            rig.receive(0, 8)?;
            end.meet().await?;
            for round in 0..300 {
                let arrived = rig.success(end, 0).await?;
                let round_sent = arrived.buffer.as_deref().map(<[u8]>::to_vec);
                ensure_eq!(round_sent, Some(u64::to_le_bytes(round).to_vec()), "the SEND");
                ensure!(held(&region, 0, 4096) == pattern(round, 4096), "WRITE {round} is late");
                rig.receive(0, 8)?;
                end.tell(&())?;
            }
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            end.meet().await?;
            for round in 0..300_u64 {
                let here = filled(&rig.pd, &pattern(round, 4096))?;
                rig.post(WorkRequest::write(here, remote.all()).unsignaled())?;
                rig.post(WorkRequest::send(&round.to_le_bytes()).signaled(round))?;
                rig.success(end, round).await?;
                rig.reclaimed();
                end.hear::<()>().await?;
            }
        }
    }
    end.meet().await
}

/// A READ sees the WRITEs before it of the same queue pair, completed or not.
pub(crate) async fn a_read_sees_the_writes_before_it(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 8192, ALL)?;
            end.meet().await?;
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            for (round, size) in
                [1, 8, 48, 100, 4096, 8192].into_iter().cycle().take(60).enumerate()
            {
                let bytes = pattern(round as u64, size);
                let there = remote.slice(0, size as u64)?;
                let mut list = vec![
                    WorkRequest::write(filled(&rig.pd, &bytes)?, there).unsignaled(),
                    WorkRequest::read(room(&rig.pd, size)?, there).signaled(1),
                ];
                rig.qp.post_send(&mut list)?;
                rig.success(end, 1).await?;
                let given_back = rig.reclaimed();
                ensure_eq!(given_back.len(), 2, "buffers given back");
                ensure!(*given_back[1] == *bytes, "the READ missed the WRITE of round {round}");
            }
            end.meet().await?;
        }
    }
    Ok(())
}

/// Completions of a send queue come in the order of posting, whatever the operations.
pub(crate) async fn send_completions_come_in_the_order_of_posting(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let _region = expose(end, &rig.pd, 1 << 16, ALL)?;
            for id in 0..20 {
                rig.receive(id, 20_000)?;
            }
            end.meet().await?;
            for id in 0..20 {
                let arrived = rig.success(end, id).await?;
                let wanted = if id % 2 == 0 {
                    CompletionOpcode::Recv
                } else {
                    CompletionOpcode::RecvWriteWithImm
                };
                ensure_eq!(arrived.opcode, wanted, "arrival {id}");
            }
            // The last request needs the region, and no receive.
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            end.meet().await?;
            let mut posted = Vec::new();
            for round in 0..10 {
                // A long SEND between short one-sided operations, which could overtake it.
                let long = filled(&rig.pd, &pattern(round, 20_000))?;
                let there = remote.slice(0, 8)?;
                let requests = [
                    (CompletionOpcode::Send, WorkRequest::send(long).unsignaled()),
                    (CompletionOpcode::Read, WorkRequest::read(room(&rig.pd, 8)?, there)),
                    (CompletionOpcode::Write, WorkRequest::write(&[3; 8], there).imm(7).into()),
                    (
                        CompletionOpcode::FetchAdd,
                        WorkRequest::fetch_add(room(&rig.pd, 8)?, there, 1),
                    ),
                ];
                for (opcode, request) in requests {
                    let id = posted.len() as u64;
                    rig.post(request.signaled(id))?;
                    posted.push(opcode);
                }
            }
            for (id, opcode) in posted.into_iter().enumerate() {
                ensure_eq!(rig.success(end, id as u64).await?.opcode, opcode, "completion {id}");
            }
            rig.serve_until_met(end).await
        }
    }
}

/// SENDs of all sizes in one list arrive in its order, each whole.
pub(crate) async fn a_list_of_sends_arrives_in_order(end: &mut End) -> CaseResult {
    const COUNT: u64 = 40;
    let size = |id: u64| (id as usize * 977) % 9000;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            for id in 0..COUNT {
                rig.receive(id, size(id))?;
            }
            end.meet().await?;
            for id in 0..COUNT {
                let arrived = rig.success(end, id).await?;
                let same = arrived.buffer.is_some_and(|buffer| *buffer == *pattern(id, size(id)));
                ensure!(same, "message {id} of {} bytes changed", size(id));
            }
        }
        Role::Initiator => {
            end.meet().await?;
            let mut list = Vec::new();
            for id in 0..COUNT {
                let here = filled(&rig.pd, &pattern(id, size(id)))?;
                let request = WorkRequest::send(here).unsignaled();
                list.push(if id + 1 == COUNT { request.signaled(id) } else { request });
            }
            rig.qp.post_send(&mut list)?;
            ensure!(list.is_empty(), "{} requests stayed in the list", list.len());
            rig.success(end, COUNT - 1).await?;
        }
    }
    rig.serve_until_met(end).await
}
