//! Keys, ranges and access rights: what the target allows is all that a peer can do.

use farcall_verbs::{
    Access, Operation, PostError, QpState, QpType, RemoteRegion, RemoteSlice, Status, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{DEPTH, Rig, discover, expose, filled, held, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();

/// A request of `operation` on `there`, whose own memory is in order.
pub(super) fn request(
    rig: &Rig,
    operation: Operation,
    there: RemoteSlice,
) -> CaseResult<WorkRequest<'static>> {
    let len = there.len() as usize;
    Ok(match operation {
        Operation::Write => WorkRequest::write(filled(&rig.pd, &pattern(9, len))?, there).into(),
        Operation::WriteWithImm => {
            WorkRequest::write(filled(&rig.pd, &pattern(9, len))?, there).imm(1).into()
        }
        Operation::Read => WorkRequest::read(room(&rig.pd, len)?, there),
        Operation::CompareAndSwap => WorkRequest::compare_and_swap(room(&rig.pd, 8)?, there, 0, 5),
        Operation::FetchAdd => WorkRequest::fetch_add(room(&rig.pd, 8)?, there, 5),
        other => return Err(Halt::failed(format!("{other:?} has no remote memory"))),
    })
}

/// The same with its bytes in itself, if that can be: devices may have a short way for those.
pub(super) fn inline_request(
    rig: &Rig,
    operation: Operation,
    there: RemoteSlice,
) -> CaseResult<WorkRequest<'static>> {
    const BYTES: [u8; 32] = [9; 32];
    Ok(match (operation, BYTES.get(..there.len() as usize)) {
        (Operation::Write, Some(bytes)) => WorkRequest::write(bytes, there).into(),
        (Operation::WriteWithImm, Some(bytes)) => WorkRequest::write(bytes, there).imm(1).into(),
        _ => request(rig, operation, there)?,
    })
}

pub(super) fn one_sided(end: &End) -> Vec<Operation> {
    let sided = [
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Read,
        Operation::CompareAndSwap,
        Operation::FetchAdd,
    ];
    let caps = end.device().caps();
    sided.into_iter().filter(|operation| caps.supports(QpType::Rc, *operation)).collect()
}

/// Shows that each operation on the slice that `spoil` makes fails as an access error, breaks the
/// initiator's queue pair, flushes what is behind it, and leaves the target's memory as it was.
async fn refused(
    end: &mut End,
    access: Access,
    operations: &[Operation],
    spoil: impl Fn(RemoteRegion) -> RemoteSlice,
) -> CaseResult {
    for &operation in operations {
        for inline in [false, true] {
            let mut rig = Rig::connected(end, QpType::Rc).await?;
            match end.role() {
                Role::Target => {
                    let region = rig.pd.alloc_shared(64, access)?;
                    region.copy_in(0, &pattern(1, 64));
                    rig.qp.post_recvs(0..4)?;
                    end.tell(&region.remote())?;
                    rig.serve_until_met(end).await?;
                    ensure!(held(&region, 0, 64) == pattern(1, 64), "{operation:?} changed memory");
                }
                Role::Initiator => {
                    let remote = discover(end).await?;
                    if inline && access.contains(Access::REMOTE_READ) {
                        // What a device remembers of a region must open no way around the checks.
                        let read = request(&rig, Operation::Read, remote.slice(0, 8)?)?;
                        rig.post(read.signaled(0))?;
                        rig.success(end, 0).await?;
                        rig.reclaimed();
                    }
                    let bad = match inline {
                        true => inline_request(&rig, operation, spoil(remote))?,
                        false => request(&rig, operation, spoil(remote))?,
                    };
                    // One that fails completes in any case, and then has its id.
                    let bad = if inline { bad.failing_as(1) } else { bad.signaled(1) };
                    fails(end, &mut rig, bad, remote.slice(0, 8)?).await?;
                    rig.serve_until_met(end).await?;
                }
            }
        }
    }
    Ok(())
}

