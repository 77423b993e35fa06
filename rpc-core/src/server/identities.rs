//! Who the clients of one server thread are.

use crate::identity::Identity;
use crate::transport::CallToken;

/// The identities of the thread's clients.
#[derive(Default)]
pub(super) struct Identities {
    has_any: bool,
    /// By the number of the transport, and the index of the client.
    of_transports: Vec<Vec<Entry>>,
}

/// A client's. A client that takes the index over has another generation.
#[derive(Clone, Default)]
struct Entry {
    generation: u32,
    identity: Option<Identity>,
}

impl Identities {
    /// No client has an identity so far.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any
    }

    /// Who made this call over that transport.
    #[inline]
    pub(super) fn of(&self, transport: u32, call: &CallToken) -> Option<&Identity> {
        let entry = self.of_transports.get(transport as usize)?.get(call.client() as usize)?;
        entry.identity.as_ref().filter(|_| entry.generation == call.client_generation())
    }

    /// That client has disconnected.
    #[cold]
    pub(super) fn forget(&mut self, transport: u32, (client, generation): (u32, u32)) {
        let entries = self.of_transports.get_mut(transport as usize);
        let entry = entries.and_then(|entries| entries.get_mut(client as usize));
        if let Some(entry) = entry.filter(|entry| entry.generation == generation) {
            entry.identity = None;
        }
    }

    /// This is who that client is, of that index and generation.
    pub(super) fn set(
        &mut self,
        transport: u32,
        (client, generation): (u32, u32),
        identity: Option<Identity>,
    ) {
        self.has_any |= identity.is_some();
        if !self.has_any {
            return;
        }
        let (transport, client) = (transport as usize, client as usize);
        if self.of_transports.len() <= transport {
            self.of_transports.resize_with(transport + 1, Vec::new);
        }
        let entries = &mut self.of_transports[transport];
        if entries.len() <= client {
            entries.resize(client + 1, Entry::default());
        }
        entries[client] = Entry { generation, identity };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_that_of_one_connection_of_one_transport() {
        let mut identities = Identities::default();
        let of = |identities: &Identities, transport, client, generation| {
            identities.of(transport, &CallToken::new(client, generation, 0, 0)).cloned()
        };
        let alice = Some(Identity::named("alice"));
        assert_eq!(of(&identities, 1, 2, 7), None);
        identities.set(1, (2, 7), alice.clone());
        assert_eq!(of(&identities, 1, 2, 7), alice);
        for (transport, client, generation) in
            [(0, 2, 7), (1, 1, 7), (1, 3, 7), (1, 2, 8), (2, 2, 7)]
        {
            assert_eq!(of(&identities, transport, client, generation), None);
            identities.forget(transport, (client, generation));
        }
        assert_eq!(of(&identities, 1, 2, 7), alice);
        identities.set(1, (2, 8), None);
        assert_eq!(of(&identities, 1, 2, 8), None);
        assert_eq!(of(&identities, 1, 2, 7), None);
        identities.set(1, (2, 8), alice);
        identities.forget(1, (2, 8));
        assert_eq!(of(&identities, 1, 2, 8), None);
    }
}
