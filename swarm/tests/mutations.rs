//! The swarm finds each planted bug, and fails nowhere without one.

use farcall_core::planted::Bug as CoreBug;
use farcall_swarm::{Mutation, Outcome, Setting, Sweep, Trace, run_seed, sweep};
use farcall_transports::planted::Bug;

/// Every planted bug is found within this many seeds.
const SEEDS: u64 = 200;

/// Runs the part of a seed that shows the planted bug: without one, the key-value store.
fn store(seed: u64, setting: Setting, trace: &Trace) -> Outcome {
    run_seed(seed, setting, trace).swap_remove(0)
}

#[track_caller]
fn is_found(mutation: Mutation, by: &[&str]) {
    is_found_in(None, mutation, by);
}

#[track_caller]
fn is_found_in(backend: Option<&'static str>, mutation: Mutation, by: &[&str]) {
    let sound = Setting { backend, ..Setting::default() };
    let planted = Setting { mutation: Some(mutation), ..sound };
    let Sweep { failure, .. } = sweep(1, SEEDS, 2, planted);
    let Some(failure) = failure else { panic!("{mutation} was not found in {SEEDS} seeds") };
    let what = failure.failure.clone().unwrap_or_default();
    assert!(by.iter().any(|sign| what.contains(sign)), "{mutation}: another bug? {failure}");
    let again = store(failure.seed, planted, &Trace::Off);
    assert_eq!(
        (again.hash, again.failure),
        (failure.hash, failure.failure),
        "seed {}",
        failure.seed
    );
    for without in run_seed(failure.seed, sound, &Trace::Off) {
        assert_eq!(
            without.failure, None,
            "seed {} without the planted bug: {without}",
            failure.seed
        );
    }
}

#[test]
fn an_acknowledgement_before_durability_is_found() {
    is_found(Mutation::EarlyAcknowledgement, &["is not linearizable"]);
}

#[test]
fn a_duplicate_execution_after_a_retry_is_found() {
    // What is put twice may undo what was put between.
    is_found(Mutation::BlindRetry, &["times", "is not linearizable"]);
}

#[test]
fn a_lost_wake_up_is_found() {
    is_found(Mutation::LostWakeUp, &["the call's deadline passed", "did not end in time"]);
}

#[test]
fn a_slot_that_is_reused_too_early_is_found() {
    let signs =
        ["malformed message", "is not linearizable", "that were never put", "deadline passed"];
    is_found(Mutation::EarlyReuse, &signs);
}

#[track_caller]
fn is_found_in_datagram(bug: Bug, by: &[&str]) {
    is_found_in(Some("datagram"), Mutation::Datagram(bug), by);
}

#[test]
fn a_lost_duplicate_check_is_found() {
    is_found_in_datagram(Bug::LostDuplicateCheck, &["times"]);
}

#[test]
fn a_credit_that_is_returned_twice_is_found() {
    let signs = ["deadline passed", "did not end in time", "was not reserved"];
    is_found_in_datagram(Bug::DoubleCredit, &signs);
}

#[test]
fn a_response_that_is_forgotten_before_it_is_acknowledged_is_found() {
    is_found_in_datagram(Bug::ForgottenResponse, &["a response shorter than its header"]);
}

#[test]
fn packets_of_an_earlier_connection_are_found() {
    let signs = ["times", "malformed message", "is not linearizable", "deadline passed"];
    is_found_in_datagram(Bug::FormerLife, &signs);
}

/// By hostile clients, which are the only ones that send such messages.
#[test]
fn a_length_that_is_not_checked_is_found() {
    let bug = Mutation::WriteImm(Bug::UncheckedLength);
    is_found_in(Some("write_imm"), bug, &["out of range"]);
}

#[test]
fn a_quota_of_calls_that_is_not_checked_is_found() {
    let bug = Mutation::WriteImm(Bug::Core(CoreBug::UncheckedQuota));
    is_found_in(Some("write_imm"), bug, &["calls ran where the quota allows"]);
}

#[track_caller]
fn is_found_by_hostile_clients_of_datagram(bug: Bug, by: &[&str]) {
    is_found_in(Some("datagram"), Mutation::HostileDatagram(bug), by);
}

/// By hostile clients that send requests before they know what their datagrams must carry.
#[test]
fn an_epoch_that_is_not_checked_is_found() {
    is_found_by_hostile_clients_of_datagram(Bug::UncheckedEpoch, &["is not its sender's to send"]);
}

#[test]
fn a_window_that_is_not_checked_is_found() {
    is_found_by_hostile_clients_of_datagram(Bug::UncheckedWindow, &["is not its sender's to send"]);
}

/// By a hostile client that asks for all memory for large messages.
#[test]
fn a_share_of_the_memory_that_is_not_checked_is_found() {
    is_found_by_hostile_clients_of_datagram(
        Bug::UncheckedShare,
        &["a call beside hostile clients"],
    );
}

#[track_caller]
fn is_found_in_rfp(bug: Bug, by: &[&str]) {
    is_found_in(Some("rfp"), Mutation::Rfp(bug), by);
}

#[test]
fn a_line_of_any_lap_is_found() {
    let signs = ["a line that no response begins with", "the server is gone"];
    is_found_in_rfp(Bug::UncheckedLap, &signs);
}

