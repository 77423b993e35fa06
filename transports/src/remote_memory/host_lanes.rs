//! The owner's queue pairs for one-sided operations, and the memory windows by which it gives access and takes it away.
//!
//! Nothing here waits: bindings and invalidations are posted, and [`poll`](HostLanes::poll) takes their completions.

use core::task::Waker;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use farcall_core::site::{Caller, Site};
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, DeviceKind, Endpoint, MemoryWindow,
    PartRegistration, ProtectionDomain, QpState, QpType, QueuePair, QueuePairConfig, RemoteRegion,
    SharedRegion, SharedSlice, Status, WorkCompletion, WorkRequest,
};

use super::lane::{LaneError, Window};
use super::{Remote, Rights};
use crate::kit::device_channel::DeviceChannel;

/// Most lanes of one owner. Clients beyond them use calls.
const MAX_LANES: usize = 4096;

/// Most lanes of one client. Another one replaces the oldest of them.
const MAX_LANES_OF_CLIENT: usize = 16;

/// Most windows of one lane. Lends beyond them travel as calls.
const MAX_WINDOWS: usize = 64;

/// Work requests that a lane may have under way: each window may be bound and invalidated.
const MAX_UNDER_WAY: usize = 2 * MAX_WINDOWS;

/// How long connecting to a client's endpoint may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How an owner can give a client access to some bytes of a region, and take it away for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grip {
    /// By memory windows, which are bound to those bytes for the client's queue pair.
    Windows,
    /// By registering those bytes in a protection domain of the client's queue pair alone. For devices whose windows reach every byte of
    /// their region, or on which something may land after an invalidation (Soft-RoCE).
    Registrations,
    /// It cannot.
    None,
}

impl Grip {
    /// That of a device.
    pub(super) fn of(device: &Device) -> Grip {
        let caps = device.caps();
        match device.kind() {
            _ if caps.max_mw > 0 && caps.window_bounds && caps.invalidation_waits => Grip::Windows,
            DeviceKind::Rdma => Grip::Registrations,
            _ => Grip::None,
        }
    }
}

/// The lanes of an owner, by their numbers.
#[derive(Debug, Default)]
pub(super) struct HostLanes {
    lanes: BTreeMap<u64, HostLane>,
    /// Those whose queue pairs have work under way, each once.
    busy: Vec<u64>,
    /// Threads that are to take completions, and may sleep: roused when this is not locked any more, each once.
    roused: Vec<Site>,
    /// How many windows of a lend are being invalidated.
    ending: BTreeMap<u32, u32>,
    /// Lanes that were opened so far.
    opened: u64,
    /// Those who wait for work that is under way.
    waiting: Vec<Waker>,
    /// To be woken when this is not locked any more.
    woken: Vec<Waker>,
}

/// The owner's end of one lane.
#[derive(Debug)]
pub(super) struct HostLane {
    /// Dropped first: all access ends with it.
    qp: QueuePair,
    /// By lend.
    windows: BTreeMap<u32, Bound>,
    under_way: VecDeque<UnderWay>,
    cq: CompletionQueue,
    /// Its own, if lends are registered in it.
    domain: Option<ProtectionDomain>,
    /// The client whose lane it is, if it is known.
    client: Option<Caller>,
    /// How many were opened before it.
    place: u64,
    /// It ends as soon as its windows are invalidated.
    is_closing: bool,
    /// It is among those that have work under way.
    is_busy: bool,
    /// Of the thread that takes its completions.
    site: Option<Site>,
    _channel: Option<Arc<DeviceChannel>>,
}

/// A window of a lend.
#[derive(Debug)]
struct Bound {
    epoch: u32,
    access: GivenAccess,
    described: Window,
    /// The device has bound it.
    is_ready: bool,
}

/// Access that the device has given, which ends with it.
#[derive(Debug)]
enum GivenAccess {
    Window(MemoryWindow),
    Registration(PartRegistration),
}

/// A work request of which the completion is still to come.
#[derive(Debug)]
enum UnderWay {
    Binding { lend: u32, epoch: u32 },
    Invalidation { lend: u32, _window: MemoryWindow },
}

/// What is known of a window that a client has asked for.
#[derive(Debug)]
pub(super) enum Asked {
    /// It is there, or there is none.
    Answered(Option<Window>),
    /// It is being bound.
    UnderWay,
}

