//! A connection that moves while a large message is under way on it.

use std::thread;
use std::time::{Duration, Instant};

use farcall::{MoveEvent, Server};

/// Longer than any test, even on two busy cores.
const BOUND: Duration = Duration::from_secs(240);

#[farcall::service]
trait Sums {
    /// A sum of the bytes.
    fn sum(&self, bytes: &[u8]) -> u64;
    fn add(&self, left: u64, right: u64) -> u64;
}

#[derive(Clone)]
struct Summing;

impl Sums for Summing {
    fn sum(&self, bytes: &[u8]) -> u64 {
        sum_of(bytes)
    }

    fn add(&self, left: u64, right: u64) -> u64 {
        left.wrapping_add(right)
    }
}

/// Of some bytes of each page: others call while the handler runs.
fn sum_of(bytes: &[u8]) -> u64 {
    let some = bytes.iter().zip(0u64..).step_by(1021);
    let weighted = some.map(|(byte, place)| u64::from(*byte).wrapping_mul(place + 1));
    weighted.fold(bytes.len() as u64, u64::wrapping_add)
}

/// Sends messages of so many bytes until the connection has moved so often, and makes small calls all the time.
fn moves_under(bytes: usize, moves: u64) {
    let address =
        format!("shm://hybrid-large-{}-{bytes}?backend=hybrid&max_message=1g", std::process::id());
    let server = Server::builder().service(SumsServer::new(Summing)).threads(1);
    let server = server.listen(&*address).unwrap();
    let client = SumsClient::connect(&*address).timeout(BOUND).wait().unwrap();
    let metrics = client.channel().metrics();
    let message: Vec<u8> = (0..bytes).map(|place| (place * 7 + place / 251) as u8).collect();
    let expected = sum_of(&message);
    let deadline = Instant::now() + BOUND;
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while sent == 0 || metrics.moves(MoveEvent::Tried) < moves {
                assert_eq!(client.sum(&message).wait(), Ok(expected));
                assert!(Instant::now() < deadline, "it does not move");
                sent += 1;
            }
        });
        for number in 0.. {
            if sending.is_finished() {
                break;
            }
            assert_eq!(client.add(number, 1).wait(), Ok(number + 1));
        }
    });
    assert_eq!(metrics.moves(MoveEvent::LaneLost), 0);
    server.shutdown();
}

#[test]
fn messages_of_some_mebibytes_arrive_while_it_moves() {
    moves_under(8 << 20, 4);
}

#[test]
#[ignore = "takes 3 GiB of memory"]
fn a_message_of_1_gib_arrives_while_it_moves() {
    moves_under((1 << 30) - 4096, 2);
}
