//! What a server that intruders come to must go on giving its honest clients.

use crate::pattern;
use crate::service::SuitePollClient;
use crate::setup::Setup;
use crate::world::{Server, World};

pub(super) const SLOT: u32 = 1024;
pub(super) const LIMIT: u64 = 1 << 20;

/// A server with memory for some large messages, and an honest client of it.
pub(super) fn serve_windows(world: &World, window: u32) -> (Server, SuitePollClient) {
    let setup = Setup::default().window(window).slot(SLOT as usize).tight_memory(LIMIT);
    let server = world.serve(setup);
    let client = world.client(&server);
    (server, client)
}

/// An honest client of before, and a new one, see nothing of what went on.
#[track_caller]
pub(super) fn assert_untouched(world: &World, server: &Server, honest: &mut SuitePollClient) {
    let mut newcomer = world.client(server);
    for client in [honest, &mut newcomer] {
        for len in [20, 700, 200_000] {
            let message = pattern::make(len, len as usize);
            let echoed = world.call(client, |c| c.start_echo(&message)).expect("echo");
            pattern::assert_is(len, len as usize, &echoed);
        }
    }
}
