//! Links that are short, lead nowhere, or go down.

use farcall_verbs::{
    Access, ConnectError, ConnectOptions, Device, Endpoint, OpenOptions, PostError, QpState,
    QpType, SharedRegion, Status, WorkRequest,
};

use super::site::Site;
use crate::rig::{Rig, filled, pattern};
use crate::verdict::{CaseResult, Halt, ensure, ensure_eq};

/// A silent peer is given up after about this time, and after no more than ten times that.
const RETRY_TIMEOUT_NS: u64 = 500_000_000;

/// An address in no network of this machine.
const FAR_AWAY: &str = "10.99.99.99";

/// A device opened before and one opened after the MTU shrinks: each side takes the smaller.
pub(super) fn unequal_mtus(site: &Site) -> CaseResult {
    let wide = site.open()?;
    let before = wide.caps().mtu;
    site.ip(&["link", "set", &site.netdev, "mtu", "1500"])?;
    site.then_ip(&["link", "set", &site.netdev, "mtu", "4200"], || {
        let narrow = site.wait(&wide, "the smaller MTU", || {
            let opened = site.open()?;
            Ok((opened.caps().mtu < before).then_some(opened))
        })?;
        let mut a = Rig::unconnected(&wide, QpType::Rc)?;
        let mut b = Rig::unconnected(&narrow, QpType::Rc)?;
        crate::rig::join_here(&mut a.qp, &mut b.qp)?;
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut a, &mut b];
            let bytes = pattern(from, 20_000);
            ends[to as usize].receive(1, bytes.len())?;
            let here = filled(&ends[from as usize].pd, &bytes)?;
            ends[from as usize].post(WorkRequest::send(here).signaled(2))?;
            let arrived = site.completion(&wide, ends[to as usize])?;
            ensure!(arrived.buffer.is_some_and(|buffer| *buffer == *bytes), "it changed");
            let sent = site.completion(&wide, ends[from as usize])?;
            ensure_eq!(sent.status, Status::Success, "SEND from {from}");
        }
        Ok(())
    })
}

/// The endpoint of a queue pair at an address that this machine has for a moment.
fn endpoint_at(site: &Site, address: &str) -> CaseResult<Endpoint> {
    let with_prefix = format!("{address}/32");
    site.ip(&["addr", "add", &with_prefix, "dev", &site.netdev])?;
    let device = site.open()?;
    site.then_ip(&["addr", "del", &with_prefix, "dev", &site.netdev], || {
        let index = site.wait(&device, "the GID of an address", || {
            let ports = device.ports();
            let mut gids = ports.iter().flat_map(|port| &port.gids);
            Ok(gids.find(|gid| gid.to_string().contains(address)).map(|gid| gid.index))
        })?;
        let options = OpenOptions::default().gid_index(index);
        let there = Device::open_with(&site.device, &options)?;
        Ok(Rig::unconnected(&there, QpType::Rc)?.qp.endpoint())
    })
}

pub(super) fn no_route(site: &Site) -> CaseResult {
    let endpoint = endpoint_at(site, FAR_AWAY)?;
    let device = site.open()?;
    let mut rig = Rig::unconnected(&device, QpType::Rc)?;
    let options = ConnectOptions::default().retry_timeout_ns(RETRY_TIMEOUT_NS);
    match rig.qp.connect(&endpoint, &options) {
        Err(error @ ConnectError::Unreachable { .. }) => {
            ensure!(error.to_string().contains(FAR_AWAY), "it does not say where: {error}");
            Ok(())
        }
        // A network interface that asks for no hardware addresses takes all for neighbours.
        Ok(()) => {
            rig.post(WorkRequest::send(b"anybody").signaled(1))?;
            let failed = site.completion(&device, &mut rig)?;
            ensure_eq!((failed.id, failed.status), (1, Status::RetryExceeded), "a message");
            Ok(())
        }
        Err(other) => Err(Halt::failed(format!("connecting to {FAR_AWAY}: {other}"))),
    }
}

