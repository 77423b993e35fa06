//! The clients of one server thread, and the connections that they are lanes of.
//!
//! What is counted and known of a client belongs to its connection: lanes share it, whichever transports they come over. A client that
//! its transport has said nothing of has an entry as of the first thing that is to be known of it.

use super::deferred::Waiting;
use super::quota::Account;
use crate::identity::Identity;
use crate::metrics::{Connections, LaneKey};
use crate::planted::{Bug, is_planted};
use crate::transport::{CallToken, ClientId, ClientInfo, ConnectionId};
use foldhash::HashMap;
use std::sync::Arc;

/// A client of a thread: the number of its transport, and which client it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientKey {
    pub(super) transport: u32,
    pub(super) id: ClientId,
}

impl ClientKey {
    /// That of a call over this transport.
    #[inline]
    pub(super) fn of(transport: u32, call: &CallToken) -> ClientKey {
        ClientKey { transport, id: ClientId::of(call) }
    }

    /// As others see it.
    fn shown(self) -> LaneKey {
        (self.transport, self.id)
    }
}

/// Where there is no connection.
const NONE: u32 = u32::MAX;

/// A client as one of the ways to its connection.
#[derive(Clone, Copy)]
struct Lane {
    generation: u32,
    connection: u32,
    /// It is gone. Work on its calls may still go on, so it keeps its connection until another client has its number.
    has_left: bool,
}

impl Lane {
    const EMPTY: Lane = Lane { generation: 0, connection: NONE, has_left: true };
}

/// What a thread keeps of one connection.
#[derive(Default)]
pub(super) struct Connection {
    id: Option<ConnectionId>,
    /// By which others see it, if they do.
    number: Option<u64>,
    /// Lanes that are here, and those that have its index.
    present: u32,
    lanes: u32,
    identity: Option<Identity>,
    services: Option<Arc<[bool]>>,
    /// What it has used of its quota.
    pub(super) account: Account,
    /// Its answers that wait for memory, if some do.
    pub(super) waiting: Option<Box<Waiting>>,
}

/// The thread's clients and their connections.
#[derive(Default)]
pub(super) struct Clients {
    /// By the number of the transport, and that of the client.
    lanes: Vec<Vec<Lane>>,
    connections: Vec<Connection>,
    /// Indices of connections that nothing has.
    free: Vec<u32>,
    by_id: HashMap<ConnectionId, u32>,
    /// Lanes that are here, beyond one of each connection.
    further_lanes: usize,
    /// Some client has had an identity.
    have_identities: bool,
    /// Some client has been one that may not call all services.
    are_limited: bool,
    /// What others see of them.
    shown: Option<Arc<Connections>>,
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shown.iter().for_each(|shown| shown.clear());
    }
}

impl Clients {
    /// Others see in these connections what comes and goes from now on.
    pub(super) fn show(&mut self, connections: Arc<Connections>) {
        self.shown = Some(connections);
    }

    /// No client has an identity so far.
    #[inline]
    pub(super) fn are_anonymous(&self) -> bool {
        !self.have_identities
    }

    /// Lanes that are here, beyond one of each connection.
    pub(super) fn further_lanes(&self) -> usize {
        self.further_lanes
    }

    #[inline]
    fn lane(&self, client: ClientKey) -> Option<&Lane> {
        let lane = self.lanes.get(client.transport as usize)?.get(client.id.number as usize)?;
        (lane.generation == client.id.generation && lane.connection != NONE).then_some(lane)
    }

    /// The index of a client's connection, if something is known of it.
    #[inline]
    pub(super) fn find(&self, client: ClientKey) -> Option<u32> {
        self.lane(client).map(|lane| lane.connection)
    }

    /// A client's connection, if something is known of it.
    #[inline]
    pub(super) fn get(&self, client: ClientKey) -> Option<&Connection> {
        self.find(client).map(|index| self.at(index))
    }

    /// The connection of this index.
    #[inline]
    pub(super) fn at(&self, index: u32) -> &Connection {
        &self.connections[index as usize]
    }

    /// The connection of this index.
    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut Connection {
        &mut self.connections[index as usize]
    }

