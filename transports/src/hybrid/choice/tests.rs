//! Tests of the choice.

use super::*;
use crate::hybrid::pace::OF_CLIENT;

/// What a connection on these ways does, whose calls take `per_call(way, ms)` ns. Gives the way of each look.
struct Run {
    choice: Choice,
    now: Instant,
    at: usize,
    /// The part of the looks on another way than home.
    away: u32,
    moves: u32,
}

impl Run {
    fn new(ways: usize, seed: u64) -> Run {
        let choice = Choice::new(ways, 0, seed, &OF_CLIENT);
        Run { choice, now: Instant::from_nanos(1), at: 0, away: 0, moves: 0 }
    }

    fn look(&mut self, answers: u64, per_call_ns: impl Fn(usize) -> f64) -> Step {
        self.now = self.now.saturating_add_nanos(LOOK_NS);
        let under_way_ns = (answers as f64 * per_call_ns(self.at)) as u64;
        if per_call_ns(self.at) == 0.0 {
            self.choice.none_under_way(self.now);
        }
        let step = self.choice.look(Measured { answers, under_way_ns }, Lanes::One, self.now);
        match step {
            Step::Stay | Step::Leave => {}
            Step::Try(way) | Step::Go(way) => {
                self.at = way;
                self.choice.moved(self.now);
            }
            Step::Keep { .. } => self.moves += 1,
            Step::Return { .. } => self.at = self.choice.home(),
        }
        self.away += u32::from(self.at != self.choice.home());
        step
    }

    fn looks(&mut self, looks: u32, per_call_ns: impl Fn(usize) -> f64) {
        for _ in 0..looks {
            self.look(100, &per_call_ns);
        }
    }
}

#[test]
fn calls_move_to_the_quickest_way_and_stay() {
    for seed in 1..50 {
        let mut run = Run::new(4, seed);
        run.looks(400, |way| [2000.0, 3000.0, 900.0, 1200.0][way]);
        assert_eq!(run.choice.home(), 2, "{seed}");
        assert!(run.moves <= 2, "{seed}: {} moves", run.moves);
    }
}

#[test]
fn ways_that_are_no_better_are_tried_less_and_less() {
    for seed in 1..50 {
        let mut run = Run::new(5, seed);
        let within_noise = |way| [1000.0, 2000.0, 970.0, 1010.0, 9000.0][way];
        run.looks(20_000, within_noise);
        assert_eq!((run.choice.home(), run.moves), (0, 0), "{seed}");
        run.away = 0;
        run.looks(20_000, within_noise);
        assert!(run.away < 200, "{seed}: {} of 20,000 looks", run.away);
    }
}

#[test]
fn a_load_that_changes_is_answered_soon() {
    for seed in 1..50 {
        let mut run = Run::new(3, seed);
        run.looks(20_000, |way| [1000.0, 2000.0, 2000.0][way]);
        run.looks(60, |way| [5000.0, 3000.0, 1500.0][way]);
        assert_eq!(run.choice.home(), 2, "{seed}");
        run.looks(20_000, |way| [5000.0, 3000.0, 1500.0][way]);
        run.looks(60, |way| [500.0, 600.0, 900.0][way]);
        assert_eq!(run.choice.home(), 0, "{seed}");
    }
}

#[test]
fn a_load_that_changes_all_the_time_is_tried_no_more_than_a_steady_one() {
    let mut run = Run::new(5, 9);
    for phase in 0..4_000 {
        if phase == 2_000 {
            run.away = 0;
        }
        let load = if phase % 2 == 0 { 1.0 } else { 20.0 };
        run.looks(10, |way| load * [1000.0, 1500.0, 1500.0, 1500.0, 1500.0][way]);
    }
    assert!(run.away < 600, "{} of 20,000 looks", run.away);
}

#[test]
fn a_far_worse_way_is_left_at_once() {
    let mut run = Run::new(2, 7);
    run.looks(40, |way| [1000.0, 5000.0][way]);
    assert!(run.away <= 3 && run.choice.home() == 0, "{}", run.away);
}

#[test]
fn without_calls_nothing_is_tried_and_a_trial_ends() {
    let mut run = Run::new(3, 7);
    for _ in 0..10_000 {
        assert_eq!(run.look(0, |_| 0.0), Step::Stay);
    }
    while run.look(100, |_| 1000.0) == Step::Stay {}
    let deadline = run.choice.deadline().unwrap();
    let ended = (0..).find(|_| run.look(0, |_| 0.0) != Step::Stay).unwrap();
    assert!(run.now >= deadline && ended < 200);
    assert_eq!((run.at, run.choice.deadline()), (0, None));
}

#[test]
fn a_way_on_which_calls_hang_is_left_soon_and_tried_less_and_less() {
    let mut run = Run::new(2, 7);
    let (mut away, mut tried) = (0, 0);
    for _ in 0..20_000 {
        let answers = if run.at == 1 { 0 } else { 100 };
        let step = run.look(answers, |_| 1000.0);
        tried += u32::from(matches!(step, Step::Try(_)));
        away = if run.at == 1 { away + 1 } else { 0 };
        assert!(away <= 5, "{away} looks");
    }
    assert_eq!(run.choice.home(), 0);
    assert!((4..=12).contains(&tried), "tried {tried} times in 10 s");
}

