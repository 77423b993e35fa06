//! The clients of one server thread, by their numbers.

use farcall_core::metrics::RefusalReason;
use farcall_core::transport::{ClientEvent, ClientId, ClientInfo, RequestSink};

use super::accept_queue::{Arrival, Arrivals};
use crate::contract::{Calls, Candidate};

/// A client as a server thread keeps it.
pub(crate) trait Member: Send + 'static {
    /// Its number, and which connection under that number.
    fn id(&self) -> ClientId;

    /// What it has called so far. It takes time in proportion to the client's window.
    fn calls(&self) -> Calls;

    /// It has something to send, and is in the line of those that have.
    fn in_line(&mut self) -> &mut bool;

    /// The server thread is about to let go of it; it is dropped later, on another thread. What only this thread may end, or others
    /// may have at once, ends here.
    fn detach(&mut self) {}
}

/// The clients, and which of them have something to send.
#[derive(Debug)]
pub(crate) struct Roster<T> {
    members: Vec<Option<Box<T>>>,
    count: usize,
    arrivals: Arrivals<T>,
    /// Numbers of the clients that have something to send, in order.
    line: Vec<u32>,
}

impl<T: Member> Roster<T> {
    pub(crate) fn new(arrivals: Arrivals<T>) -> Roster<T> {
        Roster { members: Vec::new(), count: 0, arrivals, line: Vec::new() }
    }

    /// The thread has refused something.
    #[cold]
    pub(crate) fn count_refusal(&self, reason: RefusalReason) {
        self.arrivals.count_refusal(reason);
    }

    /// Clients now.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// One more than the highest number of a client.
    pub(crate) fn end(&self) -> u32 {
        self.members.len() as u32
    }

