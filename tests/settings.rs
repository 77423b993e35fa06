//! Settings at their edges: none makes a thread panic, or a server that nobody can reach. What cannot work is refused with the reason.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farcall::ping::{PingClient, PingPollClient};
use farcall::{
    Address, BindError, ConnectError, ReconnectPolicy, RunningServer, Server, ServerBuilder,
};

#[farcall::service]
trait Increment {
    fn one(&self, number: u32) -> u32;
}

struct Numbers;

impl Increment for Numbers {
    fn one(&self, number: u32) -> u32 {
        number + 1
    }
}

const BOUND: Duration = Duration::from_secs(20);

/// Timeouts that no clock has room for, or only just.
const LONG: [Duration; 4] = [
    Duration::from_secs(100 * 365 * 24 * 3600),
    Duration::from_secs(1 << 40),
    Duration::from_secs(u64::MAX / 4),
    Duration::MAX,
];

fn addresses() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    [format!("shm://settings-{}-{next}", std::process::id()), "tcp://127.0.0.1:0".to_owned()]
}

fn builder() -> ServerBuilder {
    Server::builder().service(IncrementServer::new(Numbers))
}

fn call(server: &RunningServer) {
    let client = IncrementClient::connect(server.address()).wait().expect("it connects");
    assert_eq!(client.one(1).wait(), Ok(2));
}

#[test]
fn clients_take_any_time_to_dial() {
    for address in addresses() {
        let server = builder().listen(address.as_str()).unwrap();
        for long in LONG {
            let client = IncrementClient::connect(server.address()).dial_timeout(long).wait();
            assert_eq!(client.expect("it connects").one(1).wait(), Ok(2), "{address}, {long:?}");
            let client = PingPollClient::connect(server.address()).dial_timeout(long).wait();
            let pong = client.expect("it connects").ping(b"x"[..].into());
            assert!(pong.is_ok(), "{address}, {long:?}: {pong:?}");
        }
        for none in [Duration::ZERO, Duration::from_nanos(1)] {
            let client = PingClient::connect(server.address()).dial_timeout(none).wait();
            assert!(
                matches!(client, Err(ConnectError::TimedOut { after, .. }) if after == none),
                "{address}, {none:?}: {client:?}"
            );
        }
    }
}

#[test]
fn clients_take_any_time_for_calls_and_pauses() {
    for address in addresses() {
        let server = builder().listen(address.as_str()).unwrap();
        for long in LONG {
            let policy = ReconnectPolicy::default().give_up_after(long).pauses(long, long);
            let client = IncrementClient::connect(server.address()).timeout(long).reconnect(policy);
            let client = client.wait().expect("it connects");
            assert_eq!(client.one(1).wait(), Ok(2), "{address}, {long:?}");
            assert_eq!(client.one(1).timeout(long).wait(), Ok(2), "{address}, {long:?}");
        }
        let began = Instant::now();
        server.shutdown_within(Duration::MAX);
        assert!(began.elapsed() < BOUND, "{address}: nothing is in flight");
    }
}

#[test]
fn servers_take_any_time_for_a_handshake_but_none() {
    for address in addresses() {
        for long in LONG {
            let server = builder().handshake_timeout(long).listen(address.as_str()).unwrap();
            call(&server);
            call(&server);
            assert!(server.is_healthy());
        }
        let none = builder().handshake_timeout(Duration::ZERO).listen(address.as_str());
        refused(none, "handshake_timeout");
    }
}

#[test]
fn servers_take_any_number_of_clients_and_calls_that_they_have_room_for() {
    for address in addresses() {
        let listen = |builder: ServerBuilder| builder.listen(address.as_str());
        for most in [1, usize::MAX] {
            let server = listen(builder().max_clients(most)).unwrap();
            call(&server);
        }
        refused(listen(builder().max_clients(0)), "max_clients");
        for calls in [1, 1 << 20] {
            let server = listen(builder().async_calls(calls)).unwrap();
            call(&server);
            assert!(server.is_healthy());
        }
        refused(listen(builder().async_calls(0)), "async_calls");
        refused(listen(builder().async_calls(usize::MAX)), "async_calls");
    }
}

#[test]
fn channels_take_any_number_of_calls() {
    for address in addresses() {
        let server = builder().listen(address.as_str()).unwrap();
        for most in [1, usize::MAX] {
            let client = IncrementClient::connect(server.address()).max_calls(most).wait();
            assert_eq!(client.expect("it connects").one(1).wait(), Ok(2), "{address}, {most}");
        }
    }
}

#[test]
fn messages_have_room_for_a_call() {
    for address in addresses() {
        let error = format!("{address}?max_message=7").parse::<Address>().unwrap_err();
        assert!(error.to_string().contains("a number from 64"), "{error}");
        let server = builder().listen(format!("{address}?max_message=64").as_str()).unwrap();
        call(&server);
    }
}

fn refused(listened: Result<RunningServer, BindError>, setting: &str) {
    match listened {
        Err(BindError::Setting { setting: refused, problem }) => {
            assert_eq!(refused, setting);
            assert!(!problem.is_empty());
        }
        other => panic!("{setting} is not refused: {other:?}"),
    }
}