impl HostLane {
    /// Connects to a client's endpoint. Gives that of this end, too.
    pub(super) fn connect(
        device: &Device,
        domain: &ProtectionDomain,
        site: Option<&Site>,
        client: &[u8],
    ) -> Result<(HostLane, Bytes), LaneError> {
        let own_domain = match Grip::of(device) {
            Grip::Windows => None,
            Grip::Registrations => Some(device.alloc_pd()?),
            Grip::None => return Err(LaneError::Unsupported),
        };
        let domain = own_domain.as_ref().unwrap_or(domain);
        let client = Endpoint::from_bytes(client)?;
        let channel = site.map(|site| DeviceChannel::at(site, device)).transpose()?;
        let events = channel.as_ref().map(|it| it.channel());
        let cq = device.create_cq(MAX_UNDER_WAY + 1, events)?;
        let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
        let mut qp = domain.create_qp(config.max_send_wr(MAX_UNDER_WAY).max_recv_wr(1))?;
        qp.connect(&client, &ConnectOptions::default().setup_timeout(CONNECT_TIMEOUT))?;
        let endpoint = Bytes::copy_from_slice(qp.endpoint().to_bytes());
        let lane = HostLane {
            windows: BTreeMap::new(),
            under_way: VecDeque::new(),
            qp,
            cq,
            domain: own_domain,
            client: None,
            place: 0,
            is_closing: false,
            is_busy: false,
            site: site.cloned(),
            _channel: channel,
        };
        Ok((lane, endpoint))
    }
}

impl HostLanes {
    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether work is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Takes a lane of this client. The client's oldest one ends, if it has too many.
    pub(super) fn insert(
        &mut self,
        number: u64,
        client: Option<Caller>,
        lane: HostLane,
    ) -> Result<(), LaneError> {
        self.end_broken();
        let of_client = self.lanes.iter().filter(|(_, it)| it.client == client && !it.is_closing);
        let oldest = of_client.clone().min_by_key(|(_, it)| it.place).map(|(number, _)| *number);
        if let Some(oldest) = oldest
            && of_client.count() >= MAX_LANES_OF_CLIENT
        {
            self.close(oldest);
        }
        if self.lanes.len() >= MAX_LANES {
            return Err(LaneError::TooMany);
        }
        self.opened += 1;
        self.lanes.insert(number, HostLane { client, place: self.opened, ..lane });
        Ok(())
    }

