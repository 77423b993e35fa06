//! The built-in service by which every server of [`Server::builder`](crate::Server::builder) says what it has refused so far, which
//! connections it has, and which services. `farcall info ADDRESS` shows it. Like [pings](crate::ping), it is an ordinary service with a name of its own: who may
//! call may ask, unless the server's builder forbids it with [`remote_info`](crate::ServerBuilder::remote_info).

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use crate::{Grow, Metrics, OpenConnection};

/// Most connections that a server lists in one answer, which its thread makes between calls.
pub const MOST_LISTED: u32 = 256;

/// Says what the server has refused, and which connections it has.
#[crate::service(name = "farcall.info", crate = crate)]
pub trait Info {
    /// How often the server has refused a peer or a message, for each [reason](crate::RefusalReason) by its name. `None`: it
    /// does not say.
    #[rpc(idempotent)]
    fn refusals(&self) -> Option<Vec<(String, u64)>>;

    /// The server's connections, of which it lists so many at most, and no more than [`MOST_LISTED`]. `None`: it does not say.
    #[rpc(idempotent)]
    fn connections(&self, most: u32) -> Option<Connections>;

    /// The names of the services that it has. `None`: it does not say.
    #[rpc(idempotent)]
    fn services(&self) -> Option<Vec<String>>;
}

/// The connections of a server.
#[derive(Clone, Debug, Default, PartialEq, Grow)]
#[rpc(crate = crate)]
pub struct Connections {
    /// How many are open, by the backend of the lane that was opened last.
    pub open: Vec<(String, u64)>,
    /// How many lanes clients have opened so far, by backend and by the [reason](crate::LaneReason) that they gave.
    pub lanes_opened: Vec<(String, String, u64)>,
    /// Some of those that are open. Those of the first thread come first, and of a thread the oldest.
    pub listed: Vec<ListedConnection>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Grow)]
#[rpc(crate = crate)]
pub struct ListedConnection {
    /// The server thread that serves it.
    pub thread: u32,
    /// Its number at that thread.
    pub number: u64,
    /// Who the client has proven to be.
    pub identity: Option<String>,
    /// Lanes that it has had so far.
    pub lanes_so_far: u64,
    /// Its lanes, the oldest first.
    pub lanes: Vec<ListedLane>,
}

/// One lane of a connection.
#[derive(Clone, Debug, PartialEq, Grow)]
#[rpc(crate = crate)]
pub struct ListedLane {
    /// The backend's name.
    pub backend: String,
    /// For how long it has been open, in microseconds.
    pub open_for_micros: u64,
    /// The name of the [reason](crate::LaneReason) for which the client has opened it.
    pub why: String,
}

/// The implementation of the service; its cell is empty if the server does not say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Informer(pub(crate) Arc<OnceLock<Metrics>>);

impl Info for Informer {
    fn refusals(&self) -> Option<Vec<(String, u64)>> {
        let metrics = self.0.get()?;
        Some(metrics.refusals().map(|(reason, count)| (reason.name().to_owned(), count)).collect())
    }

    fn connections(&self, most: u32) -> Option<Connections> {
        let metrics = self.0.get()?;
        let open = metrics.connections_by_backend().into_iter();
        let lanes = metrics.lanes_opened().into_iter();
        let lane = |((backend, why), count): ((&str, crate::LaneReason), u64)| {
            (backend.to_owned(), why.name().to_owned(), count)
        };
        let listed = metrics.connections(most.min(MOST_LISTED) as usize).into_iter();
        Some(Connections {
            open: open.map(|(backend, count)| (backend.to_owned(), count)).collect(),
            lanes_opened: lanes.map(lane).collect(),
            listed: listed.map(ListedConnection::from).collect(),
        })
    }

    fn services(&self) -> Option<Vec<String>> {
        let methods = self.0.get()?.snapshot().methods;
        let names = methods.iter().map(|method| method.service.to_owned());
        Some(names.collect::<BTreeSet<_>>().into_iter().collect())
    }
}

impl From<OpenConnection> for ListedConnection {
    fn from(connection: OpenConnection) -> ListedConnection {
        let lanes = connection.lanes.iter().map(|lane| ListedLane {
            backend: lane.backend.to_owned(),
            open_for_micros: u64::try_from(lane.open_for.as_micros()).unwrap_or(u64::MAX),
            why: lane.why.name().to_owned(),
        });
        ListedConnection {
            thread: connection.thread as u32,
            number: connection.number,
            identity: connection.identity.map(|identity| identity.name().to_owned()),
            lanes_so_far: connection.lanes_so_far,
            lanes: lanes.collect(),
        }
    }
}
