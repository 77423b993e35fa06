//! The lifetime of memory windows, beside that of regions and queue pairs.

use farcall_verbs::{Operation, PostError, QpState, QpType, Status, WorkRequest};

use crate::cases::lifetime::settles_after_a_message;
use crate::cases::protection::inline_request;
use crate::cases::windows::{ALL, LEN, REGION, START, bind, denied, granted, invalidate, remote};
use crate::end::{End, Role};
use crate::rig::{DEPTH, Rig, discover, held, pattern};
use crate::verdict::{CaseResult, ensure, ensure_eq};

/// A region stays registered as long as a window is bound to it; without the window the access ends.
pub(crate) async fn a_window_keeps_its_region(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let (region, window) = granted(end, &mut rig, ALL).await?;
            drop(region);
            end.tell(&remote(&window)?)?;
            rig.serve_until_met(end).await?;
            drop(window);
            rig.serve_until_met(end).await?;
            rig.serve_until_met(end).await?;
        }
        Role::Initiator => {
            let there = discover(end).await?;
            let into = rig.pd.alloc_private(LEN)?.into_buffer();
            rig.post(WorkRequest::read(into, there.all()).signaled(2))?;
            rig.success(end, 2).await?;
            let read = rig.reclaimed().pop();
            ensure_eq!(read.as_deref(), Some(&pattern(1, REGION)[START..][..LEN]), "bytes read");
            rig.serve_until_met(end).await?;
            rig.serve_until_met(end).await?;
            let late = inline_request(&rig, Operation::Write, there.slice(0, 8)?)?;
            denied(end, &mut rig, late).await?;
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// The window of a queue pair that is gone can be bound on another; its key then is another too.
pub(crate) async fn a_window_is_free_when_its_queue_pair_is_gone(end: &mut End) -> CaseResult {
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    match end.role() {
        Role::Target => {
            let pd = rig.pd.clone();
            let (region, mut window) = granted(end, &mut rig, ALL).await?;
            end.tell(&remote(&window)?)?;
            end.hear::<()>().await?;
            // The peer has dropped its queue pair. Ours may know that or not.
            match rig.qp.post_send_one(WorkRequest::invalidate_window(&mut window).signaled(3)) {
                Ok(()) => {
                    let done = rig.completion(end).await?;
                    let flushed = done.status == Status::Flushed;
                    ensure!(flushed || done.status == Status::Success, "{:?}", done.status);
                    let part = region.slice(START, LEN);
                    let again = WorkRequest::bind_window(&mut window, part, ALL).signaled(4);
                    let _ = rig.qp.post_send_one(again);
                }
                Err((PostError::State(QpState::Error), _)) => {}
                Err((error, _)) => return Err(error.into()),
            }
            drop(rig);
            ensure!(!window.is_bound(), "the window of a queue pair that is gone");
            let mut rig = Rig::within(end.device(), &pd, QpType::Rc, DEPTH, None)?;
            rig.connect(end).await?;
            bind(end, &mut rig, &mut window, &region, ALL).await?;
            end.tell(&remote(&window)?)?;
            rig.serve_until_met(end).await?;
            ensure_eq!(held(&region, START, 8), [9; 8], "bytes written through the window");
            rig.serve_until_met(end).await?;
        }
        Role::Initiator => {
            let before = discover(end).await?;
            rig.post(WorkRequest::write(&[8; 8], before.slice(0, 8)?).signaled(1))?;
            rig.success(end, 1).await?;
            drop(rig);
            end.tell(&())?;
            let mut rig = Rig::connected(end, QpType::Rc).await?;
            let there = discover(end).await?;
            rig.post(WorkRequest::write(&[9; 8], there.slice(0, 8)?).signaled(1))?;
            rig.success(end, 1).await?;
            rig.serve_until_met(end).await?;
            if before.rkey != there.rkey {
                let late = inline_request(&rig, Operation::Write, before.slice(0, 8)?)?;
                denied(end, &mut rig, late).await?;
            }
            rig.serve_until_met(end).await?;
        }
    }
    Ok(())
}

/// Windows, bound and free, that are dropped in any order leave nothing behind.
pub(crate) async fn windows_that_come_and_go_leave_nothing(end: &mut End) -> CaseResult {
    const ROUNDS: usize = 120;
    const WARM_UP: usize = 20;
    let mut rig = Rig::connected(end, QpType::Rc).await?;
    let mut before = end.usage()?;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            before = end.usage()?;
        }
        match end.role() {
            Role::Target => {
                let (region, mut window) = granted(end, &mut rig, ALL).await?;
                end.tell(&remote(&window)?)?;
                rig.serve_until_met(end).await?;
                match round % 3 {
                    0 => drop(region),
                    1 => invalidate(end, &mut rig, &mut window).await?,
                    _ => drop(window),
                }
            }
            Role::Initiator => {
                let there = discover(end).await?;
                rig.post(WorkRequest::write(&[9; 8], there.slice(0, 8)?).signaled(1))?;
                rig.success(end, 1).await?;
                rig.serve_until_met(end).await?;
            }
        }
        end.meet().await?;
    }
    settles_after_a_message(end, &mut rig, before, "120 windows").await
}