    /// These clients are gone, and so are their lanes.
    pub(super) fn close_of(&mut self, is_gone: impl Fn(&Caller) -> bool) {
        let of_clients =
            self.lanes.iter().filter(|(_, it)| it.client.as_ref().is_some_and(&is_gone));
        let numbers: Vec<u64> = of_clients.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.close(number));
        self.end_broken();
    }

    /// Ends a lane as soon as nothing of its client's can land any more.
    fn close(&mut self, number: u64) {
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        lane.is_closing = true;
        let lends: Vec<u32> = lane.windows.keys().copied().collect();
        lends.into_iter().for_each(|lend| self.invalidate(number, lend));
        if self.lanes.get(&number).is_some_and(|lane| lane.under_way.is_empty()) {
            self.end(number);
        }
    }

    /// Ends those whose clients are gone, as far as the device knows.
    fn end_broken(&mut self) {
        let is_broken = |lane: &HostLane| lane.qp.state() != QpState::ReadyToSend;
        let broken = self.lanes.iter().filter(|(_, lane)| is_broken(lane));
        let broken: Vec<u64> = broken.map(|(number, _)| *number).collect();
        broken.into_iter().for_each(|number| self.end(number));
    }

    /// Destroys a lane's queue pair, and with it all access that it gave.
    fn end(&mut self, number: u64) {
        let Some(HostLane { qp, windows, under_way, .. }) = self.lanes.remove(&number) else {
            return;
        };
        // First: nothing lands behind it, so access need not be taken away.
        drop(qp);
        drop(windows);
        self.busy.retain(|other| *other != number);
        for work in under_way {
            if let UnderWay::Invalidation { lend, .. } = work {
                self.note_ended(lend);
            }
        }
        self.woken.append(&mut self.waiting);
    }

    /// Begins to give the client of a lane access to a lend.
    pub(super) fn bind(
        &mut self,
        number: u64,
        domain: &ProtectionDomain,
        lend: &Lend<'_>,
    ) -> Asked {
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| !lane.is_closing) else {
            return Asked::Answered(None);
        };
        if let Some(bound) = lane.windows.get_mut(&lend.remote.lend) {
            if bound.epoch == lend.remote.epoch {
                bound.described.left_ns = lend.left_ns;
            }
            return self.asked(number, &lend.remote);
        }
        if lane.give(domain, lend).is_none() {
            if lane.qp.state() != QpState::ReadyToSend {
                self.end(number);
            }
            return Asked::Answered(None);
        }
        if !lane.under_way.is_empty() {
            self.note_busy(number);
            self.poll();
        }
        self.asked(number, &lend.remote)
    }

    /// What has become of the window of this lend on a lane.
    pub(super) fn asked(&self, number: u64, at: &Remote) -> Asked {
        let bound = self.lanes.get(&number).and_then(|lane| lane.windows.get(&at.lend));
        match bound.filter(|bound| bound.epoch == at.epoch) {
            Some(Bound { is_ready: false, .. }) => Asked::UnderWay,
            Some(Bound { described, .. }) => Asked::Answered(Some(described.clone())),
            None => Asked::Answered(None),
        }
    }

    /// Begins to end the access that windows give to a lend. It has ended when this [is not ending](Self::is_ending) any more.
    pub(super) fn revoke(&mut self, lend: u32) {
        let with = self.lanes.iter().filter(|(_, lane)| lane.windows.contains_key(&lend));
        let numbers: Vec<u64> = with.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.invalidate(number, lend));
    }

    fn invalidate(&mut self, number: u64, lend: u32) {
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        let Some(Bound { access, .. }) = lane.windows.remove(&lend) else { return };
        let mut window = match access {
            GivenAccess::Window(window) => window,
            GivenAccess::Registration(mut registration) => {
                if let Err(error) = registration.deregister() {
                    // The client is in the midst of an access. Without its queue pair that ends; then the drop deregisters.
                    tracing::warn!(%error, "access to lent memory ends with the client's lane");
                    self.end(number);
                }
                return;
            }
        };
        let invalidation = WorkRequest::invalidate_window(&mut window).signaled(0);
        let is_posted = lane.qp.post_send_one(invalidation).is_ok();
        lane.under_way.push_back(UnderWay::Invalidation { lend, _window: window });
        *self.ending.entry(lend).or_default() += 1;
        if is_posted {
            self.note_busy(number);
        } else {
            self.end(number);
        }
    }

    /// Access to this lend is being taken away.
    pub(super) fn is_ending(&self, lend: u32) -> bool {
        self.ending.contains_key(&lend)
    }

    /// Ends the lanes on which access to this lend is still being taken away. Returns how many.
    pub(super) fn end_all_of(&mut self, lend: u32) -> usize {
        let is_of = |work: &UnderWay| matches!(work, UnderWay::Invalidation { lend: its, .. } if *its == lend);
        let with = self.lanes.iter().filter(|(_, lane)| lane.under_way.iter().any(is_of));
        let numbers: Vec<u64> = with.map(|(number, _)| *number).collect();
        numbers.iter().for_each(|number| self.end(*number));
        numbers.len()
    }

    fn note_busy(&mut self, number: u64) {
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        if !std::mem::replace(&mut lane.is_busy, true) {
            self.busy.push(number);
        }
        // It may sleep, and has not asked for an event.
        if let Some(site) = &lane.site
            && !self.roused.iter().any(|other| other.is_same(site))
        {
            self.roused.push(site.clone());
        }
    }

    fn note_ended(&mut self, lend: u32) {
        if let Some(left) = self.ending.get_mut(&lend) {
            *left -= 1;
            if *left == 0 {
                self.ending.remove(&lend);
            }
        }
    }

    /// Calls this waker when something that is under way has ended.
    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Those who are to look again, to be woken when this is not locked any more.
    pub(super) fn take_woken(&mut self) -> Vec<Waker> {
        core::mem::take(&mut self.woken)
    }

    /// The threads that have something to do, to be roused when this is not locked any more.
    pub(super) fn take_roused(&mut self) -> Vec<Site> {
        core::mem::take(&mut self.roused)
    }

    /// Takes what has completed. Returns how much.
    pub(super) fn poll(&mut self) -> u32 {
        let (mut worked, mut ended) = (0, Vec::new());
        for number in core::mem::take(&mut self.busy) {
            let Some(lane) = self.lanes.get_mut(&number) else { continue };
            lane.is_busy = false;
            let taken = lane.take_completions(&mut ended);
            let (is_idle, is_closing) = (lane.under_way.is_empty(), lane.is_closing);
            lane.is_busy = taken.is_some() && !is_idle;
            if lane.is_busy {
                self.busy.push(number);
            }
            ended.drain(..).for_each(|lend| self.note_ended(lend));
            worked += taken.unwrap_or(1);
            if taken.is_none() || is_idle && is_closing {
                self.end(number);
            }
        }
        if worked > 0 {
            self.woken.append(&mut self.waiting);
        }
        worked
    }

    /// From now on, what is under way makes an event at the site of its lane when it has ended.
    pub(super) fn arm(&mut self) {
        for number in &self.busy {
            if let Some(lane) = self.lanes.get_mut(number) {
                lane.cq.arm();
            }
        }
    }
}

