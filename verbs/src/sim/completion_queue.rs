//! The poller's side of completion queues.

use std::sync::Arc;

use super::channel::Channel;
use super::context::Context;
use super::queue::Queue;
use crate::{CqError, VerbsError, WorkCompletion};

/// The poller's state.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    handle: CqHandle,
}

/// A handle with which queue pairs are created on a completion queue.
#[derive(Clone, Debug)]
pub(crate) struct CqHandle {
    context: Arc<Context>,
    number: u32,
}

impl CqHandle {
    /// The queue's number, if it belongs to this device.
    pub(super) fn of(&self, context: &Context) -> Result<u32, VerbsError> {
        match self.context.is(context) {
            true => Ok(self.number),
            false => Err(VerbsError::Foreign("completion queue")),
        }
    }
}

impl CompletionQueue {
    pub(super) fn new(
        context: &Arc<Context>,
        capacity: usize,
        channel: Option<Arc<Channel>>,
    ) -> Result<(CompletionQueue, CqHandle), VerbsError> {
        let mut world = context.running()?;
        let queues = &mut world.node(context.node).queues;
        let number = queues
            .insert(Queue::new(capacity, channel))
            .ok_or(VerbsError::Invalid("too many completion queues on one node"))?;
        drop(world);
        let handle = CqHandle { context: Arc::clone(context), number };
        Ok((CompletionQueue { handle: handle.clone() }, handle))
    }

    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let CqHandle { context, number } = &self.handle;
        context.lock().poll(context.node, *number, out)
    }

    pub(crate) fn arm(&mut self) {
        let CqHandle { context, number } = &self.handle;
        if let Some(queue) = context.lock().node(context.node).queues.get_mut(*number) {
            queue.arm();
        }
    }

    /// Simulates a device of verbs, which have no such call.
    pub(crate) fn disarm(&mut self) {}

    /// Always 0: polling a simulated queue has its own cost.
    #[inline]
    pub(crate) fn scanned(&self) -> u32 {
        0
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let CqHandle { context, number } = &self.handle;
        let gone = context.lock().node(context.node).queues.remove(*number);
        drop(gone);
    }
}
