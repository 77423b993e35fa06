//! What the queue pairs and completion queues of a device with injectors share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use foldhash::fast::FixedState;

use super::injector::{FaultInjector, Incoming, Outgoing, Reception, Verdict};
use super::lock;
use super::pair::Pair;
use crate::{CompletionOpcode, QpNumber, QpType, Status, WorkCompletion};

/// The injectors around a device, and the queue pairs that were made through them.
pub(crate) struct Layer {
    /// The outermost first.
    injectors: Vec<Arc<dyn FaultInjector>>,
    /// Completion queues that were made through them.
    queues: AtomicU32,
    pairs: Mutex<HashMap<u32, Weak<SharedPair>, FixedState>>,
}

/// A queue pair in the hands of its owner and of the pollers of its completions.
pub(super) struct SharedPair {
    pub(super) ty: QpType,
    /// Its receives are its own, and can be posted again.
    pub(super) own_receives: bool,
    pub(super) pair: Mutex<Pair>,
}

impl Layer {
    /// `injector` around a device that may have such a layer already.
    pub(crate) fn around(injector: Arc<dyn FaultInjector>, inner: Option<&Layer>) -> Arc<Layer> {
        let mut injectors = vec![injector];
        injectors.extend(inner.into_iter().flat_map(|layer| layer.injectors.iter().cloned()));
        Arc::new(Layer { injectors, queues: AtomicU32::new(0), pairs: Mutex::default() })
    }

    /// The number of a new completion queue.
    pub(super) fn number_queue(&self) -> u32 {
        self.queues.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn overruns(&self, queue: u32) -> bool {
        self.injectors.iter().any(|injector| injector.overruns(queue))
    }

    pub(super) fn is_lost(&self) -> bool {
        self.injectors.iter().any(|injector| injector.is_lost())
    }

    pub(super) fn insert(&self, number: u32, pair: &Arc<SharedPair>) {
        lock(&self.pairs).insert(number, Arc::downgrade(pair));
    }

    pub(super) fn remove(&self, number: u32) {
        lock(&self.pairs).remove(&number);
    }

    pub(super) fn verdict(&self, request: &Outgoing<'_>) -> Verdict {
        let verdicts = self.injectors.iter().map(|injector| injector.outgoing(request));
        verdicts.into_iter().find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass)
    }

    fn delivers(&self, datagram: &Incoming<'_>) -> bool {
        self.injectors.iter().all(|injector| injector.incoming(datagram) == Reception::Deliver)
    }

    /// Makes a completion that was polled what its owner should see; `false`: nothing.
    pub(super) fn settle(&self, completion: &mut WorkCompletion) -> bool {
        let Some(shared) = self.find(completion.qp) else { return true };
        if !matches!(completion.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWriteWithImm)
        {
            lock(&shared.pair).finish_send(completion);
            return true;
        }
        let may_drop = shared.ty == QpType::Ud && shared.own_receives;
        if !may_drop || completion.status != Status::Success {
            return true;
        }
        let delivered = Incoming::of(completion).is_none_or(|datagram| self.delivers(&datagram));
        delivered || !lock(&shared.pair).repost(completion)
    }

    fn find(&self, qp: QpNumber) -> Option<Arc<SharedPair>> {
        lock(&self.pairs).get(&qp.0)?.upgrade()
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("injectors", &self.injectors.len()).finish_non_exhaustive()
    }
}
