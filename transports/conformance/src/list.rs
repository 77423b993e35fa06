//! All cases: those that every backend must pass, and those that a backend brings.

use crate::{
    backends,
    case::{Case, cases},
    cases::*,
};

/// The cases that every backend must pass.
pub const COMMON: &[Case] = cases! {
    sizes {
        Nothing: an_empty_message_passes,
        Nothing: short_messages_of_each_length_pass,
        Nothing: messages_at_the_edges_of_a_slot_pass,
        Nothing: messages_beyond_a_slot_pass,
        Nothing: a_message_of_64_mib_passes,
        Gigabytes: a_message_of_1_gib_passes,
        Nothing: a_large_request_with_a_small_reply_passes,
        Nothing: a_small_request_with_a_large_reply_passes,
        Nothing: large_and_small_messages_share_a_window,
        Nothing: small_calls_pass_a_large_one,
        Nothing: a_structured_value_passes,
    }
    windows {
        Nothing: a_window_of_one,
        Nothing: a_window_of_two,
        Nothing: a_window_of_64,
        Nothing: more_calls_than_the_window_all_get_through,
        Nothing: thousands_of_calls_pass_a_slow_one,
        Nothing: answers_in_any_order_find_their_calls,
        Nothing: both_directions_full_of_large_messages_go_on,
        Nothing: large_messages_beyond_the_memory_go_on,
    }
    deadlines {
        Nothing: a_deadline_in_the_past_ends_the_call_before_it_runs,
        Nothing: a_deadline_that_passes_while_waiting_ends_the_call,
        Nothing: a_late_response_is_dropped,
        Nothing: thousands_of_missed_deadlines_leave_a_full_window,
        Nothing: a_deadline_ends_a_large_call_at_any_moment,
        Nothing: a_missed_deadline_ends_one_call_only,
        Nothing: a_call_that_missed_its_deadline_ran_at_most_once,
        Threads: a_blocking_call_waits_for_the_window_only_until_its_deadline,
    }
    cancellation {
        Nothing: a_dropped_call_ends_its_task,
        Nothing: a_dropped_call_does_not_affect_others,
        Nothing: thousands_of_dropped_calls_leave_a_full_window,
        Nothing: dropped_large_calls_free_their_memory,
        Nothing: a_whole_window_cancelled_at_once,
        Threads: clients_that_cancel_delay_no_other,
    }
    slow {
        Nothing: a_waiting_handler_stalls_no_other_call,
        Threads: a_blocking_handler_stalls_only_its_thread,
        Threads: a_blocking_handler_moves_to_an_idle_thread,
        Nothing: a_client_that_never_polls_stalls_no_other,
        Nothing: unread_responses_keep_no_memory_from_others,
        OneMachine: unread_responses_hold_bounded_memory,
        VirtualTime: a_client_that_reads_no_large_responses_is_dropped,
    }
    failures {
        Nothing: a_panic_fails_its_call_only,
        Nothing: a_services_own_error_arrives,
        Nothing: a_request_above_the_limit_names_both_numbers,
        Nothing: a_reply_above_the_limit_names_both_numbers,
        Nothing: a_message_above_the_memory_stalls_no_other,
        Nothing: malformed_arguments_fail_their_call,
        Nothing: an_unknown_method_fails_its_call,
    }
    refusals {
        Nothing: no_server_at_the_address,
        Nothing: an_address_in_use,
        Nothing: wrong_addresses_name_what_is_wrong,
        Nothing: a_service_that_is_not_served,
        Nothing: a_service_with_no_method_in_common,
        Nothing: two_services_of_one_server,
        Nothing: two_servers_side_by_side,
    }
    quotas {
        // Its client is hostile.
        HostileClients Strangers: calls_beyond_the_quota_do_not_run,
    }
    lanes {
        Nothing: a_connection_goes_on_until_its_last_lane_ends,
        Nothing: a_guessed_connection_is_refused,
        Nothing: lanes_share_a_quota,
    }
    versions {
        Nothing: equal_versions_have_everything,
        Nothing: an_old_client_of_a_new_server,
        Nothing: a_new_client_of_an_old_server,
        Nothing: both_versions_of_clients_at_one_server,
        Nothing: an_argument_that_an_old_client_does_not_know_has_its_default,
        Nothing: an_argument_that_an_old_server_does_not_know_must_have_its_default,
        Nothing: types_that_grew_are_read_by_a_new_server,
        Nothing: types_that_grew_are_read_by_an_old_server,
        Nothing: a_required_method_that_is_missing_refuses_the_server,
        Nothing: a_method_idempotent_at_one_end_runs_at_most_once,
        Nothing: the_next_connection_finds_what_the_next_server_has,
        Threads: a_channel_follows_its_server,
    }
    endings {
        Nothing: a_shutdown_drains_the_calls_in_flight,
        Nothing: a_server_that_ends_at_once_ends_its_calls,
        Nothing: a_client_that_leaves_with_calls_in_flight_frees_them,
        Nothing: clients_come_and_go,
        Holdings: what_clients_held_is_released,
    }
    deaths {
        Processes: a_killed_server_ends_its_calls,
        Processes: a_killed_client_frees_its_calls,
        Processes: clients_killed_in_large_transfers_leave_nothing,
        Processes: a_stopped_client_stalls_no_other,
        Processes: a_client_stopped_before_its_first_response_stalls_no_other,
        OneMachine: a_stopped_server_only_delays_calls,
        Processes: clients_release_what_they_held,
    }
    idle {
        OneMachine: an_idle_server_sleeps_and_wakes,
        Nothing: a_sleeping_server_wakes_for_every_call,
        Nothing: a_sleeping_server_wakes_for_its_tasks,
        Threads: a_sleeping_client_wakes,
    }
    any_executor {
        Threads: threads_share_a_client,
        Threads: more_calls_than_the_window_wait_for_room,
        Threads: a_client_holds_a_bounded_number_of_calls,
        Threads: a_call_that_is_not_polled_does_not_run,
        Threads: dropped_futures_leave_nothing_behind,
        Threads: a_forgotten_future_affects_no_other_call,
        Threads: deadlines_end_single_calls,
        Threads: a_deadline_passes_while_waiting_for_the_window,
        Threads: a_call_outlives_its_client,
        Threads: errors_arrive_with_their_types,
        Threads: responses_may_be_kept,
        Threads: a_client_dials_again,
        Threads: a_call_without_a_server_ends_in_time,
    }
    swarm {
        Nothing: everything_at_once,
    }
    counting {
        Nothing: calls_are_counted_by_method_and_outcome,
    }
    crowds {
        Nothing: clients_64_polled_in_turn,
        Nothing: more_clients_than_the_server_takes_are_refused,
        OneMachine: a_server_out_of_descriptors_goes_on,
        Threads: clients_64_on_threads,
        Processes: clients_64_in_processes,
    }    hostile_handshakes {
        HostileClients: broken_hellos_are_refused,
        HostileClients: broken_setups_are_refused,
        HostileClients: clients_that_never_become_ready_disturb_nobody,
        HostileClients Holdings: clients_that_never_become_ready_leave_nothing,
        HostileClients VirtualTime: clients_that_never_call_make_room_and_those_that_have_called_stay,
        HostileServers: broken_welcomes_are_refused,
    }
};

