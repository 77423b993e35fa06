//! Memory windows: what a node's NIC knows of them, and the work requests that change it. These stay in the NIC: no message
//! leaves.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;

use super::context::Domain;
use super::event::{Event, QpId};
use super::message::Kind;
use super::world::World;
use crate::{Access, QpState, RemoteSlice, Status, VerbsError};

/// Windows of one node.
pub(super) const MAX_WINDOWS: usize = 1 << 20;

/// The part of a key that stays the same for all bindings of a window.
pub(super) fn base(rkey: u32) -> u32 {
    rkey >> 8
}

/// A window of a node. Its owner does not report the drop, so that it never waits.
#[derive(Debug)]
pub(crate) struct Window {
    _alive: Arc<()>,
}

/// The windows that a NIC knows, by the upper bits of their keys.
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_base: HashMap<u32, Allocated, FixedState>,
    /// The number of windows at which dead ones are searched for.
    sweep_at: usize,
}

#[derive(Debug)]
struct Allocated {
    owner: Weak<()>,
    bound: Option<Bound>,
}

/// A binding: the memory, and the queue pair whose peer may access it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) rkey: u32,
    pub(super) qp: u32,
    pub(super) region: u32,
    pub(super) access: Access,
    pub(super) addr: u64,
    pub(super) len: u64,
}

impl Windows {
    /// Allocates a window, under upper bits that `draw` returns and that no other key has.
    fn alloc(&mut self, mut draw: impl FnMut() -> Option<u32>) -> Option<(Window, u32)> {
        if self.by_base.len() >= self.sweep_at {
            self.by_base.retain(|_, window| window.owner.strong_count() > 0);
            self.sweep_at = 2 * self.by_base.len().max(32);
        }
        if self.by_base.len() >= MAX_WINDOWS {
            return None;
        }
        let base = loop {
            match draw() {
                Some(base) if base != 0 && !self.by_base.contains_key(&base) => break base,
                _ => {}
            }
        };
        let alive = Arc::new(());
        let owner = Arc::downgrade(&alive);
        self.by_base.insert(base, Allocated { owner, bound: None });
        Some((Window { _alive: alive }, base << 8))
    }

    pub(super) fn has(&self, base: u32) -> bool {
        self.by_base.contains_key(&base)
    }

    /// The number of windows that have an owner.
    pub(super) fn owned(&self) -> usize {
        self.by_base.values().filter(|window| window.owner.strong_count() > 0).count()
    }

    /// The binding that lets the peer of queue pair `qp` access `remote`.
    #[cold]
    pub(super) fn find(&self, remote: RemoteSlice, access: Access, qp: u32) -> Option<Bound> {
        let window = self.by_base.get(&base(remote.rkey))?;
        let bound = window.bound.filter(|_| window.owner.strong_count() > 0)?;
        let offset = remote.addr.wrapping_sub(bound.addr);
        let fits = offset <= bound.len && remote.len <= bound.len - offset;
        let allowed = bound.rkey == remote.rkey && bound.qp == qp && bound.access.contains(access);
        (fits && allowed).then_some(bound)
    }

    /// Binds a window. `false`: it is not free.
    fn bind(&mut self, to: Bound) -> bool {
        let Some(window) = self.by_base.get_mut(&base(to.rkey)) else { return false };
        let is_free = window.bound.is_none();
        if is_free {
            window.bound = Some(to);
        }
        is_free
    }

    /// Invalidates a key. `false`: it was not valid.
    fn invalidate(&mut self, rkey: u32) -> bool {
        let window = self.by_base.get_mut(&base(rkey));
        let bound = window.map(|window| &mut window.bound);
        bound.is_some_and(|bound| bound.take_if(|bound| bound.rkey == rkey).is_some())
    }

    /// Frees the windows that were bound on a queue pair that is gone.
    pub(super) fn free_of(&mut self, qp: u32) {
        for window in self.by_base.values_mut() {
            window.bound = window.bound.filter(|bound| bound.qp != qp);
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.by_base.clear();
    }
}

impl Domain {
    /// Allocates a free window. Returns its first key too.
    pub(crate) fn alloc_window(&self) -> Result<(Window, u32), VerbsError> {
        let mut world = self.context.running()?;
        let World { nodes, dice, .. } = &mut *world;
        let regions = &mut nodes[usize::from(self.context.node)].regions;
        let mut windows = std::mem::take(&mut regions.windows);
        let draw = || Some(base(dice.word())).filter(|base| !regions.has_key_like(*base));
        let allocated = windows.alloc(draw);
        regions.windows = windows;
        let max = MAX_WINDOWS;
        allocated.ok_or(VerbsError::Limit { what: "memory windows", asked: max + 1, max })
    }
}

impl World {
    /// Executes a work request that stays in its NIC, when it is its turn.
    pub(super) fn execute_locally(&mut self, qp: QpId, number: u64, kind: Kind) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[usize::from(qp.node)];
        let Some(pair) = node.pairs.get_mut(qp.number) else { return };
        let (epoch, landed_ns) = (pair.epoch, pair.landed_ns);
        if pair.state != QpState::ReadyToSend || pair.wqe(number).is_none_or(|wqe| wqe.done) {
            return;
        }
        match kind {
            Kind::Bind(bound) => {
                let to = Bound { qp: qp.number, ..bound };
                let is_free = node.regions.windows.bind(to);
                if !is_free {
                    return self.fail(qp, number, Status::WindowBind);
                }
            }
            Kind::Invalidate(rkey) => {
                let was_valid = node.regions.windows.invalidate(rkey);
                // A WRITE that was let through is still landing: it completes behind that, when it comes here again.
                if was_valid && landed_ns > now_ns {
                    let launch = Event::Launch { qp, epoch, psn: number as u32 };
                    return self.events.push(landed_ns, launch);
                }
            }
            _ => {}
        }
        self.note(qp, || format!("executes {} {number}", kind.name()));
        self.trace.mix(now_ns ^ number << 32);
        if let Some(wqe) = self.pair(qp).and_then(|pair| pair.wqe(number)) {
            wqe.done = true;
        }
        self.retire(qp);
    }
}