    /// The index of the connection of a client that is here, from now on if not before.
    #[inline]
    pub(super) fn enter(&mut self, client: ClientKey) -> u32 {
        match self.find(client) {
            Some(index) => index,
            None => self.join(client, ClientInfo::default(), |_| Account::default()),
        }
    }

    /// Who makes this call over that transport.
    #[inline]
    pub(super) fn identity(&self, transport: u32, call: &CallToken) -> Option<&Identity> {
        self.get(ClientKey::of(transport, call))?.identity.as_ref()
    }

    /// Whether the client of this call may call the service of this index.
    #[inline]
    pub(super) fn may_call(&self, transport: u32, call: &CallToken, service: u32) -> bool {
        !self.are_limited || self.is_named(ClientKey::of(transport, call), service)
    }

    #[inline(never)]
    fn is_named(&self, client: ClientKey, service: u32) -> bool {
        let services = self.get(client).and_then(|connection| connection.services.as_deref());
        services.is_none_or(|named| named.get(service as usize) == Some(&true))
    }

    /// A client is here, with that information, and others see it. It has no entry if nothing is known of it but its lane: there may be
    /// thousands of those.
    #[cold]
    pub(super) fn arrive(
        &mut self,
        client: ClientKey,
        info: ClientInfo,
        account: impl FnOnce(Option<&Identity>) -> Account,
    ) {
        let (lane, identity) = (info.lane, info.identity.clone());
        let info = ClientInfo { lane: None, ..info };
        let index = (info != ClientInfo::default()).then(|| self.join(client, info, account));
        if let (Some(shown), Some(lane)) = (&self.shown, lane) {
            let number = index.and_then(|index| self.at(index).number);
            let number = shown.add_lane(number, (client.shown(), lane), identity);
            if let Some(index) = index {
                self.at_mut(index).number = Some(number);
            }
        }
    }

    /// A client is here, with that information. The first of its connection gets the account. Returns the index of the connection.
    #[cold]
    pub(super) fn join(
        &mut self,
        client: ClientKey,
        info: ClientInfo,
        account: impl FnOnce(Option<&Identity>) -> Account,
    ) -> u32 {
        let ClientInfo { connection: id, identity, services, .. } = info;
        self.have_identities |= identity.is_some();
        self.are_limited |= services.is_some();
        let shares = !is_planted(Bug::QuotaOfLanes);
        let known = id.filter(|_| shares).and_then(|id| self.by_id.get(&id).copied());
        let index = known.unwrap_or_else(|| {
            let account = account(identity.as_ref());
            let index = self.insert(Connection { id, account, ..Connection::default() });
            if let Some(id) = id {
                self.by_id.insert(id, index);
            }
            index
        });
        let connection = self.at_mut(index);
        let is_further = connection.present > 0;
        if !is_further {
            // Its last lane may have left before this one, which was let in earlier, was noticed.
            (connection.identity, connection.services) = (identity, services);
        }
        connection.present += 1;
        connection.lanes += 1;
        self.further_lanes += usize::from(is_further);
        let lane = Lane { generation: client.id.generation, connection: index, has_left: false };
        let before = core::mem::replace(self.lane_at(client), lane);
        self.release(before);
        index
    }

