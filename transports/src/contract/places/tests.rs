//! Who has places, and who makes room, in virtual time.

use super::*;

const CROWD: Source = Source::Process(1);
const OTHER: Source = Source::Process(2);

fn at(time: Duration) -> Instant {
    Instant::ZERO + time
}

fn numbers(clients: &[Candidate]) -> Vec<u32> {
    clients.iter().map(|client| client.id.number).collect()
}

/// Where nobody is asked.
struct Nowhere;

impl AskForRoom for Nowhere {
    fn ask(&self, _: RoomRequest) -> bool {
        false
    }
}

fn of_one_half(limits: ClientLimits) -> Places {
    let mut places = Places::new(limits);
    places.add_half(usize::MAX, Weak::<Nowhere>::new());
    places
}

fn take_place(
    places: &mut Places,
    (source, identity): (Source, Option<&Identity>),
    now: Instant,
) -> Result<ClientId, SetupError> {
    let info = ClientInfo { identity: identity.cloned(), ..ClientInfo::default() };
    places.take(0, (source, &info), now)
}

fn candidates_of(places: &Places, source: Source, now: Instant) -> Vec<Candidate> {
    places.candidates(source, now).into_iter().map(|(_, client)| client).collect()
}

fn has_room(places: &Places) -> bool {
    places.check_room(0, Source::Unknown).is_ok()
}

/// Places for four clients of the crowd, which came a millisecond after each other.
fn crowded() -> Places {
    let mut places = of_one_half(ClientLimits::of(4));
    for age in 0..4 {
        take_place(&mut places, (CROWD, None), at(Duration::from_millis(age))).unwrap();
    }
    assert!(!has_room(&places));
    places
}

#[test]
fn a_number_that_comes_back_is_another_client() {
    let mut places = of_one_half(ClientLimits::of(2));
    let first = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap();
    let second = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap();
    assert_ne!(first.number, second.number);
    let full = take_place(&mut places, (OTHER, None), Instant::ZERO).unwrap_err().to_string();
    assert!(full.contains("2 clients"), "{full}");
    places.give_back((0, first.number));
    places.give_back((0, first.number));
    let third = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap();
    assert_eq!(third.number, first.number);
    assert_ne!(third.generation, first.generation);
    assert!(!has_room(&places));
}

#[test]
fn the_oldest_clients_that_have_not_called_make_room() {
    let places = crowded();
    let later = FIRST_CALL + Duration::from_millis(1);
    assert_eq!(numbers(&candidates_of(&places, CROWD, at(later))), [0, 1]);
    assert!(candidates_of(&places, CROWD, at(FIRST_CALL_OF_MANY * 2)).is_empty());
}

#[test]
fn a_source_with_many_clients_makes_room_early() {
    let places = crowded();
    let later = FIRST_CALL_OF_MANY + Duration::from_millis(1);
    assert_eq!(numbers(&candidates_of(&places, OTHER, at(later))), [0, 1]);
    assert!(candidates_of(&places, OTHER, at(FIRST_CALL_OF_MANY / 2)).is_empty());
}

#[test]
fn the_source_with_most_clients_is_first() {
    let mut places = of_one_half(ClientLimits::of(4));
    for source in [OTHER, CROWD, CROWD, CROWD] {
        take_place(&mut places, (source, None), Instant::ZERO).unwrap();
    }
    let found = candidates_of(&places, Source::Unknown, at(FIRST_CALL));
    assert_eq!(numbers(&found), [1, 2, 3, 0]);
}

#[test]
fn sources_with_as_many_clients_do_not_throw_each_other_out() {
    let mut places = of_one_half(ClientLimits::of(3));
    for source in [CROWD, CROWD, OTHER] {
        take_place(&mut places, (source, None), Instant::ZERO).unwrap();
    }
    assert!(candidates_of(&places, OTHER, at(FIRST_CALL_OF_MANY * 2)).is_empty());
}

#[test]
fn a_client_that_has_called_stays_until_it_has_been_idle_for_the_time_out() {
    let mut places = crowded();
    let looked_at = at(FIRST_CALL);
    let first = candidates_of(&places, OTHER, looked_at)[0].id;
    let calls = Calls::Ended(1);
    places.set_calls(0, &Candidate { id: first, calls }, looked_at);
    let candidates =
        |places: &Places, source, after: Duration| candidates_of(places, source, looked_at + after);
    let idle = places.limits.idle_timeout;
    assert_eq!(candidates(&places, OTHER, idle / 2)[0].id.number, 1);
    for client in candidates(&places, OTHER, idle / 2) {
        let calls = Calls::UnderWay;
        places.set_calls(0, &Candidate { calls, ..client }, looked_at + idle / 2);
    }
    assert!(candidates(&places, OTHER, idle * 3 / 4).is_empty());
    assert_eq!(candidates(&places, OTHER, idle), [Candidate { id: first, calls }]);
    assert!(candidates(&places, CROWD, idle).is_empty(), "its source has no fewer clients");
    // Another client of that number has not called.
    places.give_back((0, first.number));
    let next = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap();
    places.set_calls(0, &Candidate { id: first, calls }, looked_at);
    let fresh = Candidate { id: next, calls: Calls::None };
    assert!(candidates_of(&places, OTHER, at(FIRST_CALL)).contains(&fresh));
}