/// Posts a bad request, which has id 1, with good ones behind it.
async fn fails(
    end: &mut End,
    rig: &mut Rig,
    bad: WorkRequest<'static>,
    good: RemoteSlice,
) -> CaseResult {
    let text = format!("{bad:?}");
    let mut list = vec![
        bad,
        WorkRequest::write(filled(&rig.pd, &[0; 8])?, good).unsignaled(),
        WorkRequest::send(b"behind").signaled(2),
    ];
    let posted = rig.qp.post_send(&mut list);
    // A device may see the error while it posts: then it may refuse the rest.
    let all_posted = list.is_empty();
    ensure!(posted.is_ok() == all_posted, "{posted:?} with {} left", list.len());
    ensure!(list.len() <= 2, "a request that fails at the target was refused here: {text}");
    ensure_eq!(rig.failure(end, 1).await?, Status::RemoteAccess, "{text}");
    ensure_eq!(rig.qp.state(), QpState::Error, "state after {text}");
    if all_posted {
        // Unsignaled requests that are flushed complete too.
        let first = rig.completion(end).await?;
        let last = if first.id == 2 { first } else { rig.completion(end).await? };
        ensure_eq!((last.id, last.status), (2, Status::Flushed), "the request behind {text}");
        ensure!(!rig.reclaimed().is_empty(), "no buffer was given back after {text}");
    }
    Ok(())
}

/// A key that the target never gave out.
pub(crate) async fn an_unknown_key_is_refused(end: &mut End) -> CaseResult {
    let operations = one_sided(end);
    refused(end, ALL, &operations, |remote| {
        RemoteSlice::new(remote.addr, remote.rkey ^ 0x0055_5500, 8)
    })
    .await
}

/// The neighbours of a real key: an index and a tag are both checked.
pub(crate) async fn a_key_that_is_off_by_one_is_refused(end: &mut End) -> CaseResult {
    for delta in [1, u32::MAX, 1 << 8, 1 << 24] {
        refused(end, ALL, &[Operation::Write], |remote| {
            RemoteSlice::new(remote.addr, remote.rkey.wrapping_add(delta), 8)
        })
        .await?;
    }
    Ok(())
}

/// Bytes before, behind or across the edge of a region.
pub(crate) async fn bytes_outside_the_region_are_refused(end: &mut End) -> CaseResult {
    let operations = one_sided(end);
    for offset in [-8, 64, 1 << 20] {
        refused(end, ALL, &operations, |remote| {
            RemoteSlice::new(remote.addr.wrapping_add_signed(offset), remote.rkey, 8)
        })
        .await?;
    }
    for (offset, len) in [(57, 8), (63, 2), (0, 65), (0, 5000), (-1, 66)] {
        refused(end, ALL, &[Operation::Write, Operation::Read], |remote| {
            RemoteSlice::new(remote.addr.wrapping_add_signed(offset), remote.rkey, len)
        })
        .await?;
    }
    Ok(())
}

/// Addresses whose end overflows 64 bits.
pub(crate) async fn an_address_that_overflows_is_refused(end: &mut End) -> CaseResult {
    for addr in [u64::MAX, u64::MAX - 7, u64::MAX - 8, 0] {
        refused(end, ALL, &[Operation::Write, Operation::Read], |remote| {
            RemoteSlice::new(addr, remote.rkey, 16)
        })
        .await?;
    }
    Ok(())
}

/// Each operation needs its own right: with all the others it is refused.
pub(crate) async fn a_missing_right_is_refused(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        let right = match operation {
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareAndSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        for access in [Access::empty(), ALL.difference(right)] {
            refused(end, access, &[operation], |remote| {
                RemoteSlice::new(remote.addr, remote.rkey, 8)
            })
            .await?;
        }
    }
    Ok(())
}

