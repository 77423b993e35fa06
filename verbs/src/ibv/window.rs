//! Memory windows of type 2B.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::domain::ProtectionDomain;
use super::in_flight::{Held, Memory};
use super::memory::window_access;
use super::pending::Bytes;
use super::post_send::RawTo;
use super::queue_pair::QueuePair;
use super::status;
use super::sys::{
    Handle, bind_mw_t, ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_bind_info, ibv_mw_type,
    ibv_wr_opcode as opcode,
};
use crate::dispatch;
use crate::work_request::Work;
use crate::{
    Access, CompletionOpcode, MemoryWindow, PostError, SharedSlice, VerbsError, WorkRequest,
};

/// A memory window. Dropping it deallocates it.
#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<State>,
    domain: Arc<ProtectionDomain>,
}

#[derive(Debug)]
struct State {
    /// `None` once a queue pair that is gone has taken it along.
    raw: Option<Handle<ibv_mw>>,
    /// The queue pair that it was last bound on, by the address of its handle; 0 for none.
    bound_on: usize,
}

/// The windows that were last bound on one queue pair.
#[derive(Debug, Default)]
pub(super) struct BoundWindows {
    all: Vec<Weak<Window>>,
    /// The number of windows at which those that are gone are removed.
    sweep_at: usize,
}

/// The fewest windows at which those that are gone are searched for.
const MIN_SWEEP: usize = 32;

fn allocate(domain: &ProtectionDomain) -> Result<(Handle<ibv_mw>, u32), VerbsError> {
    // SAFETY: the domain lives.
    let raw = unsafe { ibv_alloc_mw(domain.raw.raw(), ibv_mw_type::IBV_MW_TYPE_2) };
    let raw = raw.and_then(Handle::new);
    let raw = raw.ok_or_else(|| status::resource("memory window")(status::last()))?;
    // SAFETY: libibverbs has filled the structure.
    let rkey = unsafe { (*raw.raw()).rkey };
    Ok((raw, rkey))
}

impl Window {
    /// Allocates a free window. Returns its key too.
    pub(crate) fn alloc(domain: &Arc<ProtectionDomain>) -> Result<(Window, u32), VerbsError> {
        let (raw, rkey) = allocate(domain)?;
        let state = Mutex::new(State { raw: Some(raw), bound_on: 0 });
        Ok((Window { state, domain: Arc::clone(domain) }, rkey))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its handle, to be bound on this queue pair. `Some` with a key: it was allocated again, because it had been bound on a
    /// queue pair that is gone.
    fn to_bind_on(&self, pair: usize) -> Result<(*mut ibv_mw, Option<u32>), VerbsError> {
        let mut state = self.lock();
        let (raw, rkey) = match &state.raw {
            Some(raw) => (raw.raw(), None),
            None => {
                let (fresh, rkey) = allocate(&self.domain)?;
                (state.raw.insert(fresh).raw(), Some(rkey))
            }
        };
        state.bound_on = pair;
        Ok((raw, rkey))
    }
}

impl State {
    fn deallocate(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        // SAFETY: allocated by `ibv_alloc_mw`, and taken out, so this is its last use.
        let code = unsafe { ibv_dealloc_mw(raw.raw()) };
        if code != 0 {
            tracing::error!(code, "a memory window could not be deallocated, and is leaked");
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.lock().deallocate();
    }
}

impl BoundWindows {
    /// One is bound on this queue pair.
    fn insert(&mut self, window: &Arc<Window>) {
        let known = Arc::as_ptr(window);
        if self.all.iter().any(|other| std::ptr::eq(other.as_ptr(), known)) {
            return;
        }
        if self.all.len() >= self.sweep_at.max(MIN_SWEEP) {
            self.all.retain(|window| window.strong_count() > 0);
            self.sweep_at = 2 * self.all.len();
        }
        self.all.push(Arc::downgrade(window));
    }

    /// Deallocates those that were last bound on this queue pair, before it is destroyed: windows of Soft-RoCE keep a
    /// reference to it, without which the kernel does not destroy it (`rxe_do_bind_mw`).
    pub(super) fn deallocate(&mut self, pair: usize) {
        for window in self.all.drain(..).filter_map(|window| window.upgrade()) {
            let mut state = window.lock();
            if state.bound_on == pair {
                state.deallocate();
            }
        }
    }
}

impl QueuePair {
    /// Posts the checked binding of a window, and rings: the device reads the window's old key when it takes the request.
    #[cold]
    #[allow(clippy::result_large_err)] // As for `post`.
    pub(super) fn post_binding<'a>(
        &mut self,
        window: &'a mut MemoryWindow,
        memory: SharedSlice,
        access: Access,
        signaled: Option<u64>,
    ) -> Result<(), (PostError, WorkRequest<'a>)> {
        let found = match (window.device(), memory.registration()) {
            (dispatch::Window::Ibv(device), dispatch::Registration::Ibv(registration)) => device
                .to_bind_on(self.raw.address())
                .map(|found| (Arc::clone(device), registration.raw(), found))
                .map_err(|error| match error {
                    VerbsError::System { source, .. } => {
                        PostError::Device { errno: source.raw_os_error().unwrap_or(0) }
                    }
                    _ => PostError::Device { errno: 0 },
                }),
            _ => Err(PostError::Foreign),
        };
        let (device, mr, (raw, renewed)) = match found {
            Ok(found) => found,
            Err(error) => {
                let work = Work::BindWindow { window, memory, access };
                return Err((error, WorkRequest { work, signaled, failure_id: 0 }));
            }
        };
        if let Some(rkey) = renewed {
            window.renew(rkey);
        }
        let binding = window.bind(&self.binder, memory, access);
        // SAFETY: the window lives, and only its owner, who lends it to us, binds it.
        unsafe { (*raw).rkey = binding.old_rkey };
        let bind_info = ibv_mw_bind_info {
            mr,
            addr: binding.addr,
            length: binding.len,
            mw_access_flags: window_access(binding.access),
        };
        let to = RawTo::Window(bind_mw_t { mw: raw, rkey: binding.rkey, bind_info });
        let (nothing, kind) = (Bytes::Inline(&[]), CompletionOpcode::BindWindow);
        let number = self.posted;
        self.append(nothing, opcode::IBV_WR_BIND_MW, kind, None, signaled, to);
        if let Some(before) = binding.before {
            let held = Held { memory: Some(Memory::Shared(before)), address: None };
            self.in_flight.push(number, held, self.shared.sends.retired());
        }
        self.windows.insert(&device);
        self.ring_doorbell();
        Ok(())
    }

    /// Posts the checked invalidation of a window, without ringing.
    #[cold]
    pub(super) fn post_invalidation(&mut self, window: &mut MemoryWindow, signaled: Option<u64>) {
        let to = RawTo::Invalidated(window.invalidate());
        let (nothing, kind) = (Bytes::Inline(&[]), CompletionOpcode::InvalidateWindow);
        self.append(nothing, opcode::IBV_WR_LOCAL_INV, kind, None, signaled, to);
    }
}
