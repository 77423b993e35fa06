//! Generated code over shared memory: server and both clients in one process, with messages of every size.
//! size.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use farcall::{BindError, CallError, ConnectError, RpcError, Server};
use support::shapes::*;

/// A unique name, also among concurrent test runs.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://farcall-services-{}-{next}", std::process::id())
}

#[test]
fn every_client_reaches_the_service() {
    let address = address();
    let server = Server::builder()
        .service(ShapesServer::new(Implementation::default()))
        .threads(2)
        .listen(&address)
        .unwrap();

    let mut poll = ShapesPollClient::connect(&address).wait().unwrap();
    assert_eq!(poll.one(1), Ok(2));
    assert_eq!(poll.find(b""), Err(CallError::Service(Refusal::NoSuchKey)));
    assert_eq!(poll.later_or_not(4), Ok(4));
    assert_eq!(poll.view(Key { name: "four", bytes: &[0; 300] }), Ok(304));
    assert_eq!(poll.panics(), Err(RpcError::HandlerPanicked));

    let client = ShapesClient::connect(&address).wait().unwrap();
    assert_eq!(client.lend(&Point { x: 1, y: 2 }).wait(), Ok(Point { x: 2, y: 1 }));
    assert_eq!(client.find(b"key").wait(), Ok(Some(Bytes::from_static(b"key"))));
    assert_eq!(client.panics_later().wait(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.one(1).wait(), Ok(2));

    server.shutdown();
    let gone = poll.one(1);
    assert!(matches!(gone, Err(RpcError::PeerGone { .. })), "{gone:?}");
}

#[test]
fn messages_of_every_size_come_back() {
    let address = address();
    let server = Server::builder()
        .service(ShapesServer::new(Implementation::default()))
        .listen(&address)
        .unwrap();
    let mut client = ShapesPollClient::connect(&address).wait().unwrap();
    let sizes =
        [0, 1, 31, 32, 33, 40, 47, 48, 49, 255, 256, 257, 4000, 4096, 4097, 65_537, 3 << 20];
    for size in sizes {
        let data: Vec<u8> = (0..size).map(|i| (i * 31 + size) as u8).collect();
        assert!(client.echo_bytes(data.clone().into()).unwrap() == data, "{size} bytes");
        assert!(client.echo_slice(&data).unwrap() == data, "{size} bytes borrowed");
        assert!(client.later(data.clone().into()).unwrap() == data, "{size} bytes later");
        let found = client.find(&data).map(|found| found.is_some_and(|found| found == data));
        assert_eq!(found.is_ok(), size != 0);
        assert!(found.unwrap_or(true), "{size} bytes in an option");
    }
    assert_eq!(client.echo_array([7; 32]), Ok([7; 32]));
    server.shutdown();
}

#[tokio::test]
async fn many_tasks_share_a_client() {
    let address = address();
    let server = Server::builder()
        .service(ShapesServer::new(Implementation::default()))
        .listen(&address)
        .unwrap();
    let client = ShapesClient::connect(&address).wait().unwrap();
    let tasks: Vec<_> = (0..64_u32)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for call in 0..50 {
                    let data = Bytes::from(vec![task as u8; (task * call) as usize]);
                    assert_eq!(client.later(data.clone()).await.unwrap(), data);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    server.shutdown();
}

#[test]
fn addresses_without_a_server_are_reported() {
    let nobody = ShapesClient::connect(address()).wait();
    assert!(matches!(nobody, Err(ConnectError::NoServer { .. })), "{nobody:?}");
    let unreadable = ShapesPollClient::connect("shm:/kv").wait();
    assert!(matches!(unreadable, Err(ConnectError::InvalidAddress(_))), "{unreadable:?}");
    let server = || Server::builder().service(ShapesServer::new(Implementation::default()));
    let unreadable = server().listen("carrier-pigeon://kv");
    assert!(matches!(unreadable, Err(BindError::InvalidAddress(_))), "{unreadable:?}");

    let address = address();
    let first = server().listen(&address).unwrap();
    let second = server().listen(&address);
    assert!(matches!(second, Err(BindError::InUse { .. })), "{second:?}");
    first.shutdown();
}

#[test]
fn a_client_of_another_service_is_refused() {
    #[farcall::service(name = "Shapes")]
    #[expect(dead_code)]
    trait Reshaped {
        fn one(&self, a: u16) -> u8;
    }
    #[farcall::service]
    #[expect(dead_code)]
    trait Unserved {
        fn one(&self, a: u8) -> u8;
    }
    let address = address();
    let server = Server::builder()
        .service(ShapesServer::new(Implementation::default()))
        .listen(&address)
        .unwrap();
    let reshaped = ReshapedClient::connect(&address).wait();
    assert!(matches!(reshaped, Err(ConnectError::IncompatibleService { .. })), "{reshaped:?}");
    let unserved = UnservedPollClient::connect(&address).wait();
    assert!(matches!(unserved, Err(ConnectError::NoSuchService { .. })), "{unserved:?}");
    server.shutdown();
}

#[test]
fn every_server_answers_pings() {
    use farcall::ping::{PingClient, PingPollClient};

    let address = address();
    let nothing = Server::builder().listen(&address).map(drop);
    assert!(matches!(nothing, Err(BindError::NoService)), "{nothing:?}");
    let server = Server::builder()
        .service(ShapesServer::new(Implementation::default()))
        .listen(&address)
        .unwrap();
    let mut poll = PingPollClient::connect(&address).wait().unwrap();
    for payload in [Bytes::new(), Bytes::from_static(b"here?"), vec![7; 100_000].into()] {
        assert_eq!(poll.ping(payload.clone()), Ok(payload));
    }
    let client = PingClient::connect(&address).wait().unwrap();
    assert_eq!(client.ping(Bytes::from_static(b"and there?")).wait().unwrap(), "and there?");
    server.shutdown();
}
