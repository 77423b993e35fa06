//! `rfp`: WRITEs into cells at whose ends the server looks, and responses that are READ.

mod hostile_clients;
mod late_credits;

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
            HostileClients: cancellations_of_nothing_are_ignored,
            HostileClients: requests_that_are_cancelled_twice,
            HostileClients: lengths_beyond_the_slot,
            HostileClients: nonsense_in_trailers,
            HostileClients: modes_that_there_are_not,
            HostileClients: responses_cannot_be_written,
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
            HostileServers: a_server_whose_memory_is_gone_is_gone,
        }
        late_credits {
            VirtualTime: late_credits_disturb_no_later_call,
            VirtualTime: calls_that_are_given_up_leave_room_in_the_ring,
        }
    },
    exceptions: &[],
    open_end: |device, terms| Box::new(RawPair::open(Carrier::Cells, device, terms)),
    broken_setups: |device| broken_setups(Carrier::Cells, device),
    #[cfg(feature = "sim")]
    racks: racks::ALL,
};

pub(super) const NAME: &str = "rfp";

#[cfg(feature = "sim")]
mod racks {
    use crate::backends::RackVariant;
    use crate::backends::slots::racks::{LANDING_IN_ANY_ORDER, LOSS_AND_DELAY, NO_FAULTS};
    use farcall_verbs::sim::SimConfig;

    pub(super) const ALL: &[RackVariant] = &[
        NO_FAULTS,
        LANDING_IN_ANY_ORDER,
        LOSS_AND_DELAY,
        // A line is whole when a second READ has brought it.
        RackVariant {
            name: "words_in_any_order",
            options: "",
            config: || SimConfig::default().reads_words_in_any_order(true),
            shared: false,
        },
        // Fetches that fail once end fetching, and one quick call begins it: modes change all the time.
        RackVariant {
            name: "restless",
            options: "&retries=1",
            config: SimConfig::default,
            shared: false,
        },
        RackVariant {
            name: "sent",
            options: "&responses=sent",
            config: SimConfig::default,
            shared: false,
        },
    ];
}
