//! Pipelining with the polling client: the window is kept full, and the answers are taken in order.
//!
//! ```sh
//! cargo run --release --example window
//! ```

use std::collections::VecDeque;
use std::time::Instant;

use farcall::{RpcError, Server};

#[farcall::service]
trait Arithmetic {
    fn square(&self, number: u64) -> u64;
}

struct Calculator;

impl Arithmetic for Calculator {
    fn square(&self, number: u64) -> u64 {
        number * number
    }
}

const CALLS: u64 = 20_000;

/// Waits for each answer before the next call.
fn one_at_a_time(client: &mut ArithmeticPollClient) -> Result<u64, RpcError> {
    let mut sum = 0;
    for number in 0..CALLS {
        sum += client.square(number)?;
    }
    Ok(sum)
}

/// Has as many calls outstanding as the connection's window allows.
fn with_full_window(client: &mut ArithmeticPollClient) -> Result<u64, RpcError> {
    let window = client.connection().window() as usize;
    let mut numbers = 0..CALLS;
    let mut calls = VecDeque::with_capacity(window);
    let mut sum = 0;
    loop {
        // A start beyond the window returns `RpcError::Overloaded`.
        while calls.len() < window
            && let Some(number) = numbers.next()
        {
            calls.push_back(client.start_square(number)?);
        }
        if calls.is_empty() {
            return Ok(sum);
        }
        // Sends what was started, under one doorbell, and takes what has arrived.
        client.poll();
        // Answers may arrive in any order; these are taken in the order of their calls.
        while let Some(oldest) = calls.front_mut()
            && let Some(answer) = client.take(oldest)
        {
            sum += answer?;
            calls.pop_front();
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = format!("shm://window-{}", std::process::id());
    let server = Server::builder().service(ArithmeticServer::new(Calculator)).listen(&address)?;
    let mut client = ArithmeticPollClient::connect(&address).wait()?;

    type Way = fn(&mut ArithmeticPollClient) -> Result<u64, RpcError>;
    let ways: [(&str, Way); 2] =
        [("one at a time", one_at_a_time), ("with a full window", with_full_window)];
    for (name, way) in ways {
        let begun = Instant::now();
        let sum = way(&mut client)?;
        assert_eq!(sum, (0..CALLS).map(|number| number * number).sum());
        let each = begun.elapsed() / CALLS as u32;
        println!("{name}: {each:?} for each of {CALLS} calls");
    }
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