/// All cases of the backend of that name.
pub fn cases_of(backend: &str) -> impl Iterator<Item = &'static Case> + use<> {
    COMMON.iter().chain(backends::find(backend).map_or(&[][..], |backend| backend.cases))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use farcall_transports::registry;

    use super::*;

    #[test]
    fn no_two_cases_of_a_backend_have_the_same_name() {
        for backend in backends::ALL {
            let mut names = HashSet::new();
            for case in cases_of(backend.name) {
                assert!(names.insert(case.name), "{}: {} twice", backend.name, case.name);
            }
        }
    }

    /// The rows of the book's table of queues: the backends, and what fills the queue.
    fn queues_of_the_book() -> Vec<(Vec<&'static str>, &'static str)> {
        const PAGE: &str = include_str!("../../../book/src/limits.md");
        let table = PAGE.lines().skip_while(|line| !line.starts_with("| what waits |"));
        let rows = table.skip(2).take_while(|line| line.starts_with('|'));
        let in_ticks = |cell: &'static str| cell.split('`').skip(1).step_by(2).collect::<Vec<_>>();
        let columns = rows.map(|row| row.trim_matches('|').split('|').collect::<Vec<_>>());
        columns
            .map(|columns| {
                assert_eq!(columns.len(), 5, "{columns:?}");
                (in_ticks(columns[1]), in_ticks(columns[4])[0])
            })
            .collect()
    }

    /// Each queue of the book's table has what fills it: a case of each of its backends, or a test of the server.
    #[test]
    fn every_queue_that_a_client_fills_is_filled_by_a_case() {
        const OF_SERVER: [&str; 2] = [
            include_str!("../../../rpc-core/src/server/backlog.rs"),
            include_str!("../../../rpc-core/src/server/stealing/shared.rs"),
        ];
        let queues = queues_of_the_book();
        assert!(queues.len() > 10, "{queues:?}");
        for (names, filled_by) in &queues {
            let is_of_server =
                OF_SERVER.iter().any(|text| text.contains(&format!("fn {filled_by}()")));
            assert_eq!(is_of_server, names.is_empty(), "{filled_by}");
            for name in names {
                let has_case = cases_of(name).any(|case| case.name.ends_with(filled_by));
                assert!(has_case, "{name} has no case {filled_by}");
            }
        }
        // The lanes of a connection that moves are those of the others.
        let own = |backend: &&&backends::Backend| registry::find(backend.name).is_some();
        for backend in backends::ALL.iter().filter(own) {
            let has_queue = |of: &dyn Fn(&str) -> bool| {
                queues.iter().any(|(names, by)| names.contains(&backend.name) && of(by))
            };
            let fills = |by: &str| by != "unread_responses_hold_bounded_memory";
            assert!(has_queue(&fills), "{} has no queue in the table", backend.name);
        }
    }

    #[test]
    fn exceptions_name_cases() {
        for backend in backends::ALL {
            for (name, _) in backend.exceptions {
                assert!(cases_of(backend.name).any(|case| case.name == *name), "{name}");
            }
        }
    }
}