/// A lend, to bind a window to.
#[derive(Debug)]
pub(super) struct Lend<'a> {
    pub(super) remote: Remote,
    pub(super) bytes: &'a SharedRegion,
    /// Where the lent bytes begin in the region.
    pub(super) begin: u64,
    pub(super) len: u64,
    pub(super) rights: Rights,
    /// What is left of its lease, in nanoseconds.
    pub(super) left_ns: Option<u64>,
}

impl HostLane {
    /// Gives the client access to a lend, or begins to.
    fn give(&mut self, domain: &ProtectionDomain, lend: &Lend<'_>) -> Option<()> {
        if self.windows.len() == MAX_WINDOWS || self.under_way.len() >= MAX_WINDOWS || lend.len == 0
        {
            return None;
        }
        let part = lend.bytes.slice(lend.begin as usize, lend.len as usize);
        match &self.domain {
            None => self.post_binding(domain, lend, part),
            Some(own) => {
                let registration = own.register_part(part, access_of(lend.rights)).ok()?;
                let memory = registration.remote();
                self.note_given(lend, memory, GivenAccess::Registration(registration), true);
                Some(())
            }
        }
    }

    fn post_binding(
        &mut self,
        domain: &ProtectionDomain,
        lend: &Lend<'_>,
        part: SharedSlice,
    ) -> Option<()> {
        let mut window = domain.alloc_memory_window().ok()?;
        let binding = WorkRequest::bind_window(&mut window, part, access_of(lend.rights));
        self.qp.post_send_one(binding.signaled(0)).ok()?;
        let memory = window.remote()?;
        self.note_given(lend, memory, GivenAccess::Window(window), false);
        let Remote { lend, epoch, .. } = lend.remote;
        self.under_way.push_back(UnderWay::Binding { lend, epoch });
        Some(())
    }

    fn note_given(
        &mut self,
        lend: &Lend<'_>,
        memory: RemoteRegion,
        access: GivenAccess,
        is_ready: bool,
    ) {
        let Remote { lend: number, epoch, key, .. } = lend.remote;
        let Lend { begin, left_ns, .. } = *lend;
        let described = Window { memory, begin, rights: lend.rights.bits(), key, left_ns };
        self.windows.insert(number, Bound { epoch, access, described, is_ready });
    }

    /// Takes what has completed, and adds the lends whose access has ended. `None`: the queue pair is broken.
    fn take_completions(&mut self, ended: &mut Vec<u32>) -> Option<u32> {
        let mut completions: [WorkCompletion; 8] = Default::default();
        let mut taken = 0;
        loop {
            let count = self.cq.poll(&mut completions).ok()?;
            if count == 0 {
                return Some(taken);
            }
            taken += count as u32;
            for completion in &completions[..count] {
                if completion.status != Status::Success {
                    return None;
                }
                match self.under_way.pop_front()? {
                    UnderWay::Binding { lend, epoch } => {
                        let bound = self.windows.get_mut(&lend).filter(|it| it.epoch == epoch);
                        bound.into_iter().for_each(|bound| bound.is_ready = true);
                    }
                    UnderWay::Invalidation { lend, .. } => ended.push(lend),
                }
            }
        }
    }
}

/// Whether connecting on this device asks another process, and may take time.
pub(super) fn connecting_blocks(device: &Device) -> bool {
    device.kind() == DeviceKind::SharedMemory
}

fn access_of(rights: Rights) -> Access {
    let pairs = [
        (Rights::READ, Access::REMOTE_READ),
        (Rights::WRITE, Access::REMOTE_WRITE),
        (Rights::ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let of = |(right, access)| if rights.contains(right) { access } else { Access::empty() };
    pairs.map(of).into_iter().collect()
}
