//! A client that its server thread has already, while its handshake goes on.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ties::{Place, TieEnd, Ties};
use crate::backend::{Accepted, Keepsake};
use crate::bootstrap::tether::OnBreak;

/// Dropping it lets the server thread take the client back.
pub(super) struct Admitted {
    withdraw: OnBreak,
    keepsake: Keepsake,
    server: Place,
    /// How long its client's node may be silent.
    silence: Duration,
}

impl Admitted {
    pub(super) fn new(accepted: Accepted, server: Place, silence: Duration) -> Admitted {
        let Accepted { withdraw, keepsake, .. } = accepted;
        Admitted { withdraw, keepsake, server, silence }
    }

    /// Does its server still run?
    pub(super) fn lives(&self) -> bool {
        self.server.runs()
    }

    /// The handshake has ended well: from now on each end hears when the other is gone, or has been silent for too long.
    /// The client's share in that.
    pub(super) fn tie(
        mut self,
        ties: &Arc<Mutex<Ties>>,
        client: (Place, Duration),
        client_hears: OnBreak,
    ) -> TieEnd {
        let server_hears = mem::replace(&mut self.withdraw, nothing());
        let ends = [client, (self.server.clone(), self.silence)];
        let [ours, theirs] = Ties::tie(ties, ends, [client_hears, server_hears]);
        self.keepsake.keep(Box::new(theirs));
        ours
    }
}

fn nothing() -> OnBreak {
    Box::new(|| ())
}

impl Drop for Admitted {
    fn drop(&mut self) {
        mem::replace(&mut self.withdraw, nothing())();
    }
}