#[test]
fn a_source_that_has_all_that_it_may_have_leaves_room_for_others() {
    let limits = ClientLimits { max_per_source: 2, ..ClientLimits::of(4) };
    let mut places = of_one_half(limits);
    for source in [CROWD, OTHER, CROWD] {
        take_place(&mut places, (source, None), Instant::ZERO).unwrap();
    }
    let refused = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap_err();
    assert!(matches!(refused, SetupError::SourceFull(_)), "{refused}");
    // Its own clients make room for it, however few the others have.
    assert_eq!(numbers(&candidates_of(&places, CROWD, at(FIRST_CALL))), [0, 2]);
    take_place(&mut places, (OTHER, None), Instant::ZERO).unwrap();
    let full = take_place(&mut places, (CROWD, None), Instant::ZERO).unwrap_err();
    assert!(matches!(full, SetupError::Full(_)), "{full}");
}

#[test]
fn an_identity_with_as_many_connections_as_it_may_have_leaves_room_for_others() {
    let limits = ClientLimits { max_per_identity: 2, ..ClientLimits::of(8) };
    let mut places = of_one_half(limits);
    let (alice, bob) = (&Identity::named("alice"), &Identity::named("bob"));
    let mut take = |source, identity| {
        take_place(&mut places, (source, identity), Instant::ZERO).map(|id| id.number)
    };
    let first = take(CROWD, Some(alice)).unwrap();
    take(OTHER, Some(alice)).unwrap();
    let refused = take(Source::Unknown, Some(alice)).unwrap_err();
    assert!(matches!(refused, SetupError::IdentityFull(_)), "{refused}");
    assert!(refused.to_string().contains("alice"), "{refused}");
    // Others are not meant, and neither is a client that has not proven who it is.
    assert!(take(CROWD, Some(bob)).is_ok() && take(CROWD, None).is_ok());
    places.give_back((0, first));
    assert!(take_place(&mut places, (CROWD, Some(alice)), Instant::ZERO).is_ok());
}

/// Places for so many connections over two halves, and a way to take one for a lane.
fn of_two_halves(connections: usize) -> Places {
    let mut places = of_one_half(ClientLimits::of(connections));
    places.add_half(connections, Weak::<Nowhere>::new());
    places
}

fn lane(places: &mut Places, half: u32, id: u8) -> Result<ClientId, SetupError> {
    let connection = Some(ConnectionId::new([id; 16]));
    let info = ClientInfo { connection, ..ClientInfo::default() };
    places.take(half, (CROWD, &info), Instant::ZERO)
}

#[test]
fn lanes_of_a_connection_count_once_over_whichever_halves() {
    let mut places = of_two_halves(2);
    let first = lane(&mut places, 0, 1).unwrap();
    lane(&mut places, 1, 1).unwrap();
    lane(&mut places, 0, 2).unwrap();
    let refused = lane(&mut places, 1, 3).unwrap_err();
    assert!(matches!(refused, SetupError::Full(_)), "{refused}");
    // The lane that counted goes; its connection stays.
    places.leave((0, first.number));
    places.give_back((0, first.number));
    assert!(lane(&mut places, 0, 3).is_err() && !has_room(&places));
    assert!(lane(&mut places, 0, 1).is_ok(), "another lane of one that is here");
    for key in [(0, first.number), (1, 0)] {
        assert!(!has_room(&places));
        places.leave(key);
        places.give_back(key);
    }
    assert!(has_room(&places) && lane(&mut places, 1, 3).is_ok());
    assert!(!has_room(&places));
}

#[test]
fn a_connection_that_is_torn_down_gets_no_further_lane() {
    let mut places = of_two_halves(2);
    let first = lane(&mut places, 0, 1).unwrap();
    places.leave((0, first.number));
    assert!(places.will_have_room(0, CROWD));
    lane(&mut places, 1, 1).unwrap();
    assert!(lane(&mut places, 1, 2).is_err(), "both places are taken until the first is free");
    places.give_back((0, first.number));
    assert!(lane(&mut places, 1, 2).is_ok());
}

#[test]
fn a_half_has_no_more_clients_than_it_has_memory_for() {
    let mut places = Places::new(ClientLimits::of(8));
    let half = places.add_half(1, Weak::<Nowhere>::new());
    lane(&mut places, half, 1).unwrap();
    for id in [1, 2] {
        let refused = lane(&mut places, half, id).unwrap_err();
        assert!(matches!(refused, SetupError::Full(_)), "{refused}");
    }
    places.forget_half(half);
    assert_eq!((places.connections, places.taken.len()), (0, 0));
    assert!(lane(&mut places, half, 1).is_err(), "it is gone");
}
