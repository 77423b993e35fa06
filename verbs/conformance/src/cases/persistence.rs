//! Persistent memory, and flushes to it. The state after a loss of power is no case of this suite: a
//! fixture that can take the power away has tests of its own.

use farcall_verbs::{
    Access, CompletionOpcode, Operation, PersistentRegion, PostError, QpState, QpType, Status,
    VerbsError, WorkRequest,
};

use crate::end::{End, Role};
use crate::rig::{Rig, discover, expose, filled, pattern, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const NAME: &str = "device-conformance";
const LEN: usize = 1000;

fn held(region: &PersistentRegion, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.copy_out(offset, &mut bytes);
    bytes
}

/// A name leads to the same bytes again; one length, and one opening at a time.
pub(crate) async fn persistent_memory_is_found_again_by_its_name(end: &mut End) -> CaseResult {
    let pd = end.device().alloc_pd()?;
    let name = format!("{NAME}-{:?}", end.role());
    let region = pd.open_persistent(&name, LEN, Access::empty())?;
    ensure!(held(&region, 0, LEN) == [0; LEN], "fresh memory is not zeroed");
    region.copy_in(3, &pattern(1, 500));
    region.store_release_u64(800, 7);
    region.persist(3..808)?;
    match pd.open_persistent(&name, LEN, Access::empty()) {
        Err(VerbsError::Persistent { .. }) => {}
        other => return Err(Halt::failed(format!("opened twice: {other:?}"))),
    }
    drop(region);
    match pd.open_persistent(&name, LEN + 1, Access::empty()) {
        Err(VerbsError::Persistent { .. }) => {}
        other => return Err(Halt::failed(format!("opened with another length: {other:?}"))),
    }
    let region = pd.open_persistent(&name, LEN, Access::empty())?;
    ensure!(held(&region, 3, 500) == pattern(1, 500), "the bytes stored before");
    ensure_eq!(region.load_u64(800), 7, "the word stored before");
    end.meet().await
}

/// Peers use persistent memory as they use any other, within its rights.
pub(crate) async fn peers_use_persistent_memory_like_any_other(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let region = rig.pd.open_persistent(NAME, LEN, rights)?;
            region.copy_in(500, &pattern(2, 100));
            end.tell(&region.remote())?;
            rig.serve_until_met(end).await?;
            ensure!(held(&region, 100, 300) == pattern(1, 300), "the written bytes");
            ensure!(held(&region, 400, 100) == [0; 100], "what lies behind it");
            region.persist(0..LEN)?;
            rig.serve_until_met(end).await
        }
        Role::Initiator => {
            let there = discover(end).await?;
            let bytes = filled(&rig.pd, &pattern(1, 300))?;
            rig.post(WorkRequest::write(bytes, there.slice(100, 300)?))?;
            let into = room(&rig.pd, 100)?;
            rig.post(WorkRequest::read(into, there.slice(500, 100)?).signaled(1))?;
            rig.success(end, 1).await?;
            let read = rig.reclaimed().pop();
            ensure!(read.is_some_and(|read| *read == *pattern(2, 100)), "the bytes read");
            rig.serve_until_met(end).await?;
            let add = WorkRequest::fetch_add(room(&rig.pd, 8)?, there.slice(0, 8)?, 1);
            rig.post(add.signaled(2))?;
            let status = rig.failure(end, 2).await?;
            ensure_eq!(status, Status::RemoteAccess, "an atomic without the right");
            rig.serve_until_met(end).await
        }
    }
}

/// A flush completes in order, and earlier WRITEs are visible then.
pub(crate) async fn a_flush_completes_behind_the_writes_before_it(end: &mut End) -> CaseResult {
    const WRITES: u64 = 20;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = rig.pd.open_persistent(NAME, LEN, Access::REMOTE_WRITE)?;
            end.tell(&region.remote())?;
            rig.serve_until_met(end).await?;
            for number in 0..WRITES {
                ensure_eq!(region.load_u64(8 * number as usize), number + 1, "a flushed word");
            }
        }
        Role::Initiator => {
            let there = discover(end).await?;
            for number in 0..WRITES {
                let word = (number + 1).to_ne_bytes();
                let place = there.slice(8 * number, 8)?;
                rig.post(WorkRequest::write(&word, place).signaled(2 * number))?;
                rig.post(WorkRequest::flush(place).signaled(2 * number + 1))?;
            }
            for id in 0..2 * WRITES {
                let done = rig.success(end, id).await?;
                let flushed = done.opcode == CompletionOpcode::Flush;
                ensure_eq!(flushed, id % 2 == 1, "{:?} of request {id}", done.opcode);
            }
            rig.serve_until_met(end).await?;
        }
    }
    end.meet().await
}

/// A flush of memory that is not persistent, of another region's bytes or of none is refused.
pub(crate) async fn a_flush_reaches_persistent_memory_only(end: &mut End) -> CaseResult {
    for spoilt in 0..3 {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let ordinary = expose(end, &rig.pd, LEN, Access::REMOTE_WRITE)?;
                let region = rig.pd.open_persistent(NAME, LEN, Access::REMOTE_WRITE)?;
                end.tell(&region.remote())?;
                rig.serve_until_met(end).await?;
                drop(ordinary);
            }
            Role::Initiator => {
                let (ordinary, there) = (discover(end).await?, discover(end).await?);
                let beyond = farcall_verbs::RemoteSlice::new(there.addr + 8, there.rkey, there.len);
                let unknown = farcall_verbs::RemoteSlice::new(there.addr, !there.rkey, there.len);
                let slice = [ordinary.all(), beyond, unknown][spoilt];
                rig.post(WorkRequest::flush(slice).signaled(1))?;
                let status = rig.failure(end, 1).await?;
                ensure_eq!(status, Status::RemoteAccess, "flush {spoilt}");
                ensure_eq!(rig.qp.state(), QpState::Error, "the queue pair");
                rig.serve_until_met(end).await?;
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// The device refuses what it does not have, with an error that names it.
pub(crate) async fn persistence_that_is_not_there_is_refused(end: &mut End) -> CaseResult {
    let caps = end.device().caps().clone();
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let region = expose(end, &rig.pd, 64, Access::all())?;
    let there = discover(end).await?;
    if !caps.persistent_memory {
        match rig.pd.open_persistent(NAME, LEN, Access::empty()) {
            Err(VerbsError::Unsupported(_)) => {}
            other => return Err(Halt::failed(format!("persistent memory: {other:?}"))),
        }
    }
    if !caps.flush {
        let posted = rig.qp.post_send_one(WorkRequest::flush(there.all()));
        let wanted = PostError::Unsupported { ty: QpType::Rc, operation: Operation::Flush };
        ensure_eq!(posted.map_err(|(error, _)| error), Err(wanted), "a flush");
    }
    end.meet().await?;
    drop(region);
    Ok(())
}