/// Each operation is content with its own right alone.
pub(crate) async fn one_right_is_enough_for_its_operation(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    for operation in one_sided(end) {
        let right = match operation {
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareAndSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        match end.role() {
            Role::Target => {
                if operation == Operation::WriteWithImm {
                    rig.qp.post_recvs(0..1)?;
                }
                let _region = expose(end, &rig.pd, 8, right)?;
                rig.serve_until_met(end).await?;
            }
            Role::Initiator => {
                let there = discover(end).await?.all();
                rig.post(request(&rig, operation, there)?.signaled(1))?;
                let completion = rig.completion(end).await?;
                ensure_eq!(completion.status, Status::Success, "{operation:?} with {right:?}");
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// A region that its owner has dropped is out of reach, also for a peer that has used it before.
pub(crate) async fn a_deregistered_region_is_refused(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        for (used_before, inline) in [(false, false), (true, false), (true, true)] {
            let mut rig = Rig::connected(end, QpType::Rc).await?;
            match end.role() {
                Role::Target => {
                    let region = expose(end, &rig.pd, 64, ALL)?;
                    rig.serve_until_met(end).await?;
                    let clone = region.clone();
                    drop(region);
                    rig.serve_until_met(end).await?;
                    drop(clone);
                    rig.qp.post_recvs(0..1)?;
                    rig.serve_until_met(end).await?;
                    rig.serve_until_met(end).await?;
                }
                Role::Initiator => {
                    let there = discover(end).await?.slice(0, 8)?;
                    if used_before {
                        rig.post(request(&rig, Operation::Write, there)?.signaled(1))?;
                        rig.success(end, 1).await?;
                    }
                    rig.serve_until_met(end).await?;
                    if used_before {
                        // A clone is the same region: it holds the registration.
                        rig.post(request(&rig, Operation::Write, there)?.signaled(2))?;
                        rig.success(end, 2).await?;
                    }
                    rig.serve_until_met(end).await?;
                    rig.serve_until_met(end).await?;
                    let late = match inline {
                        true => inline_request(&rig, operation, there)?,
                        false => request(&rig, operation, there)?,
                    };
                    rig.post(late.signaled(3))?;
                    let status = rig.failure(end, 3).await?;
                    ensure_eq!(status, Status::RemoteAccess, "{operation:?}, dropped region");
                    rig.serve_until_met(end).await?;
                }
            }
        }
    }
    Ok(())
}

/// A key is good only on queue pairs of its region's protection domain.
pub(crate) async fn a_key_of_another_domain_is_refused(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let other = end.device().alloc_pd()?;
                let region = expose(end, &other, 64, ALL)?;
                rig.qp.post_recvs(0..1)?;
                rig.serve_until_met(end).await?;
                ensure_eq!(held(&region, 0, 64), [0; 64], "memory after {operation:?}");
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, 8)?;
                rig.post(request(&rig, operation, there)?.signaled(1))?;
                let status = rig.failure(end, 1).await?;
                ensure_eq!(status, Status::RemoteAccess, "{operation:?}, another domain");
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// Local memory of another protection domain is refused by the post.
pub(crate) async fn local_memory_of_another_domain_is_refused(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let other = end.device().alloc_pd()?;
    let region = other.alloc_shared(8, ALL)?;
    let there = RemoteRegion::new(0x1000, 7, 8).all();
    let requests = [
        WorkRequest::write(region.slice(0, 8), there).signaled(1),
        WorkRequest::read(region.slice(0, 8), there).signaled(1),
        WorkRequest::send(filled(&other, b"foreign")?).signaled(1),
        WorkRequest::read(room(&other, 8)?, there).signaled(1),
    ];
    for request in requests {
        let refusal = rig.qp.post_send_one(request).map_err(|(error, _)| error);
        ensure_eq!(refusal, Err(PostError::Foreign), "memory of another domain");
    }
    let refusal = rig.qp.post_recv(1, Some(room(&other, 8)?));
    ensure_eq!(refusal, Err(PostError::Foreign), "a receive of another domain");
    end.meet().await
}

/// UC has no way to report a bad key: the WRITE is dropped, and the connection goes on.
pub(crate) async fn uc_drops_a_write_with_a_bad_key(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Uc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 16, ALL)?;
            end.poll_until("the WRITE with a good key", || {
                Ok((region.load_u64(8) != 0).then_some(()))
            })
            .await?;
            ensure_eq!(region.load_u64(0), 0, "what a bad key has written");
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            let bad = RemoteSlice::new(remote.addr, remote.rkey ^ 0x0055_5500, 8);
            rig.post(WorkRequest::write(&[1; 8], bad).signaled(1))?;
            rig.success(end, 1).await?;
            let outside = RemoteSlice::new(remote.addr + 12, remote.rkey, 8);
            rig.post(WorkRequest::write(&[1; 8], outside).signaled(2))?;
            rig.success(end, 2).await?;
            rig.post(WorkRequest::write(&[1; 8], remote.slice(8, 8)?).signaled(3))?;
            rig.success(end, 3).await?;
        }
    }
    rig.serve_until_met(end).await
}

/// An access error on one queue pair is that one's alone.
pub(crate) async fn an_access_error_breaks_only_its_queue_pair(end: &mut End) -> CaseResult {
    let mut bad = Rig::connected(end, QpType::Rc).await?;
    let mut good = Rig::within(end.device(), &bad.pd, QpType::Rc, DEPTH, None)?;
    good.connect(end).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &bad.pd, 8, ALL)?;
            good.serve_until_met(end).await?;
            ensure_eq!(held(&region, 0, 8), [4; 8], "memory");
            ensure_eq!(good.qp.state(), QpState::ReadyToSend, "the other queue pair");
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            let there = RemoteSlice::new(remote.addr, remote.rkey ^ 0x0055_5500, 8);
            bad.post(WorkRequest::write(&[3; 8], there).signaled(1))?;
            ensure_eq!(bad.failure(end, 1).await?, Status::RemoteAccess, "the bad one");
            good.post(WorkRequest::write(&[4; 8], remote.all()).signaled(2))?;
            good.success(end, 2).await?;
            good.serve_until_met(end).await?;
        }
    }
    end.meet().await
}

