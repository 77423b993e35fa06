//! The server's half: one thread's connections.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{ClientId, Replies, RequestSink, ServerTransport, WindDown};

use super::buffers::Buffers;
use super::connection::Connection;
use super::readiness::{Epoll, SiteEvents, WatchedStream};
use super::requests::{Clients, Disconnect};
use super::wire::{self, Header, Kind};
use super::{READ_BYTES, check_setup};
use crate::contract::{
    Accepted, Config, Intake, NewClient, OnDisconnect, Placement, SetupError, Source, Stream,
    TakeStream,
};
use crate::kit::accept_queue::AcceptQueue;
use crate::kit::completions::DiscardRequests;
use crate::kit::lending::{Lending, Shortage};
use crate::kit::memory::Budget;
use crate::kit::roster::{Member, Roster};

/// With so few clients each is read from in each turn: that costs no more than to ask which have sent something.
const MAX_READ_UNASKED: u32 = 1;

/// A client, and its stream.
type ClientStream = (ClientId, Stream);

/// All connections of one server thread.
#[derive(Debug)]
pub(super) struct Server {
    // Dropped in this order: the streams, and the sets that they are in.
    clients: Clients,
    streams: Receiver<ClientStream>,
    /// Made with the first socket.
    sockets: Option<Sockets>,
    site: Site,
    scratch: Box<[u8]>,
    is_closed: bool,
}

/// The sockets of a server thread.
#[derive(Debug)]
struct Sockets {
    set: Arc<Epoll>,
    _site: Arc<SiteEvents>,
}

impl Sockets {
    fn new(site: &Site) -> rustix::io::Result<Sockets> {
        let (set, site) = (Epoll::new()?, SiteEvents::at(site)?);
        site.include(&set)?;
        Ok(Sockets { set: Arc::new(set), _site: site })
    }
}

/// Where the accepting threads make the server's ends of connections.
#[derive(Debug)]
pub(super) struct TcpIntake {
    queue: Arc<AcceptQueue<Connection>>,
    streams: Sender<ClientStream>,
    site: Site,
}

