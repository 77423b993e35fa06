//! Finds what a thread keeps of a call, by its client and slot: a cancellation then costs the same, however many calls the thread works
//! on.

use super::clients::ClientKey;
use crate::transport::{CallToken, ClientId};

/// Where there is no call.
const NONE: u32 = u32::MAX;

/// A slot of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClientSlot {
    transport: u32,
    client: u32,
    slot: u32,
}

impl ClientSlot {
    #[inline]
    pub(super) fn of(transport: u32, call: &CallToken) -> ClientSlot {
        ClientSlot { transport, client: call.client(), slot: call.slot() }
    }
}

/// A client gave up one call, or is gone.
pub(super) struct Cancel {
    client: ClientKey,
    /// Slot and generation; `None`: the client is gone, with all its calls.
    slot: Option<(u32, u32)>,
}

impl Cancel {
    pub(super) fn of_call(client: ClientKey, slot: (u32, u32)) -> Cancel {
        Cancel { client, slot: Some(slot) }
    }

    pub(super) fn of_client(client: ClientKey) -> Cancel {
        Cancel { client, slot: None }
    }

    /// Where the call is that it concerns; `None`: all of a client.
    pub(super) fn slot(&self) -> Option<ClientSlot> {
        let ClientKey { transport, id: ClientId { number: client, .. } } = self.client;
        self.slot.map(|(slot, _)| ClientSlot { transport, client, slot })
    }

    /// It concerns this call, which that transport brought.
    pub(super) fn is_meant(&self, transport: u32, call: &CallToken) -> bool {
        self.client == ClientKey::of(transport, call)
            && self.slot.is_none_or(|slot| slot == (call.slot(), call.generation()))
    }
}

/// The numbers of calls, by transport, client and slot. Rows grow to the highest slot that was used, and are kept.
#[derive(Default)]
pub(super) struct CallIndex {
    transports: Vec<Vec<Vec<u32>>>,
}

impl CallIndex {
    /// The slot's call has this number from now on. An earlier one there is of a client that is gone.
    pub(super) fn insert(&mut self, at: ClientSlot, number: u32) {
        let clients = element(&mut self.transports, at.transport, Vec::new);
        let slots = element(clients, at.client, Vec::new);
        *element(slots, at.slot, || NONE) = number;
    }

    /// The call with this number is over.
    pub(super) fn remove(&mut self, at: ClientSlot, number: u32) {
        let clients = self.transports.get_mut(at.transport as usize);
        let slots = clients.and_then(|clients| clients.get_mut(at.client as usize));
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(at.slot as usize))
            && *slot == number
        {
            *slot = NONE;
        }
    }

    /// The numbers that a cancellation may concern, and others that are no call's.
    pub(super) fn candidates(&self, cancel: &Cancel) -> &[u32] {
        let clients = self.transports.get(cancel.client.transport as usize);
        let slots = clients.and_then(|clients| clients.get(cancel.client.id.number as usize));
        let slots = slots.map_or(&[][..], Vec::as_slice);
        match cancel.slot {
            None => slots,
            Some((slot, _)) => slots.get(slot as usize).map_or(&[], std::slice::from_ref),
        }
    }
}

/// The element at this index, behind as many new ones as are missing.
fn element<T>(elements: &mut Vec<T>, index: u32, new: impl FnMut() -> T) -> &mut T {
    let index = index as usize;
    if index >= elements.len() {
        elements.resize_with(index + 1, new);
    }
    &mut elements[index]
}