/// Keys and addresses made up at random reach nothing.
pub(crate) async fn made_up_keys_reach_nothing(end: &mut End) -> CaseResult {
    const TRIES: usize = 60;
    let pd = end.device().alloc_pd()?;
    match end.role() {
        Role::Target => {
            let region = pd.alloc_shared(4096, ALL)?;
            end.tell(&region.remote())?;
            for _ in 0..TRIES {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
                rig.connect(end).await?;
                rig.serve_until_met(end).await?;
            }
            ensure!(held(&region, 0, 4096) == vec![0; 4096], "a made-up key has reached memory");
        }
        Role::Initiator => {
            let remote = discover(end).await?;
            for bytes in pattern(4, 12 * TRIES).chunks_exact(12) {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, 8, None)?;
                rig.connect(end).await?;
                let (key, addr) = bytes.split_at(4);
                let key = key.iter().fold(0_u32, |key, byte| key << 8 | u32::from(*byte));
                let addr = addr.iter().fold(0_u64, |addr, byte| addr << 8 | u64::from(*byte));
                let key = if key == remote.rkey { !key } else { key };
                // Every other one aims at memory that is there.
                let addr = if addr % 2 == 0 { addr } else { remote.addr };
                let there = RemoteSlice::new(addr, key, 8);
                rig.post(WorkRequest::write(&[1; 8], there).signaled(1))?;
                ensure_eq!(rig.failure(end, 1).await?, Status::RemoteAccess, "key {key:#x}");
                rig.serve_until_met(end).await?;
            }
        }
    }
    end.meet().await
}
