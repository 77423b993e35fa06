//! How the owner opens lanes and binds windows for their clients: without waiting.

use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytes::Bytes;
use farcall_core::site::{Caller, Site};
use farcall_core::time::Instant;

use super::host_lanes::{Asked, HostLane, Lend, connecting_blocks};
use super::lane::{LaneError, Window};
use super::{Memory, Remote, Rights, Who};

/// Most lanes that are being opened at once: each takes a thread for a moment, on devices that wait for the client.
const MAX_OPENING: usize = 8;

/// A lane that is being opened: gives its number, which is a secret, and the endpoint of the owner's end.
#[derive(Debug)]
#[must_use = "it is opened when it has been awaited"]
pub struct OpeningLane {
    memory: Memory,
    client: Option<Caller>,
    state: Arc<Mutex<State>>,
}

type Connected = Result<(HostLane, Bytes), LaneError>;

#[derive(Debug, Default)]
struct State {
    connected: Option<Connected>,
    waker: Option<Waker>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Connects a lane to a client's endpoint: a queue pair on which the client accesses lends without this end's CPU. In a handler, it is
    /// the lane of the client that calls, and ends with its connection.
    ///
    /// It gives a [`LaneError`] if the client's end cannot be reached from here, or if there are too many lanes.
    pub fn open_lane(&self, endpoint: &[u8]) -> OpeningLane {
        let (site, client) = self.learn_of_ends().unzip();
        let opening =
            OpeningLane { memory: self.clone(), client, state: Arc::new(Mutex::default()) };
        opening.begin(site, endpoint);
        opening
    }

    fn connect_lane(&self, site: Option<&Site>, endpoint: &[u8]) -> Connected {
        HostLane::connect(&self.inner.device, &self.inner.domain, site, endpoint)
    }

    /// Gives the client of a lane a window to a lend, if it may use that: see [`BindingWindow`].
    pub fn bind(&self, lane: u64, remote: &Remote, who: Who<'_>, now: Instant) -> BindingWindow {
        let is_begun = self.begin_binding(lane, remote, who, now).is_some();
        BindingWindow { memory: self.clone(), lane, remote: *remote, is_begun }
    }

    fn begin_binding(&self, lane: u64, remote: &Remote, who: Who<'_>, now: Instant) -> Option<()> {
        // Held until the binding is posted: the lend is not revoked meanwhile.
        let tables = self.shared();
        let grant = tables.grants.granted(remote, who, now).ok()?;
        let bytes = tables.regions.get(grant.region as usize)?.as_ref()?;
        let (begin, len) = (grant.part.start, grant.part.end - grant.part.start);
        let has_lease = grant.until != Instant::FAR_FUTURE;
        let left_ns = has_lease.then(|| grant.until.saturating_since(now).as_nanos() as u64);
        // Clients without a lane swap by this CPU. Where a NIC's atomics do not respect that, all must do so.
        let includes_cpu = self.inner.device.caps().atomics_include_cpu;
        let rights = if includes_cpu { grant.rights } else { grant.rights - Rights::ATOMIC };
        let lend = Lend { remote: *remote, bytes: bytes.shared(), begin, len, rights, left_ns };
        match self.lanes().bind(lane, &self.inner.domain, &lend) {
            Asked::Answered(None) => None,
            Asked::Answered(Some(_)) | Asked::UnderWay => Some(()),
        }
    }
}

impl OpeningLane {
    fn begin(&self, site: Option<Site>, endpoint: &[u8]) {
        if !connecting_blocks(&self.memory.inner.device) {
            lock(&self.state).connected = Some(self.memory.connect_lane(site.as_ref(), endpoint));
            return;
        }
        let opening = &self.memory.inner.opening;
        if opening.fetch_add(1, Ordering::AcqRel) >= MAX_OPENING {
            opening.fetch_sub(1, Ordering::AcqRel);
            lock(&self.state).connected = Some(Err(LaneError::TooMany));
            return;
        }
        let (memory, state) = (self.memory.clone(), Arc::clone(&self.state));
        let endpoint = Bytes::copy_from_slice(endpoint);
        // The client's process is asked, which may be stopped: no thread of the server waits for that.
        let connect = move || {
            let connected = memory.connect_lane(site.as_ref(), &endpoint);
            memory.inner.opening.fetch_sub(1, Ordering::AcqRel);
            let mut state = lock(&state);
            state.connected = Some(connected);
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        };
        if let Err(error) = thread::Builder::new().name("farcall-lane".into()).spawn(connect) {
            opening.fetch_sub(1, Ordering::AcqRel);
            lock(&self.state).connected = Some(Err(LaneError::Thread(error)));
        }
    }
}

impl Future for OpeningLane {
    type Output = Result<(u64, Bytes), LaneError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        let Some(connected) = state.connected.take() else {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        Poll::Ready(connected.and_then(|(lane, endpoint)| {
            let number = self.memory.next_number();
            self.memory.with_lanes(|lanes| lanes.insert(number, self.client, lane))?;
            Ok((number, endpoint))
        }))
    }
}

/// A window that is being bound for the client of a lane: gives what the client needs to use it. `None`: the client must use calls.
#[derive(Debug)]
#[must_use = "it is bound when it has been awaited"]
pub struct BindingWindow {
    memory: Memory,
    lane: u64,
    remote: Remote,
    is_begun: bool,
}

impl Future for BindingWindow {
    type Output = Option<Window>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Window>> {
        if !self.is_begun {
            return Poll::Ready(None);
        }
        self.memory.with_lanes(|lanes| {
            lanes.poll();
            match lanes.asked(self.lane, &self.remote) {
                Asked::Answered(window) => Poll::Ready(window),
                Asked::UnderWay => {
                    lanes.wait(cx.waker());
                    Poll::Pending
                }
            }
        })
    }
}
