//! Memory windows: access to a part of a region, for the peer of one queue pair, until it is taken back.

use farcall_verbs::{
    Access, CompletionOpcode, MemoryWindow, Operation, PostError, QpState, QpType, RemoteRegion,
    RemoteSlice, SharedRegion, Status, VerbsError, WindowError, WorkRequest,
};

use crate::cases::protection::{inline_request, one_sided, request};
use crate::end::{End, Role, turn};
use crate::rig::{DEPTH, Rig, discover, held, pattern};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// What a window may allow.
pub(super) const ALL: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Bytes of the regions of these cases, and of the window in each.
pub(super) const REGION: usize = 256;
pub(super) const START: usize = 64;
pub(super) const LEN: usize = 64;

/// A region that peers cannot access, and a window to its middle that the peer of `rig` can.
pub(super) async fn granted(
    end: &End,
    rig: &mut Rig,
    access: Access,
) -> CaseResult<(SharedRegion, MemoryWindow)> {
    let region = rig.pd.alloc_shared(REGION, Access::MW_BIND)?;
    region.copy_in(0, &pattern(1, REGION));
    let mut window = rig.pd.alloc_memory_window()?;
    ensure_eq!(window.remote(), None, "a window that was never bound");
    bind(end, rig, &mut window, &region, access).await?;
    Ok((region, window))
}

/// Binds a window to the middle of a region, and waits for that.
pub(super) async fn bind(
    end: &End,
    rig: &mut Rig,
    window: &mut MemoryWindow,
    region: &SharedRegion,
    access: Access,
) -> CaseResult {
    let part = region.slice(START, LEN);
    rig.post(WorkRequest::bind_window(window, part, access).signaled(70))?;
    let bound = rig.success(end, 70).await?;
    ensure_eq!((bound.opcode, bound.byte_len), (CompletionOpcode::BindWindow, 0), "a binding");
    Ok(())
}

/// Invalidates a window, and waits for that.
pub(super) async fn invalidate(end: &End, rig: &mut Rig, window: &mut MemoryWindow) -> CaseResult {
    rig.post(WorkRequest::invalidate_window(window).signaled(71))?;
    ensure!(!window.is_bound(), "an invalidated window is bound");
    let done = rig.success(end, 71).await?;
    ensure_eq!(done.opcode, CompletionOpcode::InvalidateWindow, "an invalidation");
    Ok(())
}

pub(super) fn remote(window: &MemoryWindow) -> CaseResult<RemoteRegion> {
    window.remote().ok_or_else(|| Halt::failed("a bound window has no address"))
}

/// Posts a request that the peer must deny.
pub(super) async fn denied(end: &mut End, rig: &mut Rig, bad: WorkRequest<'static>) -> CaseResult {
    let text = format!("{bad:?}");
    rig.post(bad.signaled(1))?;
    ensure_eq!(rig.failure(end, 1).await?, Status::RemoteAccess, "{text}");
    ensure_eq!(rig.qp.state(), QpState::Error, "state after {text}");
    Ok(())
}