#[test]
fn a_way_that_seemed_better_and_is_not_is_left_for_the_one_before() {
    for seed in 1..20 {
        let mut run = Run::new(4, seed);
        let mut looks = 0;
        while run.choice.home() != 2 {
            run.look(100, |way| [1000.0, 2000.0, 800.0, 2000.0][way]);
            looks += 1;
            assert!(looks < 400, "{seed}");
        }
        // Within twice the time that calls took before: no other load.
        run.looks(40, |way| [1000.0, 2000.0, 1250.0, 2000.0][way]);
        assert_eq!(run.choice.home(), 0, "{seed}");
    }
}

#[test]
fn clients_do_not_try_in_step() {
    let first_returns: Vec<_> = (1..20)
        .map(|seed: u64| {
            let mut run = Run::new(3, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            run.looks(300, |_| 1000.0);
            run.choice.ways.iter().map(|way| way.next_trial).collect::<Vec<_>>()
        })
        .collect();
    for (index, ways) in first_returns.iter().enumerate() {
        assert!(!first_returns[..index].contains(ways));
    }
}

#[test]
fn a_way_that_cannot_be_opened_is_tried_again_after_a_pause() {
    let mut choice = Choice::new(2, 0, 3, &OF_CLIENT);
    let (mut now, mut tried) = (Instant::ZERO, Vec::new());
    let calls = Measured { answers: 100, under_way_ns: 100_000 };
    for _ in 0..4_000 {
        now = now.saturating_add_nanos(LOOK_NS);
        if choice.look(calls, Lanes::One, now) == Step::Try(1) {
            tried.push(now);
            choice.not_opened(now);
        }
    }
    assert!((5..9).contains(&tried.len()), "{tried:?}");
    let pauses: Vec<_> = tried.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted(), "{pauses:?}");
}

#[test]
fn a_lane_that_ends_leaves_the_choice_with_the_other() {
    let mut run = Run::new(2, 3);
    while !matches!(run.look(100, |_| 1000.0), Step::Try(_)) {}
    run.choice.lost(0, run.now);
    assert_eq!((run.choice.home(), run.choice.deadline()), (0, None));
    run.at = 0;
    while !matches!(run.look(100, |_| 1000.0), Step::Try(_)) {}
    run.choice.lost_home(run.now);
    assert_eq!((run.choice.home(), run.choice.deadline()), (1, None));
}

#[test]
fn advice_is_followed_without_trials_and_given_up_when_the_server_takes_it_back() {
    for seed in 1..50 {
        let mut run = Run::new(4, seed);
        run.choice.advise(Some(2), run.now);
        run.looks(20, |_| 1000.0);
        assert_eq!(run.at, 2, "{seed}");
        for _ in 0..2_000 {
            assert_eq!(run.look(100, |_| 1000.0), Step::Stay);
        }
        run.choice.advise(None, run.now);
        run.looks(2, |_| 1000.0);
        assert_eq!((run.at, run.choice.home()), (0, 0), "{seed}");
    }
}

#[test]
fn advice_that_harms_is_left_and_not_followed_again() {
    let mut run = Run::new(3, 7);
    let per_call = |way| [1000.0, 1000.0, 5000.0][way];
    run.looks(3, per_call);
    run.choice.advise(Some(2), run.now);
    run.looks(20, per_call);
    assert_eq!(run.at, 0);
    for _ in 0..1_000 {
        run.choice.advise(Some(2), run.now);
        // Its own trials may take it there, and end as others do.
        assert_ne!(run.look(100, per_call), Step::Go(2));
    }
}

/// The machine holds a look up now and then: that is no other load, and has nothing tried again.
#[test]
fn looks_that_are_held_up_have_nothing_tried() {
    let mut run = Run::new(4, 7);
    let per_call = |way| if way == 0 { 1000.0 } else { 3000.0 };
    run.looks(400, per_call);
    let (mut tries, away) = (0, run.away);
    for look in 0..2_000 {
        let held_up = if look % 50 == 0 { 10.0 } else { 1.0 };
        let step = run.look(100, |way| held_up * per_call(way));
        tries += u32::from(matches!(step, Step::Try(_)));
    }
    assert!(tries <= 6, "{tries} trials of 3 ways in a second");
    assert!(run.away - away < 20, "{} looks", run.away - away);
}

/// A hostile server advises a good way first, or the one that the client tries just then.
#[test]
fn a_way_that_harms_is_left_whatever_the_client_did_before() {
    let per_call = |way| [1000.0, 1000.0, 5000.0][way];
    let mut run = Run::new(3, 7);
    run.looks(3, per_call);
    run.choice.advise(Some(1), run.now);
    run.looks(40, per_call);
    assert_eq!(run.at, 1);
    run.choice.advise(Some(2), run.now);
    run.looks(40, per_call);
    assert_eq!(run.at, 1);
    let mut run = Run::new(3, 7);
    while run.look(10, per_call) != Step::Try(2) {}
    run.choice.advise(Some(2), run.now);
    run.looks(40, per_call);
    assert_eq!(run.at, 0);
}