#[test]
fn a_torn_line_that_is_taken_for_whole_is_found() {
    // What is behind the word is of the lap before: an answer of an earlier call, or nothing.
    let signs = ["a message that no request waits for", "malformed message"];
    is_found_in_rfp(Bug::BelievedFirstWord, &signs);
}

#[test]
fn responses_left_behind_in_a_switch_are_found() {
    is_found_in_rfp(Bug::SkippedDrain, &["deadline passed", "did not end in time"]);
}

#[test]
fn a_cancellation_of_the_next_call_is_found() {
    is_found_in_rfp(Bug::OvertakenOperation, &["the server is gone", "cancelled"]);
}

#[test]
fn a_place_that_changes_hands_too_early_is_found() {
    let signs = ["deadline passed", "did not end in time"];
    is_found_in(Some("scale"), Mutation::Scale(Bug::EarlySwitch), &signs);
}

#[track_caller]
fn is_found_with_lanes(bug: Bug, by: &[&str]) {
    is_found(Mutation::Lanes(bug), by);
}

#[test]
fn a_quota_for_each_lane_of_a_connection_is_found() {
    let signs = ["ran where its quota allows"];
    is_found_with_lanes(Bug::Core(CoreBug::QuotaOfLanes), &signs);
}

#[test]
fn a_lane_on_another_thread_is_found() {
    is_found_with_lanes(Bug::LaneOnAnyThread, &["ran where its quota allows"]);
}

#[test]
fn a_lane_for_another_identity_is_found() {
    is_found_with_lanes(Bug::UncheckedIdentity, &["let in where it must be refused"]);
}

#[test]
fn connections_that_are_counted_for_good_are_found() {
    is_found_with_lanes(Bug::ForgottenEnd, &["not let in: ", "let in where"]);
}

#[track_caller]
fn is_found_while_it_moves(bug: Bug, by: &[&str]) {
    is_found_in(Some("hybrid"), Mutation::Hybrid(bug), by);
}

#[test]
fn a_call_that_is_posted_on_both_lanes_is_found() {
    is_found_while_it_moves(Bug::PostedTwice, &["ran more than once"]);
}

#[test]
fn a_credit_that_is_never_given_back_is_found() {
    is_found_while_it_moves(Bug::LostCredit, &["calls at once, and the window is"]);
}

#[test]
fn an_answer_that_is_taken_for_that_of_a_call_on_the_other_lane_is_found() {
    is_found_while_it_moves(Bug::MistakenAnswer, &["answered with what is not its own"]);
}

#[test]
fn an_opening_of_a_lane_that_holds_up_calls_is_found() {
    is_found_while_it_moves(Bug::BlockingOpening, &["and nothing goes wrong"]);
}

/// By a hostile server.
#[test]
fn advice_that_is_believed_whatever_it_costs_is_found() {
    let signs = ["where the server leads its client", "as the server advises"];
    is_found_in(Some("hybrid"), Mutation::Advice(Bug::BelievedAdvice), &signs);
}

#[track_caller]
fn is_found_in_lent_memory(bug: Bug, by: &[&str]) {
    is_found(Mutation::Memory(bug), by);
}

#[test]
fn a_revoke_that_returns_too_early_is_found() {
    let signs =
        ["although the owner had taken it back", "is none that it ever had", "was taken back"];
    is_found_in_lent_memory(Bug::EarlyRevoke, &signs);
}

#[test]
fn an_epoch_that_is_not_compared_is_found() {
    let signs = [
        "although the owner had taken it back",
        "of what was not lent",
        "is none that it ever had",
    ];
    is_found_in_lent_memory(Bug::UncheckedLend, &signs);
}

#[test]
fn a_window_that_is_one_byte_too_long_is_found() {
    is_found_in_lent_memory(
        Bug::LongWindow,
        &["of what was not lent", "has changed while it was not lent"],
    );
}

#[test]
fn a_lease_that_ends_by_the_readers_clock_is_found() {
    let signs = ["although its lease was over", "is none that it ever had"];
    is_found_in_lent_memory(Bug::LeaseOfReader, &signs);
}

#[test]
fn a_buffer_that_is_used_again_before_the_device_has_left_it_is_found() {
    let signs = ["is none that it ever had", "two additions found"];
    is_found_in_lent_memory(Bug::ReusedOnCancel, &signs);
}

#[test]
fn a_seed_is_the_same_run_again_whether_it_is_traced_or_not() {
    let sound = Setting::default();
    for seed in 1..6 {
        let (first, again) =
            (run_seed(seed, sound, &Trace::Off), run_seed(seed, sound, &Trace::Last(100)));
        for (first, again) in first.iter().zip(&again) {
            assert_eq!(first.failure, None, "{first}");
            assert_eq!((first.hash, first.now_ns), (again.hash, again.now_ns), "seed {seed}");
            assert_eq!(first.counts, again.counts, "seed {seed}");
            assert!(!again.trace.is_empty() && first.trace.is_empty());
        }
    }
    let hashes = [6, 7].map(|seed| store(seed, sound, &Trace::Off).hash);
    assert_ne!(hashes[0], hashes[1]);
}