/// Every operation works through a window to a region that allows none, at both edges of the window.
pub(crate) async fn a_bound_window_gives_its_peer_access(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let (region, window) = granted(end, &mut rig, ALL).await?;
            let there = remote(&window)?;
            ensure_eq!(there.len, LEN as u64, "length of a window");
            rig.qp.post_recvs(0..8)?;
            end.tell(&there)?;
            rig.serve_until_met(end).await?;
            ensure_eq!(held(&region, 0, START), pattern(1, START), "bytes before the window");
            let behind = START + LEN;
            ensure_eq!(
                held(&region, behind, REGION - behind)[..],
                pattern(1, REGION)[behind..],
                "bytes behind the window"
            );
            ensure_eq!(held(&region, behind - 8, 8), pattern(9, 8), "the last bytes");
        }
        Role::Initiator => {
            let there = discover(end).await?;
            for operation in one_sided(end) {
                for offset in [0, LEN as u64 - 8] {
                    let place = there.slice(offset, 8)?;
                    rig.post(request(&rig, operation, place)?.signaled(1))?;
                    rig.success(end, 1).await?;
                    rig.post(inline_request(&rig, operation, place)?.signaled(2))?;
                    rig.success(end, 2).await?;
                }
            }
            let last = there.slice(LEN as u64 - 8, 8)?;
            rig.post(WorkRequest::write(&pattern(9, 8)[..], last).signaled(3))?;
            rig.success(end, 3).await?;
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// Bindings, invalidations and the messages that tell of them go in one pipeline: nobody waits for a completion.
pub(crate) async fn a_key_may_be_told_behind_its_binding(end: &mut End) -> CaseResult {
    const ROUNDS: u64 = 300;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let size = 64; // Of a message that tells of a key, at most.
    match end.role() {
        Role::Target => {
            let region = rig.pd.alloc_shared(REGION, Access::MW_BIND)?;
            let mut window = rig.pd.alloc_memory_window()?;
            rig.qp.post_recvs(0..1)?;
            end.meet().await?;
            for round in 0..ROUNDS {
                let offset = (round as usize % 3) * LEN;
                if window.is_bound() {
                    rig.post(WorkRequest::invalidate_window(&mut window))?;
                }
                let part = region.slice(offset, LEN);
                rig.post(WorkRequest::bind_window(&mut window, part, Access::REMOTE_WRITE))?;
                let told = postcard::to_allocvec(&remote(&window)?)?;
                rig.post(WorkRequest::send(&told[..]).signaled(100))?;
                // The peer answers by a WRITE with immediate through the window.
                let mut written = None;
                for _ in 0..2 {
                    let completion = rig.completion(end).await?;
                    ensure_eq!(completion.status, Status::Success, "round {round}");
                    written = written.or(completion.imm);
                }
                ensure_eq!(written, Some(round as u32), "the immediate");
                ensure_eq!(region.load_u64(offset), round + 1, "the word written in this round");
                rig.qp.post_recvs(0..1)?;
            }
        }
        Role::Initiator => {
            for id in 0..4 {
                rig.receive(id, size)?;
            }
            end.meet().await?;
            for round in 0..ROUNDS {
                // The next message may be here before the completion of the WRITE before it.
                let told = loop {
                    let completion = rig.completion(end).await?;
                    ensure_eq!(completion.status, Status::Success, "round {round}");
                    if completion.opcode == CompletionOpcode::Recv {
                        break completion;
                    }
                };
                let bytes = told.buffer.ok_or_else(|| Halt::failed("a receive without buffer"))?;
                let there: RemoteRegion = postcard::from_bytes(&bytes)?;
                let word = (round + 1).to_ne_bytes();
                let write = WorkRequest::write(&word, there.slice(0, 8)?).imm(round as u32);
                rig.post(write.signaled(90))?;
                rig.receive(round, size)?;
            }
        }
    }
    end.meet().await
}

/// A window that allows one thing denies the others.
pub(crate) async fn a_window_gives_the_access_it_was_bound_with(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        let right = match operation {
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareAndSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        };
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let access = ALL.difference(right);
                let (region, window) = granted(end, &mut rig, access).await?;
                rig.qp.post_recvs(0..2)?;
                end.tell(&remote(&window)?)?;
                rig.serve_until_met(end).await?;
                ensure!(held(&region, 0, REGION) == pattern(1, REGION), "{operation:?}");
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, 8)?;
                let bad = inline_request(&rig, operation, there)?;
                denied(end, &mut rig, bad).await?;
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// The rest of the region is out of reach, as are ranges that cross an edge of the window.
pub(crate) async fn bytes_outside_a_window_are_refused(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        for offset in [-8, -64, LEN as i64, LEN as i64 - 4, 1 << 40] {
            let is_atomic = matches!(operation, Operation::CompareAndSwap | Operation::FetchAdd);
            if is_atomic && offset % 8 != 0 {
                continue;
            }
            let mut rig = Rig::connected(end, QpType::Rc).await?;
            match end.role() {
                Role::Target => {
                    let (region, window) = granted(end, &mut rig, ALL).await?;
                    rig.qp.post_recvs(0..2)?;
                    end.tell(&remote(&window)?)?;
                    rig.serve_until_met(end).await?;
                    let unchanged = held(&region, 0, REGION) == pattern(1, REGION);
                    ensure!(unchanged, "{operation:?} at {offset} changed memory");
                }
                Role::Initiator => {
                    let there = discover(end).await?;
                    let addr = there.addr.wrapping_add_signed(offset);
                    let outside = RemoteSlice::new(addr, there.rkey, 8);
                    let bad = inline_request(&rig, operation, outside)?;
                    denied(end, &mut rig, bad).await?;
                    rig.serve_until_met(end).await?;
                }
            }
        }
    }
    Ok(())
}

