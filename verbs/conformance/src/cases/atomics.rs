//! 64-bit atomics in the target's memory.

use farcall_verbs::{Access, PostError, QpType, Status, WorkRequest};

use crate::end::{End, Role, turn};
use crate::rig::{DEPTH, Rig, discover, expose, join_here, room};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

const ALL: Access = Access::all();

fn word(bytes: &[u8]) -> CaseResult<u64> {
    let bytes = bytes.try_into().map_err(|_| Halt::failed("an atomic's result is 8 bytes"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The old value that one atomic brings back.
async fn old_value(rig: &mut Rig, end: &End, request: WorkRequest<'_>) -> CaseResult<u64> {
    rig.post(request.signaled(1))?;
    rig.success(end, 1).await?;
    match rig.reclaimed().as_slice() {
        [buffer] => word(buffer),
        other => Err(Halt::failed(format!("{} buffers given back", other.len()))),
    }
}

/// Compare-and-swap swaps if and only if the word holds what is expected; it brings the old value
/// either way.
pub(crate) async fn compare_and_swap_swaps_only_what_it_expects(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 24, ALL)?;
            region.store_release_u64(8, u64::MAX - 5);
            end.meet().await?;
            end.meet().await?;
            ensure_eq!(region.load_u64(8), 7, "the word");
            ensure_eq!((region.load_u64(0), region.load_u64(16)), (0, 0), "its neighbours");
        }
        Role::Initiator => {
            let there = discover(end).await?.slice(8, 8)?;
            end.meet().await?;
            let into = room(&rig.pd, 8)?;
            let swap = WorkRequest::compare_and_swap(into, there, 1, 7);
            ensure_eq!(old_value(&mut rig, end, swap).await?, u64::MAX - 5, "a failed swap");
            let into = room(&rig.pd, 8)?;
            let swap = WorkRequest::compare_and_swap(into, there, u64::MAX - 5, 7);
            ensure_eq!(old_value(&mut rig, end, swap).await?, u64::MAX - 5, "a swap");
            let into = room(&rig.pd, 8)?;
            let swap = WorkRequest::compare_and_swap(into, there, u64::MAX - 5, 9);
            ensure_eq!(old_value(&mut rig, end, swap).await?, 7, "a swap that comes too late");
            end.meet().await?;
        }
    }
    Ok(())
}

/// Fetch-and-add brings the old value and adds, wrapping.
pub(crate) async fn fetch_and_add_wraps(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = expose(end, &rig.pd, 8, ALL)?;
            end.meet().await?;
            ensure_eq!(region.load_u64(0), 2, "the word");
        }
        Role::Initiator => {
            let there = discover(end).await?.all();
            for (add, old) in [(5, 0), (u64::MAX, 5), (u64::MAX - 3, 4), (2, 0)] {
                let into = room(&rig.pd, 8)?;
                let found = old_value(&mut rig, end, WorkRequest::fetch_add(into, there, add));
                ensure_eq!(found.await?, old, "before adding {add}");
            }
            end.meet().await?;
        }
    }
    Ok(())
}

/// Atomics of many queue pairs of both ends lose no update, and no two see the same old value.
pub(crate) async fn atomics_of_many_queue_pairs_lose_no_update(end: &mut End) -> CaseResult {
    const PAIRS: usize = 4;
    const LISTS: u64 = 600;
    const LIST: u64 = 32;
    const EACH: u64 = LISTS * LIST;
    let mut rigs = Vec::new();
    // The loopback's other halves live as long as the loopback.
    let mut others = Vec::new();
    let first = Rig::connected(end, QpType::Rc).await?;
    let pd = first.pd.clone();
    let mine = pd.alloc_shared(8, ALL)?;
    let theirs = end.exchange(&mine.remote()).await?;
    let there = match end.role() {
        Role::Initiator => {
            rigs.push(first);
            for _ in 1..PAIRS {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
                rig.connect(end).await?;
                rigs.push(rig);
            }
            theirs.all()
        }
        Role::Target => {
            others.push(first);
            for _ in 1..PAIRS {
                let mut rig = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
                rig.connect(end).await?;
                others.push(rig);
            }
            for _ in 0..PAIRS {
                let mut a = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
                let mut b = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
                join_here(&mut a.qp, &mut b.qp)?;
                rigs.push(a);
                others.push(b);
            }
            mine.remote().all()
        }
    };
    end.meet().await?;
    let mut results = Vec::new();
    for rig in &rigs {
        results.push(rig.pd.alloc_shared(8 * LIST as usize, Access::empty())?);
    }
    let mut seen = Vec::new();
    for _ in 0..LISTS {
        // Back to back, so that those of the two ends come as close as they can.
        for (rig, result) in rigs.iter_mut().zip(&results) {
            let mut doorbell = rig.qp.doorbell();
            for number in 0..LIST {
                let into = result.slice(8 * number as usize, 8);
                let add = WorkRequest::fetch_add(into, there, 1);
                let add = if number + 1 == LIST { add.signaled(1) } else { add };
                doorbell.post(add).map_err(|(error, _)| error)?;
            }
        }
        for (rig, result) in rigs.iter_mut().zip(&results) {
            rig.success(end, 1).await?;
            seen.extend((0..LIST as usize).map(|number| result.load_u64(8 * number)));
        }
    }
    ensure_eq!(seen.len() as u64, PAIRS as u64 * EACH, "old values");
    ensure!(seen.iter().all(|old| *old < 2 * PAIRS as u64 * EACH), "an impossible old value");
    seen.sort_unstable();
    ensure!(seen.windows(2).all(|pair| pair[0] < pair[1]), "two atomics saw the same old value");
    end.meet().await?;
    if end.role() == Role::Target {
        ensure_eq!(mine.load_u64(0), 2 * PAIRS as u64 * EACH, "the sum");
    }
    end.meet().await
}

