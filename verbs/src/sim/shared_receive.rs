//! The owner's side of shared receive queues.

use std::sync::Arc;

use super::context::{Context, Domain};
use super::node::SharedQueue;
use super::receives::Receives;
use crate::{Buffer, PostError, QpState, VerbsError};

#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    context: Arc<Context>,
    number: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn new(domain: &Domain, max_wr: usize) -> Result<SharedReceiveQueue, VerbsError> {
        let Domain { context, number: pd } = domain;
        let queue = SharedQueue { pd: *pd, receives: Receives::new(max_wr) };
        let mut world = context.running()?;
        let number = world
            .node(context.node)
            .srqs
            .insert(queue)
            .ok_or(VerbsError::Invalid("too many shared receive queues on one node"))?;
        Ok(SharedReceiveQueue { context: Arc::clone(context), number })
    }

    /// The queue's number, if it belongs to this device.
    pub(super) fn of(&self, context: &Context) -> Result<u32, VerbsError> {
        match self.context.is(context) {
            true => Ok(self.number),
            false => Err(VerbsError::Foreign("shared receive queue")),
        }
    }

    pub(crate) fn post_recv(&self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        let mut world = self.context.lock();
        let post_ns = world.config.costs.post_recv_ns;
        world.charge(post_ns);
        let queue = world.node(self.context.node).srqs.get_mut(self.number);
        let queue = queue.ok_or(PostError::State(QpState::Error))?;
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != queue.pd) {
            return Err(PostError::Foreign);
        }
        queue.receives.post(id, buffer)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        let gone = self.context.lock().node(self.context.node).srqs.remove(self.number);
        drop(gone);
    }
}
