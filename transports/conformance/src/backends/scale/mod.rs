//! `scale`: WRITEs into a message pool that groups of clients use in turn, and logs that the server READs.

mod hostile_clients;
mod hostile_servers;
mod slices;

use super::{
    Backend,
    slots::{
        forge::{Carrier, RawPair, broken_setups},
        hostile_swarm, tricklers,
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
            HostileClients: logs_that_grow_impossibly,
            HostileClients: nonsense_in_cells,
            HostileClients: places_of_others,
            HostileClients: a_place_that_was_left,
            HostileClients: modes_that_there_are_not,
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
            HostileServers: places_that_there_are_not,
            HostileServers: forged_leases,
            HostileServers: forged_grants,
            HostileServers: a_refusal_of_an_announcement_arrives,
            HostileServers: a_silent_server_that_leaves,
        }
        slices {
            Nothing: clients_that_become_busy_and_idle,
            Nothing: pinned_clients_among_others,
            Nothing: a_pinned_client_does_all_that_others_do,
        }
    },
    exceptions: &[],
    open_end: |device, terms| Box::new(RawPair::open(Carrier::Logs, device, terms)),
    broken_setups: |device| broken_setups(Carrier::Logs, device),
    #[cfg(feature = "sim")]
    racks: racks::ALL,
};

pub(super) const NAME: &str = "scale";

#[cfg(feature = "sim")]
mod racks {
    use crate::backends::RackVariant;
    use crate::backends::slots::racks::{LANDING_IN_ANY_ORDER, LOSS_AND_DELAY, NO_FAULTS};
    use farcall_verbs::sim::SimConfig;

    pub(super) const ALL: &[RackVariant] = &[
        NO_FAULTS,
        LANDING_IN_ANY_ORDER,
        LOSS_AND_DELAY,
        // Each client is a group, and slices are short: places change hands all the time.
        RackVariant {
            name: "restless",
            options: "&group=1&slice=5us",
            config: SimConfig::default,
            shared: false,
        },
        RackVariant {
            name: "restless_with_loss",
            options: "&group=2&slice=20us&doorbells=response",
            config: LOSS_AND_DELAY.config,
            shared: false,
        },
    ];
}
