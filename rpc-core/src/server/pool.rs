//! Futures of one type, in reused boxes.

use super::executor::Task;
use super::reply::{Reply, UnansweredCall};
use super::turn::Turn;
use crate::transport::Replies;
use core::any::Any;
use core::pin::Pin;
use core::task::{Context, Poll};

/// The futures of one `async` handler.
pub(super) trait Pool {
    /// Polls a future. When it is ready, takes the task and answers its call. Returns whether it was ready.
    fn poll(
        &mut self,
        entry: u32,
        cx: &mut Context<'_>,
        task: &mut Option<Task>,
        turn: &mut Turn,
        replies: &mut dyn Replies,
    ) -> bool;

    /// Drops a future, finished or not, and keeps its box for the next one.
    fn clear(&mut self, entry: u32);

    /// For [`TypedPool::insert`], which knows the type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Boxes for futures `F`; `D` answers the call with a future's output.
pub(super) struct TypedPool<F, D> {
    entries: Vec<Entry<F, D>>,
    free: Vec<u32>,
}

struct Entry<F, D> {
    future: Pin<Box<Option<F>>>,
    finish: Option<D>,
}

impl<F, D> TypedPool<F, D> {
    pub(super) fn new() -> Self {
        TypedPool { entries: Vec::new(), free: Vec::new() }
    }

    /// Puts a future into a free box, or a new one.
    pub(super) fn insert(&mut self, future: F, finish: D) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                entry.future.set(Some(future));
                entry.finish = Some(finish);
                index
            }
            None => {
                let future = Box::pin(Some(future));
                self.entries.push(Entry { future, finish: Some(finish) });
                // So that freeing never allocates.
                self.free.reserve(self.entries.len());
                self.entries.len() as u32 - 1
            }
        }
    }
}

impl<F, D> Pool for TypedPool<F, D>
where
    F: Future + 'static,
    D: FnOnce(F::Output, Reply<'_>) + 'static,
{
    fn poll(
        &mut self,
        entry: u32,
        cx: &mut Context<'_>,
        task: &mut Option<Task>,
        turn: &mut Turn,
        replies: &mut dyn Replies,
    ) -> bool {
        let entry = &mut self.entries[entry as usize];
        let Some(future) = entry.future.as_mut().as_pin_mut() else { return true };
        let Poll::Ready(output) = future.poll(cx) else { return false };
        if let (Some(finish), Some(task)) = (entry.finish.take(), task.take()) {
            finish(output, UnansweredCall::new(task, replies, turn, None).reply());
        }
        true
    }

    fn clear(&mut self, index: u32) {
        self.free.push(index);
        let entry = &mut self.entries[index as usize];
        entry.finish = None;
        entry.future.set(None);
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
