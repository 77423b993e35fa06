//! Many queue pairs at once, as a server has them.

use std::collections::HashMap;

use farcall_verbs::{
    Access, CompletionQueue, ProtectionDomain, QpNumber, QpType, QueuePair, QueuePairConfig,
    Status, WorkCompletion, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{Rig, discover, expose, join, patient};
use crate::verdict::{CaseResult, ensure, ensure_eq};

/// Queue pairs that share one completion queue.
struct Crowd {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl Crowd {
    async fn connect(end: &mut End, count: usize, depth: usize) -> CaseResult<Crowd> {
        let pd = end.device().alloc_pd()?;
        let capacity = (2 * count * depth).min(end.device().caps().max_cqe);
        let cq = end.device().create_cq(capacity, None)?;
        let mut qps = Vec::new();
        for _ in 0..count {
            let config = QueuePairConfig::new(QpType::Rc, &cq, &cq);
            let mut qp = pd.create_qp(config.max_send_wr(depth).max_recv_wr(depth))?;
            join(&mut qp, end, &patient()).await?;
            qps.push(qp);
        }
        Ok(Crowd { qps, cq, pd })
    }

    /// Polls until `count` more completions have come, each a success.
    async fn completions(&mut self, end: &End, count: usize) -> CaseResult<Vec<WorkCompletion>> {
        let mut all = Vec::new();
        let cq = &mut self.cq;
        while all.len() < count {
            end.poll_until("more completions", || {
                let mut batch: [WorkCompletion; 32] = Default::default();
                let room = batch.len().min(count - all.len());
                let polled = cq.poll(&mut batch[..room])?;
                for completion in batch.into_iter().take(polled) {
                    ensure_eq!(completion.status, Status::Success, "completion {}", completion.id);
                    all.push(completion);
                }
                Ok((polled > 0).then_some(()))
            })
            .await?;
        }
        ensure_eq!(all.len(), count, "completions");
        Ok(all)
    }
}

/// Messages of 80 queue pairs on one completion queue all arrive, in order on each, none twice.
pub(crate) async fn eighty_queue_pairs_share_a_completion_queue(end: &mut End) -> CaseResult {
    const PAIRS: usize = 80;
    const DEPTH: usize = 16;
    const LAPS: u32 = 10;
    let mut crowd = Crowd::connect(end, PAIRS, DEPTH).await?;
    let region = expose(end, &crowd.pd, 8 * PAIRS, Access::all())?;
    let remote = discover(end).await?;
    for qp in &mut crowd.qps {
        qp.post_recvs(0..DEPTH as u64)?;
    }
    end.meet().await?;
    for lap in 0..LAPS {
        match end.role() {
            Role::Initiator => {
                for (index, qp) in crowd.qps.iter_mut().enumerate() {
                    let there = remote.slice(8 * index as u64, 8)?;
                    let mut doorbell = qp.doorbell();
                    for number in 0..DEPTH as u32 {
                        let imm = (index as u32) << 16 | (lap * DEPTH as u32 + number);
                        let word = u64::from(imm).to_ne_bytes();
                        let request = WorkRequest::write(&word, there).imm(imm);
                        doorbell.post(request.signaled(imm.into())).map_err(|(error, _)| error)?;
                    }
                }
                let all = crowd.completions(end, PAIRS * DEPTH).await?;
                let mut next: HashMap<QpNumber, u64> = HashMap::new();
                for completion in all {
                    let last = next.insert(completion.qp, completion.id);
                    ensure!(last < Some(completion.id), "completion {} again", completion.id);
                }
                ensure_eq!(next.len(), PAIRS, "queue pairs that completed");
            }
            Role::Target => {
                let numbers: Vec<_> = crowd.qps.iter().map(QueuePair::number).collect();
                let mut next = vec![lap * DEPTH as u32; PAIRS];
                for arrived in crowd.completions(end, PAIRS * DEPTH).await? {
                    let imm = arrived.imm.unwrap_or(u32::MAX);
                    let (index, count) = ((imm >> 16) as usize, imm & 0xffff);
                    ensure_eq!(numbers.get(index), Some(&arrived.qp), "queue pair of {imm:#x}");
                    ensure_eq!(count, next[index], "order on queue pair {index}");
                    next[index] += 1;
                }
                for (index, next) in next.iter().enumerate() {
                    let last = (index as u64) << 16 | u64::from(next - 1);
                    ensure_eq!(region.load_u64(8 * index), last, "word of queue pair {index}");
                }
                for qp in &mut crowd.qps {
                    qp.post_recvs(0..DEPTH as u64)?;
                }
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// A queue pair with much to be polled does not hide the message of another, which came first.
pub(crate) async fn a_busy_queue_pair_does_not_hide_a_quiet_one(end: &mut End) -> CaseResult {
    const DEPTH: u32 = 64;
    /// A device that looks at its queue pairs in turn may poll a few others first.
    const AT_MOST: usize = 8;
    for quiet in [0, 1, 2] {
        let mut crowd = Crowd::connect(end, 3, DEPTH as usize).await?;
        for qp in &mut crowd.qps {
            qp.post_recvs(0..DEPTH.into())?;
        }
        end.meet().await?;
        match end.role() {
            Role::Initiator => {
                let order = [quiet, (quiet + 1) % 3, (quiet + 2) % 3];
                for (index, count) in order.into_iter().zip([1, DEPTH, DEPTH]) {
                    for imm in 0..count {
                        let request = WorkRequest::send(b"").imm(imm).signaled(imm.into());
                        crowd.qps[index].post_send_one(request).map_err(|(error, _)| error)?;
                    }
                    crowd.completions(end, count as usize).await?;
                }
                end.tell(&())?;
            }
            Role::Target => {
                end.hear::<()>().await?;
                let wanted = crowd.qps[quiet].number();
                let mut others = 0;
                // One at a time: a device that always starts with the same queue pair would empty it
                // before it looks at the next.
                while crowd.completions(end, 1).await?[0].qp != wanted {
                    others += 1;
                    ensure!(others <= AT_MOST, "{others} later messages of others came first");
                }
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// A queue pair that leaves a shared completion queue takes none of the others' completions along.
pub(crate) async fn a_queue_pair_that_leaves_takes_nothing_of_the_others(
    end: &mut End,
) -> CaseResult {
    const PAIRS: usize = 12;
    let mut crowd = Crowd::connect(end, PAIRS, 8).await?;
    match end.role() {
        Role::Target => {
            for qp in &mut crowd.qps {
                qp.post_recvs(0..8)?;
            }
            end.meet().await?;
            end.hear::<()>().await?;
            // All have arrived and none was polled; every third leaves.
            let mut index = 0;
            crowd.qps.retain(|_| {
                index += 1;
                index % 3 != 0
            });
            let stay: Vec<_> = crowd.qps.iter().map(QueuePair::number).collect();
            let wanted = 4 * stay.len();
            let mut heard: HashMap<QpNumber, usize> = HashMap::new();
            let cq = &mut crowd.cq;
            end.poll_until("what the others have", || {
                let mut batch: [WorkCompletion; 8] = Default::default();
                let polled = cq.poll(&mut batch)?;
                for arrived in &batch[..polled] {
                    ensure_eq!(arrived.status, Status::Success, "receive {}", arrived.id);
                    *heard.entry(arrived.qp).or_default() += 1;
                }
                Ok((stay.iter().map(|qp| heard.get(qp).unwrap_or(&0)).sum::<usize>() == wanted)
                    .then_some(()))
            })
            .await?;
        }
        Role::Initiator => {
            end.meet().await?;
            for qp in &mut crowd.qps {
                for id in 0..4 {
                    let request = WorkRequest::send(b"").signaled(id);
                    qp.post_send_one(request).map_err(|(error, _)| error)?;
                }
            }
            crowd.completions(end, 4 * PAIRS).await?;
            end.tell(&())?;
        }
    }
    end.meet().await
}

/// Hundreds of connections may be open at once; the last is as good as the first.
pub(crate) async fn hundreds_of_connections_may_be_open_at_once(end: &mut End) -> CaseResult {
    const PAIRS: usize = 300;
    let mut crowd = Crowd::connect(end, PAIRS, 2).await?;
    if end.role() == Role::Target {
        for qp in &mut crowd.qps {
            qp.post_recvs(0..2)?;
        }
    }
    end.meet().await?;
    if end.role() == Role::Initiator {
        for qp in &mut crowd.qps {
            let request = WorkRequest::send(b"").imm(qp.number().0).signaled(1);
            qp.post_send_one(request).map_err(|(error, _)| error)?;
        }
    }
    let all = crowd.completions(end, PAIRS).await?;
    let numbers: std::collections::HashSet<_> = all.iter().map(|arrived| arrived.qp).collect();
    ensure_eq!(numbers.len(), PAIRS, "queue pairs that completed");
    end.meet().await
}

/// Queue pairs that share a completion queue may move to threads of their own.
pub(crate) async fn queue_pairs_may_be_used_from_threads_of_their_own(end: &mut End) -> CaseResult {
    const PAIRS: usize = 3;
    const EACH: u64 = 2_000;
    let mut rigs = Vec::new();
    for _ in 0..PAIRS {
        rigs.push(Rig::connected(end, QpType::Rc).await?);
    }
    match end.role() {
        Role::Target => {
            // Every rig has its own domain, so each its own region.
            let mut regions = Vec::new();
            for rig in &rigs {
                regions.push(expose(end, &rig.pd, 8, Access::all())?);
            }
            end.meet().await?;
            for region in &regions {
                ensure_eq!(region.load_u64(0), EACH, "additions");
            }
        }
        Role::Initiator => {
            let mut threads = Vec::new();
            for mut rig in rigs {
                let there = discover(end).await?.all();
                let device = end.device().clone();
                threads.push(std::thread::spawn(move || -> Result<(), String> {
                    let deadline_ns = device.now_ns() + crate::end::PATIENCE_NS;
                    let into = rig.pd.alloc_shared(8, Access::empty());
                    let into = into.map_err(|error| error.to_string())?;
                    for id in 0..EACH {
                        let add = WorkRequest::fetch_add(into.slice(0, 8), there, 1).signaled(id);
                        rig.qp.post_send_one(add).map_err(|(error, _)| error.to_string())?;
                        let mut one: [WorkCompletion; 1] = Default::default();
                        while rig.cq.poll(&mut one).map_err(|error| error.to_string())? == 0 {
                            if device.now_ns() > deadline_ns {
                                return Err("timed out waiting for a completion".into());
                            }
                            std::thread::yield_now();
                        }
                        if (one[0].id, one[0].status) != (id, Status::Success) {
                            return Err(format!("request {id}: {:?}", one[0]));
                        }
                        if into.load_u64(0) != id {
                            return Err(format!("addition {id} found {}", into.load_u64(0)));
                        }
                    }
                    Ok(())
                }));
            }
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err("a thread panicked".into()));
                ended.map_err(crate::verdict::Halt::failed)?;
            }
            end.meet().await?;
        }
    }
    end.meet().await
}
