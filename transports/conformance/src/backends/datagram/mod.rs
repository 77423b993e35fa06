//! `datagram`: UD SENDs, with recovery of what is lost.

mod forge;
mod hostile_clients;
mod hostile_servers;
mod hostile_swarm;
mod tricklers;

use super::Backend;
use crate::case::cases;

/// The suite's entry.
pub(super) const BACKEND: Backend = Backend {
    name: NAME,
    options: &["window", "slot", "max_message", "memory", "silence"],
    cases: cases! {
        hostile_clients {
            HostileClients: a_client_by_hand_that_keeps_the_rules_is_served,
            HostileClients: replayed_requests_run_once,
            HostileClients: requests_that_only_their_client_calls_idempotent_run_once,
            HostileClients: datagrams_of_an_ended_session_are_dropped,
            HostileClients: datagrams_of_other_senders_are_dropped,
            HostileClients: nothing_runs_for_a_client_that_does_not_know_what_it_was_sent,
            HostileClients: nothing_is_sent_to_a_queue_pair_that_another_has_named,
            HostileClients: a_sender_at_another_device_is_a_stranger,
            HostileClients: truncated_datagrams_run_nothing,
            HostileClients: mutated_datagrams_disturb_nobody,
            HostileClients: a_setup_beyond_all_limits_is_capped,
            HostileClients: floods_take_nothing_from_others,
            HostileClients: forged_announcements,
            HostileClients: message_kinds_of_a_server,
            HostileClients: large_responses_that_nobody_fetches,
            HostileClients VirtualTime: clients_that_hold_all_memory_are_dropped,
        }
        tricklers {
            HostileClients VirtualTime: clients_that_send_part_by_part_are_dropped,
            HostileClients VirtualTime: clients_that_fetch_part_by_part_are_dropped,
        }
        hostile_swarm {
            HostileClients Holdings: clients_that_send_anything_disturb_nobody,
        }
        hostile_servers {
            HostileServers: messages_that_match_no_call_are_ignored,
            HostileServers: nonsense_ends_the_session,
            HostileServers: a_forgotten_request_may_have_run,
            HostileServers: a_response_without_a_status,
            HostileServers: a_refusal_of_an_announcement_arrives,
        }
    },
    exceptions: &[],
    open_end: |device, _| Box::new(forge::RawPair::open(device)),
    broken_setups: forge::broken_setups,
    #[cfg(feature = "sim")]
    racks: racks::ALL,
};

const NAME: &str = "datagram";

#[cfg(feature = "sim")]
mod racks {
    use std::time::Duration;

    use farcall_verbs::sim::{FaultRates, SimConfig};

    use crate::backends::RackVariant;

    pub(super) const ALL: &[RackVariant] = &[
        RackVariant { name: "no_faults", options: "", config: SimConfig::default, shared: false },
        // One datagram in a hundred is lost, and some are delayed, so that later ones overtake them; all clients share a
        // queue pair.
        RackVariant {
            name: "loss_and_delay",
            options: "",
            config: || {
                SimConfig::default().faults(
                    FaultRates::default()
                        .datagram_loss(0.01)
                        .datagram_delay(0.05)
                        .delay(Duration::from_micros(50)),
                )
            },
            shared: true,
        },
        // One datagram in five is lost, one in five arrives twice, and one in five is overtaken by hundreds.
        RackVariant {
            name: "heavy_loss",
            options: "",
            config: || {
                SimConfig::default().faults(
                    FaultRates::default()
                        .datagram_loss(0.2)
                        .datagram_copy(0.2)
                        .datagram_delay(0.2)
                        .delay(Duration::from_millis(1)),
                )
            },
            shared: false,
        },
        // None is lost, but one in twenty arrives after thousands of later ones, or its copy does.
        RackVariant {
            name: "reordering",
            options: "",
            config: || {
                SimConfig::default().faults(
                    FaultRates::default()
                        .datagram_copy(0.1)
                        .datagram_straggle(0.05, Duration::from_millis(20)),
                )
            },
            shared: false,
        },
        RackVariant {
            name: "without_optimizations",
            options: "without=doorbells,polls,selective,inline,bulk,coalescing",
            config: || SimConfig::default().faults(FaultRates::default().datagram_loss(0.01)),
            shared: false,
        },
    ];
}
