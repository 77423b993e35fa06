//! A client that its server thread has already, while its handshake goes on.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_transports::bootstrap::OnPeerGone;
use farcall_transports::contract::{Accepted, OnDisconnect, Stream, TakeStream};
use farcall_transports::handshake::{ServerHandshake, ServerStep};

use super::liveness::{Liveness, LivenessEnd, NodeLife};
use super::network::Network;
use super::stream::StreamEnd;

/// Dropping it withdraws the client from its server thread.
pub(super) struct Admitted {
    handshake: ServerHandshake,
    withdraw: OnPeerGone,
    on_disconnect: OnDisconnect,
    /// If the backend runs on a byte stream.
    take_stream: Option<TakeStream>,
    server: NodeLife,
    /// How long the client's node may stay silent.
    silence: Duration,
}

impl Admitted {
    pub(super) fn new(
        handshake: ServerHandshake,
        accepted: Accepted,
        server: NodeLife,
        silence: Duration,
    ) -> Admitted {
        let Accepted { withdraw, on_disconnect, take_stream, .. } = accepted;
        Admitted { handshake, withdraw, on_disconnect, take_stream, server, silence }
    }

    /// Whether its server still runs.
    pub(super) fn is_served(&self) -> bool {
        self.server.is_running()
    }

    /// The client's last frame has come. If it says that the client is ready, there is a stream between both ends from now
    /// on, which breaks when one of them is gone, or has been silent for too long. Gives the client's end.
    pub(super) fn finish_with_stream(
        mut self,
        ready: &[u8],
        network: &Network,
        client: (NodeLife, Duration),
    ) -> Option<StreamEnd> {
        let take = self.take_stream.take()?;
        if self.handshake.receive(ready) != Ok(ServerStep::Ready) {
            return None;
        }
        self.withdraw = do_nothing();
        let ([mut ours, theirs], on_peer_gone) = network.stream([&client.0, &self.server]);
        let ends = [client, (self.server.clone(), self.silence)];
        let [liveness, their_liveness] = Liveness::watch(&network.liveness, ends, on_peer_gone);
        ours.liveness = Some(Box::new(liveness));
        self.on_disconnect.keep(Box::new(their_liveness));
        take(Stream::Custom(Box::new(theirs)));
        Some(ours)
    }

    /// The client's last frame has come. If it says that the client is ready, each end is told from now on when the other
    /// is gone, or has been silent for too long. Gives the client's end of that.
    pub(super) fn finish(
        mut self,
        ready: &[u8],
        liveness: &Arc<Mutex<Liveness>>,
        client: (NodeLife, Duration),
        on_server_gone: OnPeerGone,
    ) -> Option<LivenessEnd> {
        if self.handshake.receive(ready) != Ok(ServerStep::Ready) {
            return None;
        }
        let on_client_gone = mem::replace(&mut self.withdraw, do_nothing());
        let ends = [client, (self.server.clone(), self.silence)];
        let [ours, theirs] = Liveness::watch(liveness, ends, [on_server_gone, on_client_gone]);
        self.on_disconnect.keep(Box::new(theirs));
        Some(ours)
    }
}

fn do_nothing() -> OnPeerGone {
    Box::new(|| ())
}

impl Drop for Admitted {
    fn drop(&mut self) {
        mem::replace(&mut self.withdraw, do_nothing())();
    }
}