    /// A client has arrived or was withdrawn: see [`Arrivals::has_news`].
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.arrivals.has_news()
    }

    /// Takes new clients over, and tells the sink who they are. Gives the next one that is still here and was withdrawn or makes room for another, to be
    /// removed; the caller asks until there is none.
    #[cold]
    pub(crate) fn take_arrivals(&mut self, sink: &mut dyn RequestSink) -> Option<u32> {
        self.arrivals.clear_news();
        while let Some(arrival) = self.arrivals.next() {
            match arrival {
                Arrival::New(member, info) => {
                    if info != ClientInfo::default() {
                        sink.client(member.id(), ClientEvent::Joined(info));
                    }
                    self.insert(member);
                }
                Arrival::Withdrawn(id) => {
                    if self.get(id.number).is_some_and(|member| member.id() == id) {
                        return Some(id.number);
                    }
                }
                // Two may have asked for the same place, and one twice.
                Arrival::RoomWanted(request) => {
                    if self.arrivals.places().is_room_wanted(&request)
                        && let Some(idle) = self.find_idle(&request.candidates)
                    {
                        return Some(idle);
                    }
                }
            }
        }
        None
    }

    /// The first of these clients that is here and still idle. Those before it are kept.
    fn find_idle(&self, candidates: &[Candidate]) -> Option<u32> {
        let mut kept = Vec::new();
        for &Candidate { id, calls: before } in candidates {
            let member = self.members.get(id.number as usize).and_then(Option::as_deref);
            let calls = member.filter(|member| member.id() == id).map(Member::calls);
            if calls == Some(before) && before != Calls::UnderWay {
                tracing::info!(client = id.number, calls = ?before, "an idle client makes room for another");
                let has_called = before != Calls::None;
                self.count_refusal(if has_called {
                    RefusalReason::Idle
                } else {
                    RefusalReason::NeverCalled
                });
                self.arrivals.places().keep(&kept);
                return Some(id.number);
            }
            // One that has not arrived yet has not called either.
            kept.push(Candidate { id, calls: calls.unwrap_or(Calls::None) });
        }
        self.arrivals.places().keep(&kept);
        None
    }

    fn insert(&mut self, member: Box<T>) {
        let index = member.id().number as usize;
        if self.members.len() <= index {
            self.members.resize_with(index + 1, || None);
        }
        self.members[index] = Some(member);
        self.count += 1;
    }

    /// Drops a client, and tells the sink. A refusal is counted before the client can notice that it is dropped. Its number is free
    /// when all that it had is. `false` if there is none of that number.
    pub(crate) fn remove(
        &mut self,
        number: u32,
        refusal: Option<RefusalReason>,
        sink: &mut dyn RequestSink,
    ) -> bool {
        let Some(mut member) = self.members.get_mut(number as usize).and_then(Option::take) else {
            return false;
        };
        if let Some(reason) = refusal {
            self.count_refusal(reason);
        }
        self.count -= 1;
        member.detach();
        let id = member.id();
        self.arrivals.tear_down(number, member);
        sink.client(id, ClientEvent::Left);
        true
    }

    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut T> {
        self.members.get_mut(number as usize)?.as_deref_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.members.iter().flatten().map(|member| &**member)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.members.iter_mut().flatten().map(|member| &mut **member)
    }

    /// The clients with these numbers, as far as there are any.
    pub(crate) fn range_mut(
        &mut self,
        numbers: std::ops::Range<usize>,
    ) -> impl Iterator<Item = &mut T> {
        let end = numbers.end.min(self.members.len());
        let members = &mut self.members[numbers.start.min(end)..end];
        members.iter_mut().flatten().map(|member| &mut **member)
    }

    /// The client has something to send.
    #[inline]
    pub(crate) fn enter_line(&mut self, number: u32) {
        if let Some(Some(member)) = self.members.get_mut(number as usize)
            && !std::mem::replace(member.in_line(), true)
        {
            self.line.push(number);
        }
    }

    /// The client of that number, which will have something to send.
    #[inline]
    pub(crate) fn get_in_line(&mut self, number: u32) -> Option<&mut T> {
        let member = self.members.get_mut(number as usize)?.as_deref_mut()?;
        if !std::mem::replace(member.in_line(), true) {
            self.line.push(number);
        }
        Some(member)
    }

    /// Some clients have something to send.
    #[inline]
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Lets each client in the line send, in order. One that answers `false` has more to send than there is room for: it
    /// keeps its place, and so do those behind it.
    #[inline]
    pub(crate) fn serve_line(&mut self, mut send: impl FnMut(&mut T) -> bool) {
        let mut served = 0;
        while let Some(&number) = self.line.get(served) {
            if let Some(Some(member)) = self.members.get_mut(number as usize) {
                let is_done = send(member);
                *member.in_line() = !is_done;
                if !is_done {
                    break;
                }
            }
            served += 1;
        }
        if served == self.line.len() {
            self.line.clear();
        } else {
            self.line.drain(..served);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use farcall_core::Identity;
    use farcall_core::site::{Clock, Site};
    use farcall_core::time::Instant;
    use farcall_core::transport::{CallToken, Message, Replies};

    use super::*;
    use crate::contract::{ClientLimits, SetupError, Source};
    use crate::kit::accept_queue::AcceptQueue;

    struct Client {
        id: ClientId,
        in_line: bool,
        calls: Calls,
    }

    impl Member for Client {
        fn id(&self) -> ClientId {
            self.id
        }

        fn calls(&self) -> Calls {
            self.calls
        }

        fn in_line(&mut self) -> &mut bool {
            &mut self.in_line
        }
    }

    #[derive(Default)]
    struct Told {
        joined: Vec<(ClientId, ClientInfo)>,
        left: Vec<u32>,
    }

    impl RequestSink for Told {
        fn request(&mut self, _: CallToken, _: Message<'_>, _: &mut dyn Replies) {}

        fn is_idempotent(&self, _: &[u8]) -> bool {
            false
        }

        fn client(&mut self, client: ClientId, event: ClientEvent) {
            match event {
                ClientEvent::Joined(info) => self.joined.push((client, info)),
                ClientEvent::Left => self.left.push(client.number),
                ClientEvent::Cancelled { .. } => unreachable!("the roster cancels nothing"),
            }
        }
    }

    /// Of a driven site, so that the number of a client that is removed is free at once.
    fn roster() -> (Arc<AcceptQueue<Client>>, Roster<Client>) {
        let site = Site::driven(Arc::new(Minutes(AtomicU64::new(0))));
        let (queue, arrivals) = AcceptQueue::alone(&site, ClientLimits::of(8));
        (queue, Roster::new(arrivals))
    }

    fn accept(queue: &Arc<AcceptQueue<Client>>) -> Box<dyn FnOnce() + Send> {
        let make = |id, _: &_| Ok((Vec::new(), Client { id, in_line: false, calls: Calls::None }));
        queue.accept((Source::Unknown, &ClientInfo::default()), make).unwrap().withdraw
    }

    #[test]
    fn clients_come_are_withdrawn_and_make_room() {
        let (queue, mut roster) = roster();
        let (first, _second) = (accept(&queue), accept(&queue));
        assert!(roster.has_news());
        assert_eq!(roster.take_arrivals(&mut Told::default()), None);
        assert_eq!((roster.count(), roster.has_news()), (2, false));
        first();
        assert_eq!(roster.take_arrivals(&mut Told::default()), Some(0));
        let mut told = Told::default();
        assert!(roster.remove(0, None, &mut told) && !roster.remove(0, None, &mut told));
        assert_eq!((told.left, roster.count()), (vec![0], 1));
        let again = accept(&queue);
        assert_eq!(roster.take_arrivals(&mut Told::default()), None);
        assert_eq!(roster.get(0).unwrap().id.generation, 3);
        drop(again);
    }

    /// A client that does this when it is dropped.
    struct OnDrop<F: FnMut() + Send + 'static>(ClientId, F);

    impl<F: FnMut() + Send> Drop for OnDrop<F> {
        fn drop(&mut self) {
            self.1();
        }
    }

    impl<F: FnMut() + Send> Member for OnDrop<F> {
        fn id(&self) -> ClientId {
            self.0
        }

        fn calls(&self) -> Calls {
            Calls::None
        }

        fn in_line(&mut self) -> &mut bool {
            unreachable!("it sends nothing")
        }
    }

    #[test]
    fn a_refusal_is_counted_before_the_client_notices() {
        let site = Site::driven(Arc::new(Minutes(AtomicU64::new(0))));
        let (queue, arrivals) = AcceptQueue::alone(&site, ClientLimits::of(1));
        let mut roster = Roster::new(arrivals);
        let noticed = Arc::new(AtomicU64::new(0));
        let make = |id, _: &_| {
            let (site, noticed) = (site.clone(), Arc::clone(&noticed));
            let notice = move || {
                let counted = site.refusals().of(RefusalReason::BrokeProtocol);
                noticed.store(counted, Ordering::Relaxed);
            };
            Ok((Vec::new(), OnDrop(id, notice)))
        };
        let _client = queue.accept((Source::Unknown, &ClientInfo::default()), make).unwrap();
        let mut told = Told::default();
        assert_eq!(roster.take_arrivals(&mut told), None);
        assert!(roster.remove(0, Some(RefusalReason::BrokeProtocol), &mut told));
        assert_eq!(noticed.load(Ordering::Relaxed), 1);
        assert!(!roster.remove(0, Some(RefusalReason::BrokeProtocol), &mut told));
        assert_eq!(site.refusals().of(RefusalReason::BrokeProtocol), 1, "it was gone already");
    }

    #[test]
    fn a_client_keeps_its_place_until_all_it_had_is_gone_and_delays_nobody() {
        let (queue, arrivals) = AcceptQueue::alone(&Site::new(), ClientLimits::of(2));
        let mut roster = Roster::new(arrivals);
        let (release, gate) = crossbeam_channel::bounded(0);
        let accept = || {
            let make = |id, _: &_| {
                let gate = gate.clone();
                // It takes its time.
                let wait = move || {
                    let _ = gate.recv();
                };
                Ok((Vec::new(), OnDrop(id, wait)))
            };
            queue.accept((Source::Unknown, &ClientInfo::default()), make)
        };
        let _clients = [accept().unwrap(), accept().unwrap()];
        roster.take_arrivals(&mut Told::default());
        let mut told = Told::default();
        assert!(roster.remove(0, None, &mut told));
        assert_eq!((told.left, roster.count()), (vec![0], 1), "the thread has gone on");
        let refused = accept().err();
        assert!(
            matches!(refused, Some(SetupError::Full(_))),
            "its memory is not free: {refused:?}"
        );
        // Somebody wants room: the client that is left need not make any.
        assert!(queue.make_room(Source::Unknown, Duration::ZERO));
        assert!(!roster.has_news());
        release.send(()).unwrap();
        assert!(queue.make_room(Source::Unknown, Duration::from_secs(20)));
        assert!(accept().is_ok());
        drop(release);
    }

    #[test]
    fn a_withdrawal_does_not_meet_the_next_client_of_that_number() {
        let (queue, mut roster) = roster();
        let first = accept(&queue);
        roster.take_arrivals(&mut Told::default());
        roster.remove(0, None, &mut Told::default());
        let _second = accept(&queue);
        first();
        assert_eq!(roster.take_arrivals(&mut Told::default()), None);
        assert_eq!(roster.count(), 1);
    }

    #[test]
    fn the_sink_is_told_who_a_client_is_before_its_first_request() {
        let (queue, mut roster) = roster();
        let _unknown = accept(&queue);
        let identity = Some(Identity::named("alice"));
        let alice = ClientInfo { identity, ..ClientInfo::default() };
        let make = |id, _: &_| Ok((Vec::new(), Client { id, in_line: false, calls: Calls::None }));
        let _known = queue.accept((Source::Unknown, &alice), make).unwrap();
        let mut told = Told::default();
        assert_eq!(roster.take_arrivals(&mut told), None);
        let id = ClientId { number: 1, generation: 2 };
        assert_eq!((told.joined, roster.count()), (vec![(id, alice)], 2));
    }

    /// A minute later with each look.
    struct Minutes(AtomicU64);

    impl Clock for Minutes {
        fn now(&self) -> Instant {
            Instant::ZERO + Duration::from_secs(60 * self.0.fetch_add(1, Ordering::Relaxed))
        }
    }

    #[test]
    fn a_client_that_has_called_does_not_make_room() {
        let site = Site::driven(Arc::new(Minutes(AtomicU64::new(0))));
        let (queue, arrivals) = AcceptQueue::alone(&site, ClientLimits::of(2));
        let mut roster = Roster::new(arrivals);
        let make_room = || queue.make_room(Source::Unknown, Duration::ZERO);
        let _clients = [accept(&queue), accept(&queue)];
        roster.take_arrivals(&mut Told::default());
        roster.get(0).unwrap().calls = Calls::Ended(1);
        assert!(make_room());
        assert_eq!(roster.take_arrivals(&mut Told::default()), Some(1));
        assert!(roster.remove(1, None, &mut Told::default()));
        // The one that comes instead calls before the server thread looks.
        let _client = accept(&queue);
        roster.take_arrivals(&mut Told::default());
        assert!(make_room());
        roster.get(1).unwrap().calls = Calls::UnderWay;
        assert_eq!(roster.take_arrivals(&mut Told::default()), None);
        assert!(!make_room(), "both are known to have called");
    }

    #[test]
    fn a_client_that_asks_twice_throws_one_out() {
        let (queue, mut roster) = roster();
        let _clients: Vec<_> = (0..8).map(|_| accept(&queue)).collect();
        roster.take_arrivals(&mut Told::default());
        for _ in 0..2 {
            assert!(queue.make_room(Source::Unknown, Duration::ZERO));
        }
        assert_eq!(roster.take_arrivals(&mut Told::default()), Some(0));
        roster.remove(0, None, &mut Told::default());
        // It gets its place before the server thread finds what it has asked for again.
        let _newcomer = accept(&queue);
        assert_eq!(roster.take_arrivals(&mut Told::default()), None);
        assert_eq!(roster.count(), 8);
    }

    #[test]
    fn the_line_keeps_its_order_while_there_is_no_room() {
        let (queue, mut roster) = roster();
        let _clients = [accept(&queue), accept(&queue), accept(&queue)];
        roster.take_arrivals(&mut Told::default());
        for number in [2, 0, 2, 1] {
            roster.enter_line(number);
        }
        let mut order = Vec::new();
        roster.serve_line(|client| {
            order.push(client.id.number);
            order.len() < 2
        });
        assert_eq!(order, [2, 0]);
        roster.enter_line(2);
        order.clear();
        roster.serve_line(|client| {
            order.push(client.id.number);
            true
        });
        assert_eq!(order, [0, 1, 2]);
        assert!(!roster.has_line());
    }
}
