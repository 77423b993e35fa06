//! Calls of the polling client.

use std::collections::VecDeque;
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use super::{EMPTY_ROUNDS, OwnServer, argument};
use crate::echo::service::EchoPollClient;
use crate::echo::shape::Pending;

/// A connection's two ends.
pub(super) struct Polling {
    client: EchoPollClient,
    pub(super) server: OwnServer,
    window: usize,
    /// Oldest first.
    outstanding: VecDeque<Pending<[u8; 32]>>,
}

impl Polling {
    pub(super) fn connect(address: &str, mut server: OwnServer, window: usize) -> Result<Self> {
        let client = server
            .accept(|| Ok(EchoPollClient::connect(address).wait()?))
            .with_context(|| format!("cannot connect to {address}"))?;
        Ok(Self { client, server, window, outstanding: VecDeque::with_capacity(window) })
    }

    /// Makes so many calls, a window of them outstanding.
    #[inline]
    pub(super) fn calls(&mut self, calls: usize) -> Result<()> {
        let Self { client, server, window, outstanding } = self;
        let (mut started, mut ended, mut empty_rounds) = (0, 0, 0);
        while ended < calls {
            while started < calls && outstanding.len() < *window {
                outstanding.push_back(client.start_echo_32(argument(started))?);
                started += 1;
            }
            server.begin_round();
            client.connection().turn(server.now);
            server.turn();
            client.connection().turn(server.now);
            let before = ended;
            while let Some(oldest) = outstanding.front_mut() {
                let Some(answer) = client.take(oldest) else { break };
                ensure!(answer? == argument(ended), "an answer differs from what was sent");
                outstanding.pop_front();
                ended += 1;
            }
            if ended > before {
                empty_rounds = 0;
                continue;
            }
            empty_rounds += 1;
            if empty_rounds > EMPTY_ROUNDS {
                bail!("no answer in {EMPTY_ROUNDS} rounds; {ended} of {calls} calls have ended");
            }
            thread::yield_now();
        }
        Ok(())
    }
}
