//! Services with methods of every kind, called through both clients over an in-memory transport.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use farcall::{
    CallError, Channel, ChannelOptions, Connection, ConnectionOptions, PollClient, RpcError,
    RunningServer, ServiceClient,
};
use farcall_core::Server;
use serde_bytes::ByteBuf;
use support::memory::Memory;
use support::shapes::*;

struct Running {
    implementation: Arc<Implementation>,
    memory: Memory,
    server: RunningServer,
}

fn running() -> Running {
    let implementation = Arc::new(Implementation::default());
    let memory = Memory::new();
    let server = Server::builder()
        .service(ShapesServer::from(implementation.clone()))
        .serve(&memory)
        .unwrap();
    Running { implementation, memory, server }
}

impl Running {
    fn client(&self) -> ShapesClient {
        let description = <ShapesClient as ServiceClient>::DESCRIPTION;
        let options = ChannelOptions::default();
        let channel = Channel::connect(self.memory.clone(), description, options).unwrap();
        ShapesClient::from_channel(channel)
    }

    fn poll_client(&self) -> ShapesPollClient {
        let description = <ShapesPollClient as PollClient>::DESCRIPTION;
        let options = ConnectionOptions::default();
        let connection = Connection::connect(&self.memory, description, &options).unwrap();
        ShapesPollClient::from_connection(connection)
    }
}

