//! Where a queue pair sends datagrams: a peer's inbox for us, asked for when we first send there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::shm::cell::CELL_PAYLOAD_BYTES;
use crate::shm::outbox::Outbox;
use crate::shm::pair::Pair;
use crate::shm::peer::Peer;
use crate::shm::queue_pair::attach;
use crate::shm::wire::Gid;

/// How long the first datagram to somebody may take to find out where he is. Whoever does not answer in
/// time counts as dead, so that this is ample for one that is busy, or stopped for a moment.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Among so few destinations those that are gone are looked for with each new one.
const FEW_DESTINATIONS: usize = 8;

/// The inboxes at receivers that we send to.
#[derive(Debug, Default)]
pub(in crate::shm) struct Destinations {
    ways: Vec<Way>,
    /// Where in `ways` each is.
    places: HashMap<(Gid, u32), usize, foldhash::fast::RandomState>,
    /// The one that was asked for last.
    last: usize,
    /// Those that were sent to since the last doorbell.
    unrung: Vec<usize>,
    /// With so many known, those that are gone are looked for.
    enough: usize,
}

/// The way to one queue pair.
#[derive(Debug)]
struct Way {
    outbox: Outbox,
    peer: Arc<Peer>,
    qp: u32,
    unrung: bool,
}

impl Way {
    fn leads_to(&self, peer: &Peer, qp: u32) -> bool {
        self.qp == qp && self.peer.gid == peer.gid
    }
}

impl Destinations {
    /// The number of the way to this queue pair, if there is one already.
    #[inline]
    pub(in crate::shm) fn find(&mut self, peer: &Peer, qp: u32) -> Option<usize> {
        if !self.ways.get(self.last).is_some_and(|way| way.leads_to(peer, qp)) {
            self.last = *self.places.get(&(peer.gid, qp))?;
        }
        Some(self.last)
    }

    /// The same; makes it if it is not there. `None`: nobody is there to receive anything.
    #[cold]
    pub(in crate::shm) fn find_or_make(
        &mut self,
        pair: &Pair,
        peer: &Arc<Peer>,
        qp: u32,
    ) -> Option<usize> {
        if let Some(way) = self.find(peer, qp) {
            return Some(way);
        }
        if peer.is_dead() {
            return None;
        }
        if self.ways.len() <= FEW_DESTINATIONS || self.ways.len() >= self.enough {
            self.forget_the_gone();
        }
        // The secret of an endpoint protects connections; a datagram is protected by its queue key.
        let outbox = attach(pair, peer, qp, 0, ATTACH_TIMEOUT).ok()?;
        let number = self.ways.len();
        self.ways.push(Way { outbox, peer: Arc::clone(peer), qp, unrung: false });
        self.places.insert((peer.gid, qp), number);
        self.unrung.reserve(self.ways.len());
        Some(number)
    }

    /// Puts a datagram into the inbox there, if it takes one. The peer is not told yet.
    #[inline]
    pub(in crate::shm) fn send(&mut self, way: usize, bytes: &[u8], imm: Option<u32>, qkey: u32) {
        let Some(Way { outbox, unrung, .. }) = self.ways.get_mut(way) else { return };
        let cells = bytes.len().div_ceil(CELL_PAYLOAD_BYTES).max(1) as u32;
        if outbox.is_ready()
            && outbox.has_receive()
            && outbox.has_room_for(cells)
            && outbox.take_receive()
        {
            outbox.put_datagram(bytes, imm, qkey, cells);
            if !std::mem::replace(unrung, true) {
                self.unrung.push(way);
            }
        }
    }

    /// Tells those who sleep, of all to whom something was sent since the last time.
    #[inline]
    pub(in crate::shm) fn ring_doorbell(&mut self) {
        if self.unrung.is_empty() {
            return;
        }
        // Orders the cells before the looks at `armed` (see `Outbox::ring_doorbell`); once for all.
        fence(Ordering::SeqCst);
        for way in self.unrung.drain(..) {
            if let Some(way) = self.ways.get_mut(way) {
                way.unrung = false;
                way.outbox.wake_if_armed();
            }
        }
    }

    /// Lets go of receivers that are gone: who answers peers that come and go keeps at most twice as many
    /// as are there.
    fn forget_the_gone(&mut self) {
        self.ring_doorbell();
        self.ways.retain(|way| !way.peer.is_dead() && !way.outbox.is_over());
        self.places.clear();
        self.places.extend(
            self.ways.iter().enumerate().map(|(number, way)| ((way.peer.gid, way.qp), number)),
        );
        self.last = 0;
        self.enough = FEW_DESTINATIONS.max(2 * self.ways.len());
    }

    /// Tells the receivers that this sender is gone.
    pub(in crate::shm) fn close(&mut self, from_qp: u32) {
        self.unrung.clear();
        self.places.clear();
        for Way { outbox, peer, qp, .. } in self.ways.drain(..) {
            drop(outbox);
            peer.tell_closed(from_qp, qp);
        }
    }
}
