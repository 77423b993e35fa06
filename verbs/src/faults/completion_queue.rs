//! A completion queue of a device with injectors: what is lost on the way in is not polled.

use std::sync::Arc;

use super::layer::Layer;
use crate::dispatch::{self, on_device};
use crate::{CqError, WorkCompletion};

/// A completion queue whose poller sees what the injectors deliver.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    layer: Arc<Layer>,
    queue: Box<dispatch::CompletionQueue>,
    armed: bool,
    number: u32,
    failed: Option<CqError>,
}

impl CompletionQueue {
    pub(crate) fn new(layer: &Arc<Layer>, queue: dispatch::CompletionQueue) -> CompletionQueue {
        let (number, queue) = (layer.number_queue(), Box::new(queue));
        let layer = Arc::clone(layer);
        CompletionQueue { layer, queue, armed: false, number, failed: None }
    }

    pub(crate) fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        if self.layer.is_lost() {
            self.failed = Some(CqError::DeviceLost);
        } else if self.layer.overruns(self.number) {
            self.failed = Some(CqError::Overrun);
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        let count = on_device!(CompletionQueue, &mut *self.queue, queue => queue.poll(out))?;
        let mut kept = 0;
        for index in 0..count {
            if self.layer.settle(&mut out[index]) {
                out.swap(kept, index);
                kept += 1;
            }
        }
        if kept > 0 {
            self.armed = false;
        } else if count > 0 && self.armed {
            // Finding something has disarmed the queue, but its owner saw nothing, and may go to sleep.
            self.arm();
        }
        Ok(kept)
    }

    pub(crate) fn arm(&mut self) {
        self.armed = true;
        on_device!(CompletionQueue, &mut *self.queue, queue => queue.arm());
    }

    pub(crate) fn disarm(&mut self) {
        self.armed = false;
        on_device!(CompletionQueue, &mut *self.queue, queue => queue.disarm());
    }

    pub(crate) fn scanned(&self) -> u32 {
        on_device!(CompletionQueue, &*self.queue, queue => queue.scanned())
    }
}
