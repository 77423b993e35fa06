//! Handshakes whose frames somebody writes by hand: clients that may not keep the rules.

use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_verbs::sim::NodeId;

use super::Rack;
use super::address::RackAddress;
use super::admitted::Admitted;
use super::network::LEG_NS;
use super::ties::Place;
use crate::bootstrap::attempt::Attempt;
use crate::bootstrap::tether::OnBreak;

/// What a server has answered to a frame. If that was a welcome, dropping this says that its client is not ready.
pub struct Knocked {
    /// The answer's bytes.
    pub answer: Vec<u8>,
    client: (Place, Duration),
    admitted: Option<Admitted>,
}

impl Rack {
    /// Sends the bytes of one [`Frame`](crate::handshake::Frame) from a node to the server at this address, and lets happen
    /// what happens until it has answered: for tests of servers. A client [dials](Rack::dial).
    pub fn knock(
        &mut self,
        from: NodeId,
        address: &str,
        frame: &[u8],
    ) -> Result<Knocked, ConnectError> {
        let client = self.place(from);
        let address: RackAddress =
            address.parse().map_err(|why| ConnectError::InvalidAddress(Box::new(why)))?;
        self.run_for(3 * LEG_NS);
        let attempt = Attempt { address: &address, timeout: super::network::KNOCK_BOUND };
        let listening = self.network.listening(&address);
        let listening = listening.ok_or_else(|| attempt.no_server("nobody serves there"))?;
        let (answer, admitted) = listening.answer(frame, attempt.timeout);
        self.run_for(LEG_NS);
        let client = (client, address.limits().silence);
        Ok(Knocked { answer: answer.to_bytes(), client, admitted })
    }

    /// Says that the client is ready: it stays the server's until what this gives is dropped. `on_break` is called when the
    /// server has dropped it. `None`: the answer was no welcome.
    pub fn ready(&mut self, knocked: Knocked, on_break: OnBreak) -> Option<Box<dyn Send>> {
        let Knocked { client, admitted, .. } = knocked;
        let tie = admitted?.tie(&self.network.ties, client, on_break);
        Some(Box::new(tie))
    }
}

impl std::fmt::Debug for Knocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knocked")
            .field("admitted", &self.admitted.is_some())
            .finish_non_exhaustive()
    }
}