    fn insert(&mut self, connection: Connection) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.connections[index as usize] = connection;
                index
            }
            None => {
                self.connections.push(connection);
                self.connections.len() as u32 - 1
            }
        }
    }

    fn lane_at(&mut self, ClientKey { transport, id }: ClientKey) -> &mut Lane {
        let (transport, number) = (transport as usize, id.number as usize);
        if self.lanes.len() <= transport {
            self.lanes.resize_with(transport + 1, Vec::new);
        }
        let lanes = &mut self.lanes[transport];
        if lanes.len() <= number {
            lanes.resize(number + 1, Lane::EMPTY);
        }
        &mut lanes[number]
    }

    /// A client is gone. With its last lane, a connection ends; no client is let in with its id any more.
    #[cold]
    pub(super) fn leave(&mut self, client: ClientKey) {
        self.shown.iter().for_each(|shown| shown.remove_lane(client.shown()));
        let Some(&lane) = self.lane(client) else { return };
        self.lane_at(client).has_left = true;
        self.end_lane(lane);
    }

    /// This transport has lost its device, and says no more of its clients. Others do not see them any more.
    #[cold]
    pub(super) fn lose(&mut self, transport: u32) {
        self.shown.iter().for_each(|shown| shown.remove_lanes_of(transport));
    }

    fn end_lane(&mut self, lane: Lane) {
        if lane.has_left {
            return;
        }
        let connection = self.at_mut(lane.connection);
        connection.present -= 1;
        if connection.present > 0 {
            self.further_lanes -= 1;
        } else {
            connection.identity = None;
        }
    }

    /// Another client has the number of this one.
    fn release(&mut self, lane: Lane) {
        if lane.connection == NONE {
            return;
        }
        self.end_lane(lane);
        self.at_mut(lane.connection).lanes -= 1;
        self.free_if_unused(lane.connection);
    }

    /// Another connection may have this index if no lane has it, and no answer waits.
    pub(super) fn free_if_unused(&mut self, index: u32) {
        let connection = self.at_mut(index);
        if connection.lanes == 0 && connection.waiting.is_none() {
            let ended = core::mem::take(connection);
            self.free.push(index);
            if let Some(id) = ended.id {
                self.by_id.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MethodTable, Metrics, OpenConnection};
    use crate::site::Site;
    use crate::transport::{LaneInfo, LaneReason};

    const ID: ConnectionId = ConnectionId::new([7; 16]);

    fn client(transport: u32, number: u32, generation: u32) -> ClientKey {
        ClientKey { transport, id: ClientId { number, generation } }
    }

    fn join(clients: &mut Clients, client: ClientKey, info: ClientInfo) -> u32 {
        clients.join(client, info, |_| Account::default())
    }

    fn named(name: &str) -> ClientInfo {
        ClientInfo { identity: Some(Identity::named(name)), ..ClientInfo::default() }
    }

    fn lane_of(id: ConnectionId) -> ClientInfo {
        ClientInfo { connection: Some(id), ..ClientInfo::default() }
    }

    fn who(clients: &Clients, ClientKey { transport, id }: ClientKey) -> Option<Identity> {
        clients.identity(transport, &CallToken::new(id.number, id.generation, 0, 0)).cloned()
    }

    #[test]
    fn an_identity_is_that_of_one_client_of_one_transport() {
        let mut clients = Clients::default();
        let her = client(1, 2, 7);
        assert!(clients.are_anonymous());
        assert_eq!(who(&clients, her), None);
        join(&mut clients, her, named("alice"));
        let alice = Some(Identity::named("alice"));
        assert_eq!(who(&clients, her), alice);
        for other in
            [client(0, 2, 7), client(1, 1, 7), client(1, 3, 7), client(1, 2, 8), client(2, 2, 7)]
        {
            assert_eq!(who(&clients, other), None);
            clients.leave(other);
        }
        assert!(who(&clients, her) == alice && !clients.are_anonymous());
        let next = client(1, 2, 8);
        join(&mut clients, next, ClientInfo::default());
        assert_eq!((who(&clients, next), who(&clients, her)), (None, None));
        join(&mut clients, next, named("alice"));
        clients.leave(next);
        assert_eq!(who(&clients, next), None);
    }

    #[test]
    fn lanes_of_one_id_are_one_connection_over_any_transport() {
        let mut clients = Clients::default();
        let [first, second, other] = [client(0, 3, 1), client(2, 0, 1), client(0, 4, 1)];
        let index = join(&mut clients, first, lane_of(ID));
        assert_eq!(join(&mut clients, second, lane_of(ID)), index);
        assert_ne!(join(&mut clients, other, lane_of(ConnectionId::new([8; 16]))), index);
        assert_eq!(clients.further_lanes(), 1);
        clients.leave(first);
        clients.leave(first);
        assert_eq!(join(&mut clients, client(0, 5, 1), lane_of(ID)), index, "one lane was left");
        clients.leave(client(0, 5, 1));
        clients.leave(second);
        assert_eq!(clients.further_lanes(), 0);
        let let_in_before = client(0, 6, 1);
        assert_eq!(join(&mut clients, let_in_before, lane_of(ID)), index, "it was noticed late");
        clients.leave(let_in_before);
        for number in [3, 5, 6] {
            join(&mut clients, client(0, number, 2), ClientInfo::default());
        }
        join(&mut clients, client(2, 0, 2), ClientInfo::default());
        assert!(!clients.by_id.contains_key(&ID), "nothing is left of it");
    }

    #[test]
    fn a_client_that_is_gone_is_known_until_another_has_its_number() {
        let mut clients = Clients::default();
        let index = clients.enter(client(0, 0, 1));
        clients.leave(client(0, 0, 1));
        assert_eq!(clients.find(client(0, 0, 1)), Some(index));
        let next = clients.enter(client(0, 0, 2));
        assert_eq!(clients.find(client(0, 0, 1)), None);
        for generation in 3..100 {
            assert_ne!(clients.enter(client(0, 0, generation)), u32::MAX);
        }
        assert!(clients.connections.len() <= 2, "{next}: indices are used again");
    }

    #[test]
    fn others_see_the_connections_that_are_here() {
        let shown = Arc::new(Connections::new(&Site::new()));
        let methods = Arc::new(MethodTable::new(&[]));
        let metrics = Metrics::new("server", methods, Vec::new());
        let metrics = metrics.with_connections(vec![Arc::clone(&shown)]);
        let mut clients = Clients::default();
        clients.show(shown);
        let arrive = |clients: &mut Clients, client, id, backend, why| {
            let lane = Some(LaneInfo { backend, why });
            let info = ClientInfo { connection: id, lane, ..ClientInfo::default() };
            clients.arrive(client, info, |_| Account::default());
        };
        let seen = || {
            let connections = metrics.connections(9).into_iter();
            let lanes = |it: OpenConnection| {
                let backends: Vec<_> = it.lanes.iter().map(|lane| lane.backend).collect();
                (it.number, it.lanes_so_far, backends)
            };
            connections.map(lanes).collect::<Vec<_>>()
        };
        arrive(&mut clients, client(0, 0, 1), None, "tcp", LaneReason::First);
        arrive(&mut clients, client(1, 0, 1), Some(ID), "rfp", LaneReason::First);
        arrive(&mut clients, client(2, 0, 1), Some(ID), "scale", LaneReason::Trial);
        clients.arrive(client(0, 7, 1), ClientInfo::default(), |_| Account::default());
        assert_eq!(seen(), [(1, 1, vec!["tcp"]), (2, 2, vec!["rfp", "scale"])]);
        clients.leave(client(1, 0, 1));
        clients.leave(client(1, 0, 1));
        arrive(&mut clients, client(1, 0, 2), Some(ID), "rfp", LaneReason::Trial);
        clients.leave(client(0, 0, 1));
        arrive(&mut clients, client(0, 0, 2), None, "tcp", LaneReason::First);
        assert_eq!(clients.find(client(0, 0, 2)), None, "nothing else is known of it");
        assert_eq!(seen(), [(2, 3, vec!["scale", "rfp"]), (3, 1, vec!["tcp"])]);
        clients.leave(client(2, 0, 1));
        clients.leave(client(1, 0, 2));
        assert_eq!(seen(), [(3, 1, vec!["tcp"])]);
        arrive(&mut clients, client(1, 1, 1), None, "rfp", LaneReason::First);
        clients.lose(0);
        assert_eq!(seen(), [(4, 1, vec!["rfp"])]);
        drop(clients);
        assert_eq!(seen(), []);
    }

    #[test]
    fn a_client_may_call_the_services_that_it_has_named() {
        let mut clients = Clients::default();
        let call = CallToken::new(4, 1, 0, 0);
        let may = |clients: &Clients, service| clients.may_call(0, &call, service);
        assert!(may(&clients, 0));
        let services = Some(Arc::from([false, true]));
        let info = ClientInfo { services, ..ClientInfo::default() };
        join(&mut clients, client(0, 5, 1), info.clone());
        assert!(may(&clients, 0), "of another client nothing is known");
        join(&mut clients, client(0, 4, 1), info);
        assert_eq!([0, 1, 2].map(|service| may(&clients, service)), [false, true, false]);
        join(&mut clients, client(0, 4, 1), ClientInfo::default());
        assert!(may(&clients, 0));
    }
}