/// Home is bad when all clients are there.
#[test]
fn after_an_advised_way_that_harms_calls_take_the_one_that_was_advised_before() {
    for seed in 1..50 {
        let mut run = Run::new(4, seed);
        run.looks(3, |_| 1000.0);
        run.choice.advise(Some(1), run.now);
        run.looks(40, |_| 1000.0);
        run.choice.advise(Some(2), run.now);
        let in_crowd = |way| [9000.0, 1000.0, 5000.0, 1000.0][way];
        let mut ways = vec![run.at];
        for _ in 0..100 {
            run.look(100, in_crowd);
            ways.push(run.at);
        }
        ways.dedup();
        assert_eq!(ways, [1, 2, 1], "{seed}");
        run.choice.advise(Some(1), run.now);
        assert!((0..100).all(|_| run.look(100, in_crowd) == Step::Stay), "{seed}: it is there");
        run.choice.advise(Some(3), run.now);
        run.looks(20, in_crowd);
        assert_eq!(run.at, 3, "{seed}");
    }
}

/// A hostile server cannot keep a client there.
#[test]
fn the_way_that_was_advised_before_is_left_if_it_harms_now() {
    let mut run = Run::new(3, 7);
    run.looks(3, |_| 1000.0);
    run.choice.advise(Some(1), run.now);
    run.looks(40, |_| 1000.0);
    run.choice.advise(Some(2), run.now);
    // Far worse than with the one look that still counts for the way that is left.
    let looks = (0..100).map(|_| run.look(100, |way| [1000.0, 20_000.0, 20_000.0][way]));
    let moves: Vec<_> = looks.filter(|step| matches!(step, Step::Go(_))).collect();
    assert_eq!(moves, [2, 1, 0].map(Step::Go));
}

/// Whatever a hostile server says, a client moves seldom.
#[test]
fn advice_that_changes_all_the_time_moves_a_client_seldom() {
    let mut run = Run::new(4, 7);
    let mut moves = 0;
    for look in 0..2_000 {
        run.choice.advise(Some(look % 4), run.now);
        moves += u32::from(matches!(run.look(100, |_| 1000.0), Step::Go(_)));
    }
    // Those of the beginning, one in 20 ms, and as many back.
    assert!((10..=132).contains(&moves), "{moves} moves in a second");
}

#[test]
fn an_advised_way_that_cannot_be_opened_is_not_asked_for_again() {
    let mut choice = Choice::new(2, 0, 3, &OF_CLIENT);
    let mut now = Instant::ZERO;
    let calls = Measured { answers: 100, under_way_ns: 100_000 };
    let mut asked = 0;
    for _ in 0..400 {
        now = now.saturating_add_nanos(LOOK_NS);
        choice.advise(Some(1), now);
        if choice.look(calls, Lanes::One, now) == Step::Go(1) {
            asked += 1;
            choice.not_opened(now);
        }
    }
    assert_eq!((asked, choice.home()), (1, 0));
}

#[test]
fn the_other_lane_is_left_before_a_third_way_is_gone() {
    let mut run = Run::new(3, 7);
    run.choice.advise(Some(2), run.now);
    run.now = run.now.saturating_add_nanos(ADVISED_LATER_NS);
    let calls = Measured { answers: 100, under_way_ns: 100_000 };
    assert_eq!(run.choice.look(calls, Lanes::Two(1), run.now), Step::Leave);
    assert_eq!(run.choice.look(calls, Lanes::Two(2), run.now), Step::Go(2));
}

/// A client that shares its core with others, whose thread has it for some looks: it makes many calls then, and few otherwise, whatever way
/// they take.
fn on_a_shared_core(run: &mut Run, looks: u32, per_call_ns: impl Fn(usize) -> f64) -> u32 {
    let (mut dice, moves) = (7u64, run.moves);
    for _ in 0..looks {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (answers, held_up_ns) =
            [(4, 20_000.0), (4, 10_000.0), (8, 15_000.0), (500, 0.0)][(dice >> 62) as usize];
        run.look(answers, |way| per_call_ns(way) + held_up_ns);
    }
    run.moves - moves
}

#[test]
fn what_a_shared_core_does_moves_hardly_a_client() {
    let moves: u32 =
        (1..20).map(|seed| on_a_shared_core(&mut Run::new(5, seed), 20_000, |_| 2700.0)).sum();
    assert!(moves <= 2 * 19, "{moves} moves of 19 clients in 10 s");
}

#[test]
fn a_better_way_is_found_on_a_shared_core() {
    for seed in 1..20 {
        let mut run = Run::new(3, seed);
        on_a_shared_core(&mut run, 4_000, |way| [5000.0, 1000.0, 5000.0][way]);
        assert_eq!(run.choice.home(), 1, "{seed}");
    }
}
