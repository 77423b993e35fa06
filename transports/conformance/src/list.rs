//! The list of cases, written once: the tests and the runner are made of it.

use crate::{
    cases,
    runner::{Case, Need},
};

/// Hands the list of cases to a macro.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ($callback:path, $($argument:expr)?) => {
        $callback! {
            [$($argument)?]
            sizes {
                Nothing an_empty_message_passes
                Nothing short_messages_of_each_length_pass
                Nothing messages_at_the_edges_of_a_slot_pass
                Nothing messages_beyond_a_slot_pass
                Nothing a_message_of_64_mib_passes
                Gigabytes a_message_of_1_gib_passes
                Nothing a_large_request_with_a_small_reply_passes
                Nothing a_small_request_with_a_large_reply_passes
                Nothing large_and_small_messages_share_a_window
                Nothing small_calls_pass_a_large_one
                Nothing a_structured_value_passes
            }
            windows {
                Nothing a_window_of_one
                Nothing a_window_of_two
                Nothing a_window_of_64
                Nothing more_calls_than_the_window_all_get_through
                Nothing thousands_of_calls_pass_a_slow_one
                Nothing answers_in_any_order_find_their_calls
                Nothing both_directions_full_of_large_messages_go_on
                Nothing large_messages_beyond_the_memory_go_on
            }
            deadlines {
                Nothing a_deadline_in_the_past_ends_the_call_before_it_runs
                Nothing a_deadline_that_passes_while_waiting_ends_the_call
                Nothing a_late_reply_goes_to_nobody
                Nothing thousands_of_missed_deadlines_leave_a_full_window
                Nothing a_deadline_ends_a_large_call_at_any_moment
                Nothing a_missed_deadline_ends_one_call_only
                Nothing a_call_that_missed_its_deadline_ran_at_most_once
                Threads a_blocking_call_waits_for_the_window_only_until_its_deadline
            }
            cancellation {
                Nothing a_dropped_call_ends_its_task
                Nothing a_dropped_call_leaves_its_neighbours_alone
                Nothing thousands_of_dropped_calls_leave_a_full_window
                Nothing dropped_large_calls_free_their_memory
                Nothing a_whole_window_cancelled_at_once
            }
            slow {
                Nothing a_waiting_handler_stalls_nobody
                Threads a_busy_handler_stalls_only_its_thread
                Nothing a_client_that_never_polls_stalls_nobody
                Nothing unread_answers_keep_no_memory_from_others
            }
            failures {
                Nothing a_panic_fails_its_call_only
                Nothing a_services_own_error_arrives
                Nothing a_request_above_the_limit_names_both_numbers
                Nothing a_reply_above_the_limit_names_both_numbers
                Nothing a_message_above_the_memory_stalls_nobody
                Nothing malformed_arguments_fail_their_call
                Nothing an_unknown_method_fails_its_call
            }
            refusals {
                Nothing no_server_at_the_address
                Nothing an_address_in_use
                Nothing wrong_addresses_name_what_is_wrong
                Nothing a_service_that_is_not_served
                Nothing a_service_with_other_signatures
                Nothing two_services_of_one_server
                Nothing two_servers_side_by_side
            }
            endings {
                Nothing a_shutdown_drains_the_calls_in_flight
                Nothing a_server_that_ends_at_once_ends_its_calls
                Nothing a_client_that_goes_with_calls_in_flight_frees_them
                Nothing clients_come_and_go
                Nothing what_clients_held_is_given_back
            }
            deaths {
                Processes a_killed_server_ends_its_calls
                Processes a_killed_client_frees_its_calls
                Processes clients_killed_in_large_transfers_leave_nothing
                Processes a_stopped_client_stalls_nobody
                OneMachine a_stopped_server_makes_calls_late_only
                Processes clients_give_back_what_they_held
            }
            idle {
                OneMachine an_idle_server_sleeps_and_wakes
                Nothing a_sleeping_server_wakes_for_every_call
                Nothing a_sleeping_server_wakes_for_its_tasks
                Threads a_sleeping_client_wakes
            }
            any_executor {
                Threads threads_share_a_client
                Threads more_calls_than_the_window_wait_for_room
                Threads a_client_holds_a_bounded_number_of_calls
                Threads a_call_that_is_not_polled_does_not_run
                Threads dropped_futures_leave_nothing_behind
                Threads a_forgotten_future_harms_nobody
                Threads deadlines_end_single_calls
                Threads a_deadline_passes_while_waiting_for_the_window
                Threads a_call_outlives_its_client
                Threads errors_arrive_as_what_they_are
                Threads answers_may_be_kept
                Threads a_client_dials_again
                Threads a_call_without_a_server_ends_in_time
            }
            swarm {
                Nothing everything_at_once
            }
            hostile_clients {
                WriteImm an_intruder_that_keeps_the_rules_is_served
                WriteImm garbage_in_slots
                WriteImm nonsense_immediates
                WriteImm cancellations_of_nothing_are_ignored
                WriteImm lengths_beyond_the_slot
                WriteImm writes_outside_the_region
                WriteImm requests_beyond_the_credits
                WriteImm forged_announcements
                WriteImm a_servers_words_from_a_client
                WriteImm a_slot_that_changes_under_the_reader
                WriteImm lent_responses_that_nobody_reads
                WriteImm handshakes_that_stop_in_the_middle
                WriteImm broken_handshakes
            }
            hostile_servers {
                FalseServer answers_that_nobody_waits_for
                FalseServer an_answer_longer_than_its_slot
                FalseServer an_answer_without_a_status
                FalseServer forged_leases
                FalseServer forged_grants
                FalseServer a_refusal_of_an_announcement_arrives
                FalseServer a_silent_server_that_goes
                FalseServer broken_handshakes
            }
            hostile_datagrams {
                Datagram an_intruder_that_keeps_the_rules_is_served
                Datagram replayed_requests_run_once
                Datagram a_former_sessions_datagrams_are_dropped
                Datagram strangers_are_not_heard
                Datagram truncated_datagrams_end_where_they_end
                Datagram mutated_datagrams_harm_nobody
                Datagram floods_take_nothing_from_others
                Datagram forged_announcements
                Datagram a_servers_words_from_a_client
                Datagram responses_that_nobody_fetches
                Datagram handshakes_that_stop_in_the_middle
                Datagram broken_setups
            }
            false_datagram_servers {
                FalseDatagramServer words_that_are_not_for_a_call_are_ignored
                FalseDatagramServer nonsense_ends_the_session
                FalseDatagramServer an_answer_without_a_status
                FalseDatagramServer a_refusal_of_an_announcement_arrives
                FalseDatagramServer broken_setups
            }
            counting {
                Nothing calls_are_counted_by_method_and_outcome
            }
            crowds {
                Nothing clients_64_in_turns
                Nothing more_clients_than_the_server_takes_are_refused
                OneMachine a_server_out_of_descriptors_goes_on
                Threads clients_64_on_threads
                Processes clients_64_in_processes
            }
        }
    };
}

macro_rules! list {
    ([] $($module:ident { $($need:ident $case:ident)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            need: Need::$need,
            run: |world| cases::$module::$case(world),
        },)*)*];
    };
}

for_each_case!(list,);

/// Makes one `#[test]` of each case; the argument is an expression that gives an `Arc<dyn Fixture>`.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::for_each_case!($crate::tests_of_cases, $fixture);
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! tests_of_cases {
    ([$fixture:expr] $($module:ident { $($need:ident $case:ident)* })*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $case() {
                let fixture = $fixture;
                $crate::assert_passes(&fixture, concat!(stringify!($module), "::", stringify!($case)));
            })*
        })*
    };
}
