//! The list of all cases, with what each needs.

use farcall_verbs::Operation::{Read, Send, SendWithImm, Write, WriteWithImm};
use farcall_verbs::QpType::{Rc, Uc};

use crate::case::Case;
use crate::need::Need::*;

macro_rules! cases {
    ($($group:ident { $($case:ident $(: $($need:expr),+)?;)* })*) => {
        &[$($(Case {
            name: concat!(stringify!($group), "::", stringify!($case)),
            needs: &[$($($need),+)?],
            body: |end| Box::pin(crate::cases::$group::$case(end)),
        },)*)*]
    };
}

const CASES: &[Case] = cases! {
    operations {
        an_rc_send_arrives_whole_at_every_size: Carries(Rc, Send);
        a_uc_send_arrives_whole_at_every_size: Carries(Uc, Send);
        an_inline_send_arrives_whole_at_every_size: Carries(Rc, Send);
        inline_bytes_are_the_senders_again_after_the_post;
        inline_beyond_the_limit_is_refused;
        an_rc_write_lands_whole_at_every_size: Carries(Rc, Write);
        a_uc_write_lands_whole_at_every_size: Carries(Uc, Write);
        an_rc_write_with_imm_consumes_a_receive_at_every_size: Carries(Rc, WriteWithImm);
        a_uc_write_with_imm_consumes_a_receive_at_every_size: Carries(Uc, WriteWithImm);
        a_read_fetches_every_size: Carries(Rc, Read);
        immediates_arrive_bit_for_bit: Carries(Rc, SendWithImm);
        lengths_that_differ_are_refused;
        rc_carries_what_the_device_says;
        uc_carries_what_the_device_says;
        ud_carries_what_the_device_says;
        a_destination_belongs_to_datagrams;
    }
    datagram {
        a_datagram_lies_behind_the_route_header;
        a_datagram_over_the_mtu_is_refused;
        a_datagram_can_be_answered_from_its_source;
        a_datagram_arrives_once_its_receiver_is_active;
        a_datagram_with_a_wrong_key_is_dropped;
        a_datagram_without_a_receive_is_dropped;
        a_datagram_to_a_missing_queue_pair_is_dropped;
        one_queue_pair_reaches_many;
        datagrams_of_many_senders_meet_in_one_queue_pair;
        several_senders_use_each_receive_once;
    }
    ordering {
        a_later_write_is_never_seen_before_an_earlier;
        the_last_eight_bytes_of_a_write_land_last: OrderedWrites;
        a_write_with_imm_brings_its_data_first;
        a_relaxed_write_is_whole_when_it_completes;
        a_send_arrives_after_the_writes_before_it;
        a_read_sees_the_writes_before_it;
        send_completions_come_in_the_order_of_posting;
        a_list_of_sends_arrives_in_order;
    }
    atomics {
        compare_and_swap_swaps_only_what_it_expects: Atomics;
        fetch_and_add_wraps: Atomics;
        atomics_of_many_queue_pairs_lose_no_update: Atomics;
        compare_and_swap_makes_a_lock: Atomics;
        a_misaligned_atomic_is_refused: Atomics;
        an_atomic_of_another_size_is_refused: Atomics;
    }
    completions {
        an_unsignaled_success_is_silent;
        a_signaled_completion_gives_back_what_it_retires;
        a_full_send_queue_gives_back_the_rest_of_the_list;
        a_refused_request_comes_back_with_its_buffer;
        a_queue_full_of_unsignaled_requests_is_full;
        a_full_receive_queue_refuses_one_more;
        an_overrun_of_a_completion_queue_is_an_error;
        an_overrun_by_arrivals_is_an_error;
        a_completion_queue_holds_what_it_was_made_for;
        a_short_poll_leaves_the_rest_for_the_next;
        each_side_of_a_queue_pair_has_its_completion_queue;
        a_doorbell_rings_for_all_that_was_posted_under_it;
        a_small_completion_queue_serves_large_queue_pairs;
    }
    receiving {
        a_send_waits_for_a_receive;
        a_write_with_imm_waits_for_a_receive;
        finite_retries_end_in_an_error;
        finite_retries_find_a_late_receive;
        uc_drops_a_send_without_a_receive: Carries(Uc, Send);
        uc_drops_a_write_with_imm_without_a_receive: Carries(Uc, WriteWithImm);
        a_send_longer_than_its_receive_breaks_both_ends;
        a_receive_without_a_buffer_takes_an_empty_send;
        receives_are_consumed_in_the_order_of_posting;
        receives_may_be_posted_before_connecting;
        messages_sent_before_the_peer_connects_wait;
        both_directions_at_once_do_not_wait_for_each_other;
    }
    shared_receive {
        receives_serve_any_of_the_queue_pairs: SharedReceiveQueues;
        an_empty_shared_queue_makes_senders_wait: SharedReceiveQueues;
        a_broken_queue_pair_leaves_shared_receives_alone: SharedReceiveQueues;
        a_shared_queue_serves_another_domain: SharedReceivesOfOtherDomains;
        receives_are_posted_in_one_place_only: SharedReceiveQueues;
        datagrams_use_a_shared_queue: SharedReceiveQueues;
        a_send_longer_than_its_shared_receive_fails_at_both_ends: SharedReceiveQueues;
        shared_receives_may_differ_in_length: SharedReceiveQueues;
    }
    protection {
        an_unknown_key_is_refused;
        a_key_that_is_off_by_one_is_refused;
        bytes_outside_the_region_are_refused;
        an_address_that_overflows_is_refused;
        a_missing_right_is_refused;
        one_right_is_enough_for_its_operation;
        a_deregistered_region_is_refused;
        a_key_of_another_domain_is_refused;
        local_memory_of_another_domain_is_refused;
        uc_drops_a_write_with_a_bad_key: Carries(Uc, Write);
        an_access_error_breaks_only_its_queue_pair;
        made_up_keys_reach_nothing;
    }
    one_sided {
        a_failed_write_leaves_whole_packets: Carries(Rc, Write);
        a_write_beyond_its_region_leaves_whole_packets_at_most: Carries(Rc, Write);
        what_a_peer_takes_down_first_decides_the_error: Carries(Rc, Write);
        a_dropped_queue_pair_makes_no_completions;
        a_stopped_process_still_completes_writes: Carries(Rc, Write), Stop;
        an_atomic_that_failed_may_have_run: Atomics;
        a_line_of_a_read_is_read_first_word_first: Carries(Rc, Read), LinesFirstWordFirst;
        a_later_read_is_no_older: Carries(Rc, Read);
    }
    windows {
        a_bound_window_gives_its_peer_access: MemoryWindows;
        a_key_may_be_told_behind_its_binding: MemoryWindows;
        a_window_gives_the_access_it_was_bound_with: MemoryWindows;
        bytes_outside_a_window_are_refused: WindowBounds;
        a_key_is_for_the_peer_of_its_queue_pair: MemoryWindows;
        an_invalidated_key_is_refused: MemoryWindows;
        each_binding_has_a_key_of_its_own: MemoryWindows;
        nothing_lands_behind_an_invalidation: MemoryWindows;
        a_binding_that_cannot_be_is_refused: MemoryWindows;
        many_windows_share_a_region: MemoryWindows;
        a_write_through_a_window_wakes_its_owner: MemoryWindows, WriteEvents;
        windows_that_are_not_there_are_refused: NoMemoryWindows;
    }
    window_lifetime {
        a_window_keeps_its_region: MemoryWindows;
        a_window_is_free_when_its_queue_pair_is_gone: MemoryWindows;
        windows_that_come_and_go_leave_nothing: MemoryWindows, Usage;
    }
    persistence {
        persistent_memory_is_found_again_by_its_name: PersistentMemory;
        peers_use_persistent_memory_like_any_other: PersistentMemory;
        a_flush_completes_behind_the_writes_before_it: Flush, PersistentMemory;
        a_flush_reaches_persistent_memory_only: Flush, PersistentMemory;
        persistence_that_is_not_there_is_refused: NoPersistence;
    }
    errors {
        breaking_a_queue_pair_flushes_its_receives;
        breaking_a_queue_pair_flushes_its_sends;
        a_broken_queue_pair_takes_no_work;
        an_unconnected_queue_pair_sends_nothing;
        a_queue_pair_is_connected_once;
        bytes_that_are_no_endpoint_are_refused;
        requests_to_a_dropped_queue_pair_fail;
        requests_that_wait_fail_when_the_peer_drops;
        requests_to_a_broken_queue_pair_fail;
        requests_that_wait_fail_when_the_peer_breaks;
        connecting_to_a_missing_queue_pair_ends_in_an_error;
        a_new_queue_pair_receives_nothing_sent_to_an_old_one;
        a_failed_read_gives_back_its_buffer;
        messages_that_arrived_are_delivered_after_the_peer_has_left;
    }
    model {
        random_work_agrees_with_the_model;
    }
    limits {
        a_limit_is_kept_and_one_beyond_refused;
        capabilities_do_not_contradict_each_other;
        the_clock_does_not_go_back;
        an_unknown_device_is_refused_by_name;
        one_message_may_be_very_long;
    }
    lifetime {
        resources_may_be_dropped_in_any_order;
        a_queue_pair_outlives_the_handles_it_was_made_from;
        a_queue_pair_is_gone_before_its_memory;
        a_dropped_queue_pair_does_not_send_what_its_buffer_holds_later;
        a_dropped_queue_pair_does_not_write_into_memory_given_back;
        posted_receives_of_a_dropped_queue_pair_are_not_given_twice;
        connections_that_come_and_go_leave_nothing: Usage;
        regions_that_come_and_go_leave_nothing: Usage;
        datagram_peers_that_come_and_go_leave_nothing: Usage;
        devices_that_come_and_go_leave_nothing: Reopen, Usage;
        a_device_may_talk_to_itself;
        a_long_lived_datagram_queue_pair_forgets_peers_that_are_gone: Usage;
    }
    many {
        eighty_queue_pairs_share_a_completion_queue;
        a_busy_queue_pair_does_not_hide_a_quiet_one;
        a_queue_pair_that_leaves_takes_nothing_of_the_others;
        hundreds_of_connections_may_be_open_at_once;
        queue_pairs_may_be_used_from_threads_of_their_own: Threads, Atomics;
    }
    events {
        a_completion_wakes_a_sleeper: Events;
        no_wake_up_is_lost_between_two_sleepers: Events;
        no_wake_up_is_lost_in_bursts: Events;
        a_sleeping_sender_is_woken_by_a_late_receive: Events;
        one_channel_serves_several_completion_queues: Events;
        a_wait_ends_by_its_timeout: Events;
        a_wake_ends_a_wait: Events;
        the_channels_descriptor_tells_of_events: Events;
        a_message_before_the_arm_makes_an_event: Events;
        a_datagram_before_the_arm_makes_an_event: Events;
        a_flush_wakes_a_sleeper: Events;
        a_dropped_peer_wakes_a_sleeper: Events;
        a_queue_that_is_not_armed_wakes_no_sleeper: Events;
    }
    watching {
        watching_says_whether_writes_make_events: Events;
        a_write_into_an_armed_region_wakes_its_owner: Events, WriteEvents;
        a_write_before_the_arm_is_found_by_the_look: Events, WriteEvents;
        an_arm_makes_one_event: Events, WriteEvents;
        a_region_that_is_not_armed_wakes_nobody: Events, WriteEvents;
        reads_and_own_stores_make_no_event: Events, WriteEvents;
        no_write_is_slept_through: Events, WriteEvents;
        writers_of_many_regions_wake_one_sleeper: Events, WriteEvents;
    }
    death {
        a_peer_killed_under_writes_ends_them_in_errors: Kill, Usage;
        a_peer_killed_under_write_with_imm_ends_them_in_errors: Kill, Usage;
        a_peer_killed_under_sends_ends_them_in_errors: Kill, Usage;
        a_peer_killed_under_reads_ends_them_in_errors: Kill, Usage;
        a_killed_peer_wakes_a_sleeper: Kill, Events;
        a_killed_peer_ends_all_its_connections: Kill;
        connecting_to_a_killed_peer_ends_in_an_error: Kill;
        a_killed_sender_keeps_no_shared_receives: Kill, SharedReceiveQueues;
    }
};

/// All cases.
pub fn cases() -> &'static [Case] {
    CASES
}
