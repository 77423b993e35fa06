//! Handshakes whose frames a test writes by hand: clients that may break the rules.

use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_verbs::sim::NodeId;

use farcall_transports::bootstrap::{Attempt, OnPeerGone};
use farcall_transports::handshake::Frame;

use super::Rack;
use super::address::RackAddress;
use super::admitted::Admitted;
use super::liveness::NodeLife;
use super::network::{LEG_NS, RAW_HANDSHAKE_BOUND};

/// What a server has answered to a frame. If that was a welcome, dropping this says that its client is not ready.
pub struct RawAnswer {
    /// The answer's bytes.
    pub answer: Vec<u8>,
    client: (NodeLife, Duration),
    admitted: Option<Box<Admitted>>,
}

impl Rack {
    /// Sends the bytes of one [`Frame`] from a node to the server at this address, and
    /// runs the rack until the server has answered: for tests of servers. A client [dials](Rack::dial).
    pub fn raw_hello(
        &mut self,
        from: NodeId,
        address: &str,
        frame: &[u8],
    ) -> Result<RawAnswer, ConnectError> {
        let client = NodeLife::new(self.node(from));
        let address: RackAddress =
            address.parse().map_err(|why| ConnectError::InvalidAddress(Box::new(why)))?;
        self.run_for(3 * LEG_NS);
        let attempt = Attempt { address: &address, timeout: RAW_HANDSHAKE_BOUND };
        let listening = self.network.listening(&address);
        let listening = listening.ok_or_else(|| attempt.no_server("nobody serves there"))?;
        let handshake = listening.handshake(&self.network);
        let mut answer = listening.answer(handshake, frame, (&client, attempt.timeout));
        self.run_for(LEG_NS);
        let client = (client, address.config().silence);
        let bytes = std::mem::take(&mut answer.bytes);
        Ok(RawAnswer { answer: bytes, client, admitted: answer.into_admitted() })
    }

    /// Says that the client is ready: the server has it until what this gives is dropped. `on_server_gone` is called when the
    /// server drops it. `None`: the answer was no welcome.
    pub fn raw_ready(
        &mut self,
        answer: RawAnswer,
        on_server_gone: OnPeerGone,
    ) -> Option<Box<dyn Send>> {
        let RawAnswer { client, admitted, .. } = answer;
        let ready = Frame::Ready.to_bytes();
        let end = admitted?.finish(&ready, &self.network.liveness, client, on_server_gone)?;
        Some(Box::new(end))
    }
}

impl std::fmt::Debug for RawAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawAnswer")
            .field("admitted", &self.admitted.is_some())
            .finish_non_exhaustive()
    }
}
