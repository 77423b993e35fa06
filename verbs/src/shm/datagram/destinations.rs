//! Where a queue pair sends datagrams: a peer's inbox for us, asked for when we first send there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::attachment::{Attachment, deliver};
use crate::shm::outbox::Outbox;
use crate::shm::pair::Pair;
use crate::shm::peer::Peer;
use crate::shm::wire::Gid;

/// Among so few destinations those that are gone are looked for whenever one more comes.
const FEW_DESTINATIONS: usize = 8;

/// A receiver that was not there is asked for again after so long.
const ASK_AGAIN_NANOS: u64 = 10_000_000;

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
    reach: Reach,
    peer: Arc<Peer>,
    qp: u32,
    unrung: bool,
}

#[derive(Debug)]
enum Reach {
    Known(Box<Outbox>),
    /// Asked for at this time.
    Asked(Arc<Attachment>, u64),
}

impl Way {
    fn leads_to(&self, peer: &Peer, qp: u32) -> bool {
        self.qp == qp && self.peer.gid == peer.gid
    }

    fn is_over(&self) -> bool {
        self.peer.is_dead()
            || match &self.reach {
                Reach::Known(outbox) => outbox.is_over(),
                Reach::Asked(attachment, _) => attachment.is_over(),
            }
    }
}

impl Destinations {
    #[inline]
    fn find(&mut self, peer: &Peer, qp: u32) -> Option<usize> {
        if !self.ways.get(self.last).is_some_and(|way| way.leads_to(peer, qp)) {
            self.last = *self.places.get(&(peer.gid, qp))?;
        }
        Some(self.last)
    }

    /// The number of the way to this queue pair, if its inbox is known.
    #[inline]
    pub(in crate::shm) fn find_known(&mut self, peer: &Peer, qp: u32) -> Option<usize> {
        self.find(peer, qp).filter(|way| matches!(self.ways[*way].reach, Reach::Known(_)))
    }

    /// The number of the way to this queue pair; asks for it if need be. `None`: nobody is there.
    #[cold]
    pub(in crate::shm) fn find_or_ask(
        &mut self,
        pair: &Arc<Pair>,
        peer: &Arc<Peer>,
        qp: u32,
    ) -> Option<usize> {
        if let Some(number) = self.find(peer, qp) {
            let way = &mut self.ways[number];
            if let Reach::Asked(attachment, since) = &way.reach
                && attachment.is_refused()
            {
                let now = pair.context.now_ns();
                if now.saturating_sub(*since) < ASK_AGAIN_NANOS || peer.is_dead() {
                    return None;
                }
                way.reach = Reach::Asked(Attachment::ask(pair, peer, qp), now);
            }
            return Some(number);
        }
        if peer.is_dead() {
            return None;
        }
        if self.ways.len() <= FEW_DESTINATIONS || self.ways.len() >= self.enough {
            self.forget_the_gone();
        }
        let number = self.ways.len();
        let reach = Reach::Asked(Attachment::ask(pair, peer, qp), pair.context.now_ns());
        self.ways.push(Way { reach, peer: Arc::clone(peer), qp, unrung: false });
        self.places.insert((peer.gid, qp), number);
        self.unrung.reserve(self.ways.len());
        Some(number)
    }

    /// Puts a datagram into the inbox there, if it takes one. The peer is not told yet.
    #[inline]
    pub(in crate::shm) fn send(&mut self, way: usize, bytes: &[u8], imm: Option<u32>, qkey: u32) {
        let Some(Way { reach, unrung, .. }) = self.ways.get_mut(way) else { return };
        if let Reach::Asked(attachment, _) = reach {
            let Some(outbox) = attachment.hold(bytes, imm, qkey) else { return };
            *reach = Reach::Known(outbox);
        }
        if let Reach::Known(outbox) = reach
            && deliver(outbox, bytes, imm, qkey)
            && !std::mem::replace(unrung, true)
        {
            self.unrung.push(way);
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
        for number in self.unrung.drain(..) {
            if let Some(Way { reach: Reach::Known(outbox), unrung, .. }) = self.ways.get_mut(number)
            {
                *unrung = false;
                outbox.wake_if_armed();
            }
        }
    }

    /// Lets go of receivers that are gone: who answers peers that come and go keeps at most twice as many
    /// as are there.
    fn forget_the_gone(&mut self) {
        self.ring_doorbell();
        self.ways.retain(|way| !way.is_over());
        self.places.clear();
        self.places.extend(
            self.ways.iter().enumerate().map(|(number, way)| ((way.peer.gid, way.qp), number)),
        );
        self.last = 0;
        self.enough = 2 * self.ways.len();
    }

    /// Tells the receivers that this sender is gone.
    pub(in crate::shm) fn close(&mut self, from_qp: u32) {
        self.unrung.clear();
        self.places.clear();
        for Way { reach, peer, qp, .. } in self.ways.drain(..) {
            let is_attached = match reach {
                Reach::Known(_) => true,
                Reach::Asked(attachment, _) => attachment.give_up(),
            };
            if is_attached {
                peer.tell_closed(from_qp, qp);
            }
        }
    }
}
