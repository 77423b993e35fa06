//! What every backend of slots does, driven step by step without sockets or threads.

pub(crate) mod calls;
pub(crate) mod large;
pub(crate) mod lives;
pub(crate) mod overruns;
pub(crate) mod pair;

/// The tests of this module, of one backend.
macro_rules! of_backend {
    ($backend:expr) => {
        $crate::slots::tests::of_backend! { $backend,
            calls: [messages_of_every_size_up_to_a_slot_come_back messages_in_parts_come_back a_full_window_is_backpressure_and_frees_in_any_order a_late_reply_frees_its_slot_and_is_not_delivered a_request_that_has_not_left_is_taken_back a_released_slot_is_free_and_its_generation_is_spent the_smaller_end_sets_the_terms replies_of_one_turn_survive_many_rounds_of_every_queue a_server_that_does_not_poll_costs_the_client_nothing_but_time]
            large: [messages_of_every_kind_of_size_come_back large_and_small_calls_share_a_connection both_ends_refuse_what_is_over_the_limit_and_name_both_numbers an_answer_may_come_out_other_than_reserved a_large_call_can_be_abandoned_in_every_phase a_stalled_client_does_not_stall_others who_holds_memory_that_others_wait_for_is_dropped_in_the_end a_waiting_request_that_is_abandoned_waits_no_more an_announcement_over_the_limit_fails_alone memory_is_used_again two_ends_that_are_short_of_memory_do_not_wait_for_each_other]
            lives: [a_client_that_says_goodbye_is_gone_at_once a_dropped_client_leaves_calls_that_nobody_can_answer a_new_client_of_the_same_number_does_not_get_old_answers clients_come_and_go_and_leave_room_for_others a_server_says_goodbye_after_its_last_replies a_server_that_vanishes_is_noticed a_client_that_is_one_too_many_is_refused a_handshake_that_ends_badly_leaves_no_client a_server_that_ends_sees_its_last_answers_arrive a_server_that_is_known_to_be_gone_ends_its_calls_once]
            overruns: [clients_come_to_a_new_queue_after_an_overrun a_client_on_its_way_to_a_queue_that_overruns_is_dropped]
        }
    };
    ($backend:expr, $($module:ident: [$($test:ident)*])*) => { $(
        mod $module {
            use super::*;
            $(
                #[test]
                fn $test() {
                    $crate::slots::tests::$module::$test(&$backend);
                }
            )*
        }
    )* };
}

pub(crate) use of_backend;
