//! `tcp`: frames on one TCP connection.

mod forge;
mod hostile_clients;
mod hostile_servers;
mod hostile_swarm;

use super::Backend;
use crate::case::cases;

/// The suite's entry.
pub(super) const BACKEND: Backend = Backend {
    name: NAME,
    options: &["window", "slot", "max_message", "memory", "silence"],
    cases: cases! {
        // These write bytes to a real socket.
        hostile_clients {
            HostileClients Threads: a_client_by_hand_that_keeps_the_rules_is_served,
            HostileClients Threads: a_client_that_trickles_is_served,
            HostileClients Threads: requests_that_come_with_the_end_of_the_handshake_are_served,
            HostileClients Threads: garbage_on_the_stream,
            HostileClients Threads: frames_that_break_a_rule,
            HostileClients Threads: cancellations_of_nothing_are_ignored,
            HostileClients Threads: requests_beyond_the_credits,
            HostileClients Threads: forged_large_requests,
            HostileClients Threads: clients_that_reset_or_close_half,
            HostileClients Threads: a_client_that_never_reads,
            HostileClients Threads: claimed_lengths_get_no_memory_from_others,
            HostileClients Threads: large_responses_that_nobody_takes,
        }
        hostile_swarm {
            HostileClients Threads Holdings: clients_that_send_anything_disturb_nobody,
        }
        hostile_servers {
            HostileServers: a_server_that_trickles_is_understood,
            HostileServers: frames_that_no_request_waits_for,
            HostileServers: forged_large_responses,
            HostileServers: a_response_without_a_status,
            HostileServers: a_server_that_closes_half_or_stops_in_a_frame,
            HostileServers: a_server_that_grants_and_leaves,
        }
    },
    exceptions: &[],
    open_end: |_, _| Box::new(forge::Unconnected),
    broken_setups: |_| forge::broken_setups(),
    #[cfg(feature = "sim")]
    racks: racks::ALL,
};

const NAME: &str = "tcp";

#[cfg(feature = "sim")]
mod racks {
    use farcall_verbs::sim::SimConfig;

    use crate::backends::RackVariant;

    pub(super) const ALL: &[RackVariant] = &[
        // Streams take and give some of the bytes at a time.
        RackVariant { name: "no_faults", options: "", config: SimConfig::default, shared: false },
    ];
}