impl Server {
    /// A server thread's half for at most `max_clients`, and where they come in.
    pub(super) fn new(
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<(Server, TcpIntake), SetupError> {
        let (site, places) = (at.site, at.places_for(config, max_clients));
        let (queue, arrivals) = AcceptQueue::new(site, (places, max_clients));
        let (streams, receiver) = unbounded();
        let budget = Budget::new(config.memory);
        let server = Server {
            clients: Clients {
                roster: Roster::new(arrivals),
                buffers: Buffers::new(&budget),
                lending: Lending::new(budget),
                broken: Vec::new(),
                unfinished: Vec::new(),
            },
            streams: receiver,
            sockets: None,
            site: site.clone(),
            scratch: vec![0; READ_BYTES].into(),
            is_closed: false,
        };
        Ok((server, TcpIntake { queue, streams, site: site.clone() }))
    }

    /// Takes over new clients, those whose stream has come, and drops those that were withdrawn. Gives how many have sent something
    /// already.
    #[cold]
    fn take_arrivals(&mut self, now: Instant, sink: &mut dyn RequestSink) -> u32 {
        let mut heard = 0;
        self.take_clients(sink);
        while let Ok((id, stream)) = self.streams.try_recv() {
            // A client comes before its stream; both may have come since the last look at the clients.
            self.take_clients(sink);
            if self.clients.roster.get(id.number).is_none_or(|client| client.id() != id) {
                continue;
            }
            match self.watch(id.number, stream) {
                Ok(watched) => {
                    if let Some(client) = self.clients.roster.get(id.number) {
                        client.stream = Some(watched);
                    }
                    // A stream that is not a socket alone may have read its first bytes during the handshake: no socket tells of them.
                    let read = self.clients.receive(id.number, &mut self.scratch, now, sink);
                    heard += u32::from(read > 0);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a client");
                    self.clients.remove(id.number, Disconnect::Gone, sink);
                }
            }
        }
        heard
    }

    fn take_clients(&mut self, sink: &mut dyn RequestSink) {
        while let Some(withdrawn) = self.clients.roster.take_arrivals(sink) {
            self.clients.remove(withdrawn, Disconnect::Gone, sink);
        }
    }

    fn watch(&mut self, client: u32, stream: Stream) -> rustix::io::Result<WatchedStream> {
        let Server { sockets, site, .. } = self;
        WatchedStream::of_server(stream, client, || {
            let sockets = match sockets {
                Some(sockets) => sockets,
                None => sockets.insert(Sockets::new(site)?),
            };
            Ok(Arc::clone(&sockets.set))
        })
    }

    /// Reads from the clients that have sent something. Gives how many.
    #[inline]
    fn receive(&mut self, now: Instant, sink: &mut dyn RequestSink) -> u32 {
        let end = self.clients.roster.end();
        let Server { clients, sockets, scratch, .. } = self;
        let mut heard = 0;
        let receive = |client| {
            clients.note_room(client);
            heard += u32::from(clients.receive(client, scratch, now, sink) > 0);
        };
        match sockets {
            Some(sockets) if end > MAX_READ_UNASKED => sockets.set.ask(receive),
            _ => (0..end).for_each(receive),
        }
        heard
    }

    /// The rare work: requests that wait for memory, clients that do not move on.
    #[cold]
    fn attend(&mut self, now: Instant, sink: &mut dyn RequestSink) -> PollAt {
        let clients = &mut self.clients;
        match clients.lending.take_shortage() {
            Shortage::None => {}
            Shortage::Shares => clients.find_stalled(Shortage::Shares, now),
            Shortage::Memory => {
                clients.buffers.trim();
                clients.find_stalled(Shortage::Memory, now);
                clients.serve_waiting(now);
            }
        }
        while let Some(client) = clients.broken.pop() {
            clients.remove(client, Disconnect::Stalled, sink);
        }
        clients.lending.poll_at(now)
    }

    /// Lets each client in the line send. `false`: some could send more at once.
    #[inline]
    fn send(&mut self) -> bool {
        let Clients { roster, unfinished, .. } = &mut self.clients;
        let mut has_freed = false;
        roster.serve_line(|client| {
            let unfetched = client.unfetched;
            if !client.send() {
                unfinished.push(client.id().number);
            }
            has_freed |= client.unfetched < unfetched;
            // The next in the line has its turn.
            true
        });
        while let Some(client) = unfinished.pop() {
            roster.enter_line(client);
        }
        if has_freed {
            // The time is not known here; the next look for clients that do not move on dates what is lent now.
            self.clients.serve_waiting(Instant::ZERO);
        }
        let roster = &self.clients.roster;
        !roster.has_line()
    }

    fn say_goodbye(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        for client in 0..self.clients.roster.end() {
            if let Some(connection) = self.clients.roster.get_in_line(client) {
                connection.outbox.push(Header::bare(Kind::Goodbye, 0, 0), &[]);
            }
        }
        self.send();
    }
}

impl ServerTransport for Server {
    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let mut heard = 0;
        if self.clients.roster.has_news() || !self.streams.is_empty() {
            heard += self.take_arrivals(now, sink);
        }
        heard += self.receive(now, sink);
        let mut next = PollAt::OnEvent;
        if self.clients.need_attention() {
            next = self.attend(now, sink);
        }
        // If something was heard the driver flushes, after what it answers now.
        if heard == 0 && self.clients.roster.has_line() && !self.send() {
            next = PollAt::Now;
        }
        Progress { worked: heard, next, scanned: 1 }
    }

    #[inline]
    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.clients
    }

    #[inline]
    fn flush(&mut self) {
        self.send();
    }

    fn arm(&mut self) -> bool {
        let Server { clients, streams, .. } = self;
        let has_news = clients.roster.has_news() || !streams.is_empty();
        !has_news && !clients.roster.has_line() && clients.roster.iter_mut().all(Connection::arm)
    }

    fn connections(&self) -> usize {
        self.clients.roster.count()
    }

    fn wind_down(&mut self, now: Instant, step: WindDown) -> bool {
        if step == WindDown::Close {
            self.say_goodbye();
            self.poll(now, &mut DiscardRequests);
            self.send();
        }
        self.clients.roster.iter().all(|client| client.has_left())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

impl TcpIntake {
    /// Hands the client's stream to the server thread.
    fn take_stream(&self, id: ClientId) -> TakeStream {
        let (streams, site) = (self.streams.clone(), self.site.clone());
        Box::new(move |stream| {
            // Fails only when the server thread's half is gone; then the stream is closed here.
            if streams.send((id, stream)).is_ok() {
                site.wake();
            }
        })
    }
}

impl Intake for TcpIntake {
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError> {
        let NewClient { terms, setup, source, info, .. } = client;
        check_setup(setup, terms)?;
        let mut take_stream = None;
        let make = |id, on_disconnect: &OnDisconnect| {
            take_stream = Some(self.take_stream(id));
            Ok((wire::SETUP.to_vec(), Connection::new(id, terms, on_disconnect.guard())))
        };
        let accepted = self.queue.accept((source, info), make)?;
        Ok(Accepted { take_stream, ..accepted })
    }

    fn make_room(&self, source: Source, wait: Duration) -> bool {
        self.queue.make_room(source, wait)
    }
}