/// Another queue pair of the same domain has no use for the key, also if both ends are the same.
pub(crate) async fn a_key_is_for_the_peer_of_its_queue_pair(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        let mut other = Rig::within(end.device(), &rig.pd, QpType::Rc, DEPTH, None)?;
        other.connect(end).await?;
        match end.role() {
            Role::Target => {
                let (region, window) = granted(end, &mut rig, ALL).await?;
                other.qp.post_recvs(0..2)?;
                end.tell(&remote(&window)?)?;
                other.serve_until_met(end).await?;
                ensure!(held(&region, 0, REGION) == pattern(1, REGION), "{operation:?}");
                rig.serve_until_met(end).await?;
                rig.serve_until_met(end).await?;
                ensure_eq!(held(&region, START, 8), [4; 8], "by the window's own peer");
            }
            Role::Initiator => {
                let there = discover(end).await?.slice(0, 8)?;
                let bad = inline_request(&other, operation, there)?;
                denied(end, &mut other, bad).await?;
                other.serve_until_met(end).await?;
                rig.serve_until_met(end).await?;
                rig.post(WorkRequest::write(&[4; 8], there).signaled(2))?;
                rig.success(end, 2).await?;
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// After an invalidation the key is worth nothing, also to a peer that has used it.
pub(crate) async fn an_invalidated_key_is_refused(end: &mut End) -> CaseResult {
    for operation in one_sided(end) {
        for used_before in [false, true] {
            let mut rig = Rig::connected(end, QpType::Rc).await?;
            match end.role() {
                Role::Target => {
                    let (region, mut window) = granted(end, &mut rig, ALL).await?;
                    rig.qp.post_recvs(0..4)?;
                    end.tell(&remote(&window)?)?;
                    rig.serve_until_met(end).await?;
                    if used_before && operation == Operation::WriteWithImm {
                        rig.success(end, 0).await?;
                    }
                    invalidate(end, &mut rig, &mut window).await?;
                    let before = held(&region, 0, REGION);
                    rig.serve_until_met(end).await?;
                    rig.serve_until_met(end).await?;
                    ensure!(held(&region, 0, REGION) == before, "{operation:?} changed memory");
                }
                Role::Initiator => {
                    let there = discover(end).await?.slice(0, 8)?;
                    if used_before {
                        rig.post(request(&rig, operation, there)?.signaled(1))?;
                        let used = rig.completion(end).await?;
                        ensure_eq!(used.status, Status::Success, "{operation:?} before");
                    }
                    rig.serve_until_met(end).await?;
                    rig.serve_until_met(end).await?;
                    let bad = inline_request(&rig, operation, there)?;
                    denied(end, &mut rig, bad).await?;
                    rig.serve_until_met(end).await?;
                }
            }
        }
    }
    Ok(())
}

/// A window that is bound again has another key; the one before is worth nothing.
pub(crate) async fn each_binding_has_a_key_of_its_own(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let (region, mut window) = granted(end, &mut rig, ALL).await?;
            let first = remote(&window)?;
            invalidate(end, &mut rig, &mut window).await?;
            bind(end, &mut rig, &mut window, &region, ALL).await?;
            let second = remote(&window)?;
            ensure!(first.rkey != second.rkey, "two bindings with key {:#x}", first.rkey);
            ensure_eq!(first.rkey >> 8, second.rkey >> 8, "the window's part of the key");
            end.tell(&(first, second))?;
            rig.serve_until_met(end).await?;
            ensure_eq!(held(&region, START, 16)[..8], [5; 8], "by the second key");
            ensure_eq!(held(&region, START, 16)[8..], pattern(1, REGION)[START + 8..][..8], "old");
        }
        Role::Initiator => {
            let (first, second): (RemoteRegion, RemoteRegion) = end.hear().await?;
            rig.post(WorkRequest::write(&[5; 8], second.slice(0, 8)?).signaled(1))?;
            rig.success(end, 1).await?;
            let late = WorkRequest::write(&[6; 8], first.slice(8, 8)?).into();
            denied(end, &mut rig, late).await?;
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// Bytes from the first to the last that differ.
fn changed(before: &[u8], after: &[u8]) -> usize {
    let differs = |at: &usize| before[*at] != after[*at];
    let first = (0..before.len()).find(differs);
    let last = (0..before.len()).rfind(differs);
    first.zip(last).map_or(0, |(first, last)| last + 1 - first)
}

/// When an invalidation has completed, the peer's bytes do not change any more, however busy it was writing; at most those of
/// a packet, where the device does not wait for it.
pub(crate) async fn nothing_lands_behind_an_invalidation(end: &mut End) -> CaseResult {
    const BYTES: usize = 1 << 20;
    for round in 0..10_u8 {
        let mut rig = Rig::connected(end, QpType::Rc).await?;
        match end.role() {
            Role::Target => {
                let region = rig.pd.alloc_shared(BYTES, Access::MW_BIND)?;
                let mut window = rig.pd.alloc_memory_window()?;
                let part = region.slice(0, BYTES);
                let binding = WorkRequest::bind_window(&mut window, part, Access::REMOTE_WRITE);
                rig.post(binding.signaled(1))?;
                rig.success(end, 1).await?;
                end.tell(&remote(&window)?)?;
                // In the middle of a WRITE, where the device lets us see that.
                let mut looks = 0;
                end.poll_until("a WRITE", || {
                    let (first, last) = (region.load_u64(0), region.load_u64(BYTES - 8));
                    looks += u32::from(last != 0);
                    let is_half = last != 0 && first != last;
                    Ok((is_half || looks > 1000).then_some(()))
                })
                .await?;
                rig.post(WorkRequest::invalidate_window(&mut window).signaled(2))?;
                let done = rig.completion(end).await?;
                if done.status == Status::Flushed {
                    // The peer's next WRITE was denied first, which broke the queue pair.
                    rig.serve_until_met(end).await?;
                    continue;
                }
                ensure_eq!((done.id, done.status), (2, Status::Success), "the invalidation");
                let caps = end.device().caps();
                let most = if caps.invalidation_waits { 0 } else { caps.mtu };
                // At once: the last word is what a WRITE that goes on changes last.
                let last = region.load_u64(BYTES - 8);
                let before = held(&region, 0, BYTES);
                rig.serve_until_met(end).await?;
                if most == 0 {
                    ensure_eq!(region.load_u64(BYTES - 8), last, "round {round}: the last word");
                }
                let changed = changed(&before, &held(&region, 0, BYTES));
                ensure!(changed <= most, "round {round}: {changed} bytes have changed");
            }
            Role::Initiator => {
                let there = discover(end).await?;
                let sources = rig.pd.alloc_shared(2 * BYTES, Access::empty())?;
                sources.copy_in(0, &vec![1; BYTES]);
                sources.copy_in(BYTES, &vec![2; BYTES]);
                let mut next = 0;
                let status = loop {
                    next = BYTES - next;
                    let source = sources.slice(next, BYTES);
                    let all = WorkRequest::write(source, there.all()).signaled(1);
                    rig.post(all)?;
                    let written = rig.completion(end).await?;
                    if written.status != Status::Success {
                        break written.status;
                    }
                    turn().await;
                };
                ensure_eq!(status, Status::RemoteAccess, "round {round}");
                rig.serve_until_met(end).await?;
            }
        }
    }
    Ok(())
}

/// What cannot be bound or invalidated is refused by the post, and changes nothing.
pub(crate) async fn a_binding_that_cannot_be_is_refused(end: &mut End) -> CaseResult {
    fn refused(rig: &mut Rig, request: WorkRequest<'_>, wanted: PostError) -> CaseResult {
        let text = format!("{request:?}");
        let posted = rig.qp.post_send_one(request).map_err(|(error, _)| error);
        ensure_eq!(posted, Err(wanted), "{text}");
        Ok(())
    }
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let mut other = Rig::within(end.device(), &rig.pd, QpType::Rc, DEPTH, None)?;
    other.connect(end).await?;
    let rig = &mut rig;
    let plain = rig.pd.alloc_shared(REGION, ALL)?;
    let region = rig.pd.alloc_shared(REGION, Access::MW_BIND)?;
    let domain = end.device().alloc_pd()?;
    let foreign = domain.alloc_shared(REGION, Access::MW_BIND)?;
    let mut window = rig.pd.alloc_memory_window()?;
    let mut foreign_window = domain.alloc_memory_window()?;
    let write = Access::REMOTE_WRITE;
    let part = || region.slice(0, 8);

    let free = WorkRequest::invalidate_window(&mut window).signaled(1);
    refused(rig, free, PostError::Window(WindowError::NotBoundHere))?;
    let without_flag = WorkRequest::bind_window(&mut window, plain.slice(0, 8), write);
    refused(rig, without_flag, PostError::Window(WindowError::NoBindAccess))?;
    let empty = WorkRequest::bind_window(&mut window, region.slice(0, 0), write);
    refused(rig, empty, PostError::Window(WindowError::Empty))?;
    let relaxed = WorkRequest::bind_window(&mut window, part(), Access::RELAXED_ORDERING);
    refused(rig, relaxed, PostError::Window(WindowError::Access))?;
    let theirs = WorkRequest::bind_window(&mut window, foreign.slice(0, 8), write);
    refused(rig, theirs, PostError::Foreign)?;
    let theirs = WorkRequest::bind_window(&mut foreign_window, part(), write);
    refused(rig, theirs, PostError::Foreign)?;
    ensure!(!window.is_bound(), "a refused binding has bound the window");

    rig.post(WorkRequest::bind_window(&mut window, part(), write).signaled(1))?;
    rig.success(end, 1).await?;
    let again = WorkRequest::bind_window(&mut window, part(), write);
    refused(rig, again, PostError::Window(WindowError::Bound))?;
    let elsewhere = WorkRequest::invalidate_window(&mut window);
    refused(&mut other, elsewhere, PostError::Window(WindowError::NotBoundHere))?;
    ensure!(window.is_bound(), "a refused invalidation has freed the window");
    invalidate(end, rig, &mut window).await?;
    // Free after the invalidation has completed: another queue pair may bind it.
    other.post(WorkRequest::bind_window(&mut window, part(), write).signaled(2))?;
    other.success(end, 2).await?;
    end.meet().await
}

/// Windows do not know of each other.
pub(crate) async fn many_windows_share_a_region(end: &mut End) -> CaseResult {
    const WINDOWS: usize = 100;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let region = rig.pd.alloc_shared(WINDOWS * 8, Access::MW_BIND)?;
            let mut windows = Vec::with_capacity(WINDOWS);
            for number in 0..WINDOWS {
                let mut window = rig.pd.alloc_memory_window()?;
                let part = region.slice(number * 8, 8);
                let binding = WorkRequest::bind_window(&mut window, part, Access::REMOTE_WRITE);
                rig.post(binding.signaled(1))?;
                rig.success(end, 1).await?;
                windows.push(window);
            }
            let theirs: Vec<RemoteRegion> =
                windows.iter().map(remote).collect::<CaseResult<_>>()?;
            end.tell(&theirs)?;
            rig.serve_until_met(end).await?;
            for number in 0..WINDOWS {
                ensure_eq!(region.load_u64(number * 8), number as u64 + 1, "window {number}");
            }
            // One less, and the others go on.
            invalidate(end, &mut rig, &mut windows[0]).await?;
            rig.serve_until_met(end).await?;
            rig.serve_until_met(end).await?;
            ensure_eq!(region.load_u64((WINDOWS - 1) * 8), 7, "the last window");
        }
        Role::Initiator => {
            let windows: Vec<RemoteRegion> = end.hear().await?;
            for (number, window) in windows.iter().enumerate().rev() {
                let word = (number as u64 + 1).to_ne_bytes();
                rig.post(WorkRequest::write(&word, window.all()).signaled(2))?;
                rig.success(end, 2).await?;
            }
            rig.serve_until_met(end).await?;
            rig.serve_until_met(end).await?;
            let last = windows.last().ok_or_else(|| Halt::failed("no windows"))?;
            rig.post(WorkRequest::write(&7_u64.to_ne_bytes(), last.all()).signaled(3))?;
            rig.success(end, 3).await?;
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// A region is watched, not a key.
pub(crate) async fn a_write_through_a_window_wakes_its_owner(end: &mut End) -> CaseResult {
    let channel = end.device().create_completion_channel()?;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let (region, window) = granted(end, &mut rig, ALL).await?;
            region.watch(&channel)?;
            region.arm();
            end.tell(&remote(&window)?)?;
            ensure!(end.sleep_until_event(&channel, 10_000_000_000).await?, "no event");
            rig.serve_until_met(end).await?;
        }
        Role::Initiator => {
            let there = discover(end).await?;
            rig.post(WorkRequest::write(&[9; 8], there.slice(0, 8)?).signaled(1))?;
            rig.success(end, 1).await?;
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// A device without windows says so.
pub(crate) async fn windows_that_are_not_there_are_refused(end: &mut End) -> CaseResult {
    match end.device().alloc_pd()?.alloc_memory_window() {
        Err(VerbsError::Unsupported(_)) => end.meet().await,
        other => Err(Halt::failed(format!("a window of a device without windows: {other:?}"))),
    }
}