/// A queue pair that is gone: messages to it end, about as late as was asked.
pub(super) fn missing_peer(site: &Site) -> CaseResult {
    let device = site.open()?;
    let endpoint = Rig::unconnected(&device, QpType::Rc)?.qp.endpoint();
    let mut rig = Rig::unconnected(&device, QpType::Rc)?;
    let options = ConnectOptions::default().retry_timeout_ns(RETRY_TIMEOUT_NS);
    rig.qp.connect(&endpoint, &options)?;
    let begin_ns = device.now_ns();
    rig.post(WorkRequest::send(b"anybody").signaled(1))?;
    let failed = site.completion(&device, &mut rig)?;
    let took_ns = device.now_ns() - begin_ns;
    ensure_eq!(
        (failed.id, failed.status),
        (1, Status::RetryExceeded),
        "a message to a missing peer"
    );
    ensure!(
        (RETRY_TIMEOUT_NS / 4..10 * RETRY_TIMEOUT_NS).contains(&took_ns),
        "given up after {took_ns} ns, asked for {RETRY_TIMEOUT_NS}"
    );
    ensure_eq!(rig.qp.state(), QpState::Error, "state");
    Ok(())
}

/// The network interface goes down under load: everything that was posted ends, what was acknowledged is
/// there, connecting says why it cannot; when it is up again, new connections work.
pub(super) fn port_down(site: &Site) -> CaseResult {
    let device = site.open()?;
    let (mut a, mut b) = site.pair(&device)?;
    let region = b.pd.alloc_shared(8 * PLACES as usize, Access::all())?;
    b.qp.post_recvs(0..8)?;
    let mut load = Load { next: 0, acknowledged: 0, failed: 0 };
    load.run(site, &device, &mut a, &region, 500)?;
    site.ip(&["link", "set", &site.netdev, "down"])?;
    site.then_ip(&["link", "set", &site.netdev, "up"], || {
        load.run(site, &device, &mut a, &region, u64::MAX)?;
        ensure!(load.failed > 0, "nothing that was posted has failed");
        ensure_eq!(load.acknowledged + load.failed, load.next, "requests that have ended");
        for id in load.acknowledged.saturating_sub(PLACES)..load.acknowledged {
            let found = region.load_u64(8 * (id % PLACES) as usize);
            ensure!(found > id, "WRITE {id} was acknowledged, and {found} is there");
        }
        for id in 0..8 {
            let flushed = site.completion(&device, &mut b)?;
            ensure_eq!((flushed.id, flushed.status), (id, Status::Flushed), "a receive");
        }
        let states = (a.qp.state(), b.qp.state());
        ensure_eq!(states, (QpState::Error, QpState::Error), "states");
        match site.pair(&device) {
            Err(Halt::Failed(why)) if why.contains("is down") => Ok(()),
            other => Err(Halt::failed(format!("connecting: {:?}", other.err()))),
        }
    })?;
    let (mut a, mut b) =
        site.wait(&device, "a connection when it is up again", || Ok(site.pair(&device).ok()))?;
    b.receive(1, 8)?;
    a.post(WorkRequest::send(b"back").signaled(2))?;
    ensure_eq!(site.completion(&device, &mut b)?.status, Status::Success, "a receive");
    ensure_eq!(site.completion(&device, &mut a)?.status, Status::Success, "a SEND");
    Ok(())
}

/// Words that the load writes in turn: each WRITE its number and one.
const PLACES: u64 = 1024;

struct Load {
    next: u64,
    acknowledged: u64,
    failed: u64,
}

impl Load {
    /// Keeps WRITEs under way until `until` are acknowledged, or until the queue pair breaks and all have
    /// ended.
    fn run(
        &mut self,
        site: &Site,
        device: &Device,
        rig: &mut Rig,
        region: &SharedRegion,
        until: u64,
    ) -> CaseResult {
        site.wait(device, "the load", || {
            while self.failed == 0 && self.next < self.acknowledged + 16 {
                let there = region.remote().slice(8 * (self.next % PLACES), 8)?;
                let word = (self.next + 1).to_ne_bytes();
                match rig.qp.post_send_one(WorkRequest::write(&word, there).signaled(self.next)) {
                    Ok(()) => self.next += 1,
                    Err((PostError::State(QpState::Error), _)) => break,
                    Err((error, _)) => return Err(error.into()),
                }
            }
            while let Some(ended) = rig.poll_once()? {
                ensure_eq!(ended.id, self.acknowledged + self.failed, "order of completions");
                if ended.status == Status::Success {
                    ensure_eq!(self.failed, 0, "failures before a success");
                    self.acknowledged += 1;
                } else {
                    self.failed += 1;
                }
            }
            let over = self.failed > 0 && self.acknowledged + self.failed == self.next;
            Ok((self.acknowledged >= until || over).then_some(()))
        })
    }
}