/// A lock made of compare-and-swap keeps two ends apart.
pub(crate) async fn compare_and_swap_makes_a_lock(end: &mut End) -> CaseResult {
    const EACH: u64 = 300;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let region = rig.pd.alloc_shared(16, ALL)?;
    let theirs = end.exchange(&region.remote()).await?;
    let mut other = Rig::within(end.device(), &rig.pd, QpType::Rc, DEPTH, None)?;
    let mut loopback = Rig::within(end.device(), &rig.pd, QpType::Rc, DEPTH, None)?;
    join_here(&mut loopback.qp, &mut other.qp)?;
    let (there, rig, name) = match end.role() {
        Role::Initiator => (theirs, &mut rig, 1),
        Role::Target => (region.remote(), &mut loopback, 2),
    };
    let (lock, counter) = (there.slice(0, 8)?, there.slice(8, 8)?);
    for _ in 0..EACH {
        let deadline_ns = end.deadline_ns();
        loop {
            let take = WorkRequest::compare_and_swap(room(&rig.pd, 8)?, lock, 0, name);
            if old_value(rig, end, take).await? == 0 {
                break;
            }
            ensure!(end.device().now_ns() < deadline_ns, "the lock was not free in time");
            turn().await;
        }
        // Not atomic on purpose: only the lock makes it right.
        rig.post(WorkRequest::read(room(&rig.pd, 8)?, counter).signaled(1))?;
        rig.success(end, 1).await?;
        let count = rig.reclaimed().first().map_or(Ok(0), |buffer| word(buffer))?;
        let next = (count + 1).to_ne_bytes();
        rig.post(WorkRequest::write(&next, counter).unsignaled())?;
        let free = WorkRequest::compare_and_swap(room(&rig.pd, 8)?, lock, name, 0);
        ensure_eq!(old_value(rig, end, free).await?, name, "who held the lock");
    }
    end.meet().await?;
    if end.role() == Role::Target {
        ensure_eq!(region.load_u64(8), 2 * EACH, "increments under the lock");
    }
    end.meet().await
}

/// A misaligned word is refused, and the memory is as it was.
pub(crate) async fn a_misaligned_atomic_is_refused(end: &mut End) -> CaseResult {
    for offset in [1, 4, 7] {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let region = expose(end, &rig.pd, 16, ALL)?;
                rig.serve_until_met(end).await?;
                ensure_eq!((region.load_u64(0), region.load_u64(8)), (0, 0), "the memory");
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(offset, 8)?;
                let add = WorkRequest::fetch_add(room(&rig.pd, 8)?, there, 1).signaled(1);
                match rig.qp.post_send_one(add) {
                    // What the target would refuse may be refused here already.
                    Err((PostError::Misaligned { .. }, _)) => {}
                    Err((error, _)) => return Err(error.into()),
                    Ok(()) => {
                        let status = rig.failure(end, 1).await?;
                        // The specification answers an invalid request; some NICs name it an access
                        // error.
                        ensure!(
                            matches!(status, Status::RemoteInvalidRequest | Status::RemoteAccess),
                            "a word at offset {offset}: {status:?}"
                        );
                    }
                }
                rig.serve_until_met(end).await?;
            }
        }
        end.meet().await?;
    }
    Ok(())
}

/// An atomic moves 8 bytes, neither more nor less.
pub(crate) async fn an_atomic_of_another_size_is_refused(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let region = expose(end, &rig.pd, 64, ALL)?;
    let remote = discover(end).await?;
    for (here, there) in [(8, 4), (8, 16), (4, 8)] {
        let slice = remote.slice(0, there)?;
        let request = WorkRequest::fetch_add(region.slice(0, here), slice, 1).signaled(1);
        match rig.qp.post_send_one(request) {
            Err((PostError::Length { .. }, _)) => {}
            other => {
                return Err(Halt::failed(format!("{here} bytes here, {there} there: {other:?}")));
            }
        }
    }
    end.meet().await
}
