//! `send_recv`: RC SENDs in both directions, and one shared receive queue per server thread.

mod hostile_clients;

use super::{
    Backend,
    slots::{
        forge::{Carrier, RawPair, broken_setups},
        hostile_servers, hostile_swarm, tricklers,
    },
};
use crate::case::cases;

/// The suite's entry.
pub(super) const BACKEND: Backend = Backend {
    name: NAME,
    options: &["window", "slot", "max_message", "memory", "silence"],
    cases: cases! {
        hostile_clients {
            HostileClients: a_client_by_hand_that_keeps_the_rules_is_served,
            HostileClients: garbage_in_slots,
            HostileClients: nonsense_immediates,
            HostileClients: cancellations_of_nothing_are_ignored,
            HostileClients: requests_that_are_cancelled_twice,
            HostileClients: lengths_beyond_the_slot,
            HostileClients: writes_where_sends_are_due,
            HostileClients: sends_longer_than_a_receive,
            HostileClients: requests_beyond_the_credits,
            HostileClients: answers_that_a_client_never_takes,
            HostileClients: forged_announcements,
            HostileClients: message_kinds_of_a_server,
            HostileClients: large_responses_that_nobody_reads,
            HostileClients VirtualTime: clients_that_hold_all_memory_are_dropped,
        }
        tricklers {
            HostileClients VirtualTime: clients_that_write_chunk_by_chunk_are_dropped,
            HostileClients VirtualTime: clients_that_read_one_by_one_are_dropped,
        }
        hostile_swarm {
            HostileClients Holdings: clients_that_send_anything_disturb_nobody,
        }
        hostile_servers {
            HostileServers: responses_that_no_request_waits_for,
            HostileServers: a_response_longer_than_its_slot,
            HostileServers: a_response_without_a_status,
            HostileServers: forged_leases,
            HostileServers: forged_grants,
            HostileServers: a_refusal_of_an_announcement_arrives,
            HostileServers: a_silent_server_that_leaves,
        }
    },
    exceptions: &[],
    open_end: |device, terms| Box::new(RawPair::open(Carrier::Sends, device, terms)),
    broken_setups: |device| broken_setups(Carrier::Sends, device),
    #[cfg(feature = "sim")]
    racks: super::slots::racks::ALL,
};

pub(super) const NAME: &str = "send_recv";