#[test]
fn methods_of_every_kind_can_be_called() {
    let running = running();
    let mut client = running.poll_client();
    client.nothing().unwrap();
    assert_eq!(client.one(1), Ok(2));
    let strings = vec!["x".to_owned(), "yz".to_owned()];
    assert_eq!(
        client.eight(1, -2, 3, -4, "é", b"\x00\xff", Some(true), strings).unwrap(),
        r#"1 -2 3 -4 é [0, 255] Some(true) ["x", "yz"]"#
    );
    assert_eq!(client.sum(&[1, 2, u32::MAX]), Ok(u64::from(u32::MAX) + 3));
    assert_eq!(client.lend(&Point { x: 1, y: 2 }), Ok(Point { x: 2, y: 1 }));
    assert_eq!(client.view(Key { name: "four", bytes: &[0; 300] }), Ok(304));
    assert_eq!(client.borrowed_within((b"12", Some("345")), vec!["6", "78"]), Ok(8));
    let bytes = client.bytes(
        b"a",
        vec![b'b'],
        Bytes::from_static(b"c"),
        ByteBuf::from(b"d"),
        *b"eeee",
        Some(Bytes::from_static(b"f")),
        &[Bytes::from_static(b"g"), Bytes::from_static(b"g")],
        (Bytes::from_static(b"h"), 33),
    );
    assert_eq!(bytes.unwrap(), &b"abcdeeeefggh!"[..]);
    assert_eq!(client.r#type(21), Ok(42));
    assert_eq!(client.named_by_number(), Ok(7));
    assert_eq!((client.poll(), client.take(3)), (Ok(1), Ok(3)));
    assert_eq!(client.many(3).unwrap(), [&b""[..], b"\x01", b"\x02\x02"]);
    assert_eq!(client.pair().unwrap(), (Bytes::from_static(b"pair"), 2));
    assert_eq!(running.implementation.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn calls_can_be_waited_for_without_an_executor() {
    let running = running();
    let client = running.client();
    client.nothing().wait().unwrap();
    assert_eq!(client.lend(&Point { x: 1, y: 2 }).wait(), Ok(Point { x: 2, y: 1 }));
    assert_eq!(client.find(b"key").wait(), Ok(Some(Bytes::from_static(b"key"))));
    assert_eq!(client.find(b"").wait(), Err(CallError::Service(Refusal::NoSuchKey)));
    assert_eq!(client.later_or_not(2).wait(), Ok(2));
    assert_eq!(client.panics().wait(), Err(RpcError::HandlerPanicked));
    let late = client.one(1).timeout(std::time::Duration::ZERO).wait();
    assert!(
        matches!(late, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
        "{late:?}"
    );
}

#[tokio::test]
async fn calls_are_futures_for_any_executor() {
    let running = running();
    let client = running.client();
    let calls: Vec<_> = (0..100_u32)
        .map(|n| {
            let client = client.clone();
            // The call borrows none of its arguments.
            let key = n.to_le_bytes();
            let call = client.echo_slice(&key);
            tokio::spawn(async move { (call.await, client.later_or_not(n).await) })
        })
        .collect();
    for (n, call) in (0..100_u32).zip(calls) {
        let (echo, later) = call.await.unwrap();
        assert_eq!(echo.unwrap(), n.to_le_bytes());
        assert_eq!(later.is_ok(), n.is_multiple_of(2));
    }
}

#[test]
fn the_polled_client_returns_results() {
    let running = running();
    let mut client = running.poll_client();
    assert_eq!(client.find(b"key"), Ok(Some(Bytes::from_static(b"key"))));
    assert_eq!(client.find(b"none"), Ok(None));
    assert_eq!(client.find(b""), Err(CallError::Service(Refusal::NoSuchKey)));
    assert_eq!(client.check(true), Ok(()));
    assert_eq!(client.check(false), Err(CallError::Service("not fine".to_owned())));
    assert_eq!(client.raw_error(), Err(CallError::Service(Bytes::from_static(b"raw"))));
}

#[test]
fn async_methods_are_answered_when_they_finish() {
    let running = running();
    let mut client = running.poll_client();
    assert_eq!(client.later(Bytes::from_static(b"now")).unwrap(), &b"now"[..]);
    assert_eq!(client.later_or_not(4), Ok(4));
    let refused = CallError::Service(Refusal::NotAllowed("3".to_owned()));
    assert_eq!(client.later_or_not(3), Err(refused));
    client.nothing_later().unwrap();
    assert_eq!(running.implementation.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn byte_strings_of_any_length_come_back() {
    let running = running();
    let mut client = running.poll_client();
    for len in [0, 1, 31, 32, 33, 127, 128, 4095, 4096, 5000, 100_000] {
        let data = vec![len as u8; len];
        assert_eq!(client.echo_slice(&data).unwrap(), data);
        assert_eq!(client.echo_bytes(data.clone().into()).unwrap(), data);
        assert_eq!(client.later(data.clone().into()).unwrap(), data);
    }
    assert_eq!(client.echo_array([9; 32]), Ok([9; 32]));
    assert!(running.memory.owned_messages() > 0, "some messages were long enough to be kept");
}

#[test]
fn a_single_byte_string_is_the_whole_message() {
    let running = running();
    let id = id_of("echo_array");
    let mut request = header(id);
    request.extend([5; 32]);
    let reply = running.memory.raw_call(&request);
    assert_eq!(reply.len(), 8 + 32, "nothing but the header and the bytes");
    assert_eq!(&reply[8..], [5; 32]);
}

#[test]
fn several_calls_can_be_outstanding() {
    let running = running();
    let mut client = running.poll_client();
    let mut first = client.start_one(1).unwrap();
    let mut second = client.start_find(b"").unwrap();
    let mut third = client.start_later_or_not(2).unwrap();
    let (mut one, mut find, mut later) = (None, None, None);
    while one.is_none() || find.is_none() || later.is_none() {
        // Two methods have the names of the client's own methods, which are called through the trait.
        let connection = PollClient::connection(&mut client);
        connection.poll();
        one = one.or_else(|| connection.take(&mut first));
        find = find.or_else(|| connection.take(&mut second));
        later = later.or_else(|| connection.take(&mut third));
    }
    assert_eq!(one, Some(Ok(2)));
    assert_eq!(find, Some(Err(CallError::Service(Refusal::NoSuchKey))));
    assert_eq!(later, Some(Ok(2)));
}

#[test]
fn a_panicking_handler_fails_only_its_call() {
    let running = running();
    let mut client = running.poll_client();
    assert_eq!(client.panics(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.panics_later(), Err(RpcError::HandlerPanicked));
    assert_eq!(client.one(1), Ok(2));
    running.server.shutdown();
}

fn id_of(method: &str) -> u32 {
    let methods = <ShapesPollClient as PollClient>::DESCRIPTION.methods;
    methods.iter().find(|described| described.name == method).unwrap().id
}

fn header(id: u32) -> Vec<u8> {
    [id.to_le_bytes(), [0; 4]].concat()
}

fn refusal(memory: &Memory, method: &str, arguments: &[u8]) -> String {
    let mut request = header(id_of(method));
    request.extend(arguments);
    let reply = memory.raw_call(&request);
    assert_eq!(reply[0], 3, "malformed");
    String::from_utf8(reply[8..].to_vec()).unwrap()
}

#[test]
fn errors_name_the_malformed_argument() {
    let running = running();
    let memory = &running.memory;
    assert_eq!(
        refusal(memory, "one", &[]),
        "a of Shapes.one: the message ends 1 or more bytes early"
    );
    assert_eq!(
        refusal(memory, "one", &[1, 2, 3]),
        "the end of Shapes.one: 2 bytes are left over after the last value"
    );
    assert_eq!(
        refusal(memory, "eight", &[1, 3, 1, 1, 2, 0xC3, 0x28]),
        "e of Shapes.eight: a string is not UTF-8"
    );
    assert_eq!(
        refusal(memory, "nothing", b"x"),
        "the end of Shapes.nothing: 1 bytes are left over after the last value"
    );
    assert_eq!(
        refusal(memory, "type", &[0xFF; 9]),
        "in of Shapes.type: a number does not fit its type"
    );
    assert!(refusal(memory, "sum", &[0xFF, 0xFF, 0xFF, 0x7F]).starts_with("numbers of Shapes.sum"));
    assert!(refusal(memory, "echo_array", &[0; 31]).starts_with("data of Shapes.echo_array"));
    // The server keeps serving.
    assert_eq!(running.poll_client().one(1), Ok(2));
}

#[test]
fn an_unknown_method_is_reported() {
    let running = running();
    let reply = running.memory.raw_call(&header(0xDEAD_BEEF));
    assert_eq!(reply[0], 2, "no such method");
}

#[test]
fn a_malformed_answer_is_an_error_of_the_caller() {
    // Another program's definition of the method: the same name and id, but another result.
    mod theirs {
        #[farcall::service(name = "Shapes")]
        #[allow(dead_code)]
        pub(super) trait Theirs {
            fn one(&self, a: u8) -> String;
        }
    }
    let running = running();
    let description = <theirs::TheirsPollClient as PollClient>::DESCRIPTION;
    let connection =
        Connection::connect(&running.memory, description, &ConnectionOptions::default()).unwrap();
    let mut client = theirs::TheirsPollClient::from_connection(connection);
    let Err(RpcError::Malformed { may_have_run: true, what }) = client.one(9) else {
        panic!("it was read")
    };
    assert!(what.starts_with("the value that Shapes.one answered: "), "{what}");
}

#[test]
fn the_description_contains_what_was_declared() {
    let description = <ShapesClient as ServiceClient>::DESCRIPTION;
    assert_eq!(description.name, "Shapes");
    assert_eq!(description.methods.len(), 25);
    assert_eq!(description.methods[0].name, "nothing");
    let numbered = description.methods.iter().find(|method| method.id == 7).unwrap();
    assert_eq!((numbered.name, numbered.idempotent), ("named_by_number", true));
    assert!(!description.methods[0].idempotent);
}
