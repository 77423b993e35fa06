//! Tests of handshakes in which both ends prove that they have a key.

use farcall_core::service::ServiceDescription;
use farcall_core::{Authentication, Identity, Key};
use proptest::prelude::*;

use super::samples::{self, TERMS};
use super::{
    Agreement, ClientHandshake, ClientStep, Frame, FrameError, FrameReader, Greeting, Nonce,
    Refusal, Reject, ServerHandshake, ServerStep, Welcome,
};

static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };

/// What a backend says of an end: its queue pair, keys and epoch.
const CLIENT_SETUP: &[u8] = b"client: queue pair 7, rkey 8, epoch 9";
const SERVER_SETUP: &[u8] = b"server: queue pair 5, rkey 6, epoch 4";

const CLIENT_NONCE: Nonce = [0xc1; 32];
const SERVER_NONCE: Nonce = [0xc2; 32];

fn key(name: &str, secret: u8) -> Key {
    Key::new(name, [secret; 16]).unwrap()
}

fn client(key: Option<Key>) -> ClientHandshake {
    let client = ClientHandshake::new(samples::hello(CLIENT_SETUP), &KV);
    match key {
        Some(key) => client.with_key(key, CLIENT_NONCE),
        None => client,
    }
}

fn server(authentication: Authentication) -> ServerHandshake {
    ServerHandshake::default().authenticating(authentication, SERVER_NONCE)
}

/// Whom a server lets in that has this key.
fn only(key: Key) -> Authentication {
    Authentication::new().key(key)
}

fn welcome(server: &mut ServerHandshake) -> Vec<u8> {
    let welcome = Welcome { terms: TERMS, setup: SERVER_SETUP.to_vec(), connection: None };
    server.welcome(Greeting { differing: vec![&KV], welcome })
}

/// How a handshake ended that did not connect.
#[derive(Debug, PartialEq)]
enum End {
    /// The client refused the server.
    Client(Refusal),
    /// The server refused the client.
    Server(Reject),
    /// Bytes were no frame, or one that was not due.
    Broken,
    /// One end waits for more.
    Waiting,
}

/// Gives these bytes to a server as a socket does. Ends with its last step.
fn give(server: &mut ServerHandshake, mut bytes: &[u8]) -> Result<ServerStep, FrameError> {
    loop {
        let (front, rest) = bytes.split_at(server.missing().min(bytes.len()));
        bytes = rest;
        let step = server.receive(front)?;
        if step != ServerStep::Receive || bytes.is_empty() {
            return Ok(step);
        }
    }
}

/// Runs a handshake. `wire` may change what is sent: it gets the number of the message and its bytes.
fn shake_hands(
    client: &mut ClientHandshake,
    server: &mut ServerHandshake,
    wire: &mut dyn FnMut(usize, &mut Vec<u8>),
) -> Result<Agreement, End> {
    let mut message = client.hello_bytes();
    for number in 0.. {
        wire(2 * number, &mut message);
        let mut answer = match give(server, &message) {
            Ok(ServerStep::Challenge(challenge)) => challenge,
            Ok(ServerStep::Decide(_)) => welcome(server),
            Ok(ServerStep::Reject(reject)) => return Err(End::Server(reject)),
            Ok(ServerStep::Receive) => return Err(End::Waiting),
            Ok(_) | Err(_) => return Err(End::Broken),
        };
        wire(2 * number + 1, &mut answer);
        message = match client.receive(&answer) {
            Ok(ClientStep::Send(bytes)) => bytes,
            Ok(ClientStep::Connect(agreement)) => return Ok(agreement),
            Ok(ClientStep::Receive) => return Err(End::Waiting),
            Err(refusal) => return Err(End::Client(refusal)),
        };
    }
    Err(End::Waiting)
}

fn honestly(client: &mut ClientHandshake, server: &mut ServerHandshake) -> Result<Agreement, End> {
    shake_hands(client, server, &mut |_, _| ())
}

/// What was sent, in order: hello, challenge, the client's proof, the welcome with the server's.
fn recorded() -> Vec<Vec<u8>> {
    let (mut client, mut server) = (client(Some(key("a", 1))), server(only(key("a", 1))));
    let mut sent = Vec::new();
    shake_hands(&mut client, &mut server, &mut |_, bytes| sent.push(bytes.clone())).unwrap();
    sent
}

#[test]
fn ends_with_the_same_key_connect_and_the_server_knows_the_client() {
    let (mut client, mut server) = (client(Some(key("a", 1))), server(only(key("a", 1))));
    assert_eq!(server.identity(), None);
    let agreement = honestly(&mut client, &mut server).unwrap();
    assert_eq!(agreement.welcome.setup, SERVER_SETUP);
    assert_eq!(server.identity(), Some(Identity::named("a")));
    assert_eq!(server.receive(&client.ready_bytes()), Ok(ServerStep::Ready));
}

#[test]
fn a_wrong_secret_and_an_unknown_name_get_the_same_answer() {
    let refuse = |wrong: Key| {
        let mut server = server(only(key("a", 1)));
        let end = honestly(&mut client(Some(wrong)), &mut server);
        assert_eq!(server.identity(), None);
        end.unwrap_err()
    };
    let wrong_secret = refuse(key("a", 2));
    assert!(matches!(&wrong_secret, End::Server(Reject::NotPermitted { .. })), "{wrong_secret:?}");
    assert_eq!(refuse(key("b", 1)), wrong_secret);
}

#[test]
fn a_name_may_have_several_secrets_and_a_server_several_names() {
    let keys = [key("a", 1), key("b", 2), key("a", 3), key("a", 4), key("a", 5)];
    for right in &keys {
        let authentication = keys.iter().cloned().fold(Authentication::new(), Authentication::key);
        let mut server = server(authentication);
        assert!(honestly(&mut client(Some(right.clone())), &mut server).is_ok());
        assert_eq!(server.identity().unwrap().name(), right.name());
    }
    let authentication = keys.iter().cloned().fold(Authentication::new(), Authentication::key);
    let end = honestly(&mut client(Some(key("b", 1))), &mut server(authentication));
    let Err(End::Server(Reject::NotPermitted { reason })) = end else { panic!("{end:?}") };
    assert!(reason.contains("no key of that name with that secret"), "{reason}");
}

/// A client connects to the one server that it names, of those with its key, and one on the way cannot change the name.
#[test]
fn a_client_that_names_a_server_connects_to_no_other() {
    let wants = |name: &str| client(Some(key("a", 1).for_server(name).unwrap()));
    let named = |name: &str| server(only(key("a", 1)).server_name(name));
    assert!(honestly(&mut wants("eu-1"), &mut named("eu-1")).is_ok());
    assert!(honestly(&mut client(Some(key("a", 1))), &mut named("eu-1")).is_ok(), "it names none");
    let refuse = |server: &mut ServerHandshake| match honestly(&mut wants("eu-1"), server) {
        Err(End::Server(Reject::NotPermitted { reason })) => reason,
        other => panic!("not refused: {other:?}"),
    };
    let (other, none) = (refuse(&mut named("eu-2")), refuse(&mut server(only(key("a", 1)))));
    assert!(
        other.contains("wants the server \"eu-1\"") && other.contains("is \"eu-2\""),
        "{other}"
    );
    assert!(none.contains("has no name"), "{none}");

    let mut change = |number: usize, bytes: &mut Vec<u8>| {
        if number == 2 {
            let at = bytes.windows(4).position(|name| name == b"eu-1").expect("the name");
            bytes[at + 3] = b'2';
        }
    };
    let end = shake_hands(&mut wants("eu-1"), &mut named("eu-2"), &mut change);
    let Err(End::Server(Reject::NotPermitted { reason })) = end else { panic!("{end:?}") };
    assert!(reason.contains("no key of that name"), "the proof does not hold: {reason}");
}

#[test]
fn a_stranger_hears_no_name_of_a_server() {
    let mut server = server(only(key("a", 1)).server_name("eu-2"));
    let wrong = key("a", 2).for_server("eu-1").unwrap();
    let end = honestly(&mut client(Some(wrong)), &mut server);
    let Err(End::Server(Reject::NotPermitted { reason })) = end else { panic!("{end:?}") };
    assert!(reason.contains("no key of that name") && !reason.contains("eu-"), "{reason}");
}

#[test]
fn a_key_at_one_end_only_is_refused_by_the_client() {
    let end = honestly(&mut client(None), &mut server(only(key("a", 1))));
    assert_eq!(end.unwrap_err(), End::Client(Refusal::KeyWanted));
    let end = honestly(&mut client(Some(key("a", 1))), &mut ServerHandshake::default());
    assert_eq!(end.unwrap_err(), End::Client(Refusal::KeyNotWanted));
}

#[test]
fn a_service_that_is_not_permitted_is_refused_after_the_proof() {
    let permit = |service: &'static str| {
        let authentication = only(key("a", 1))
            .permit(move |identity, asked| identity.name() == "a" && asked == service);
        let mut server = server(authentication);
        let end = honestly(&mut client(Some(key("a", 1))), &mut server);
        assert_eq!(server.identity().is_some(), end.is_ok());
        end.map(|_| ())
    };
    assert_eq!(permit("Kv"), Ok(()));
    let Err(End::Server(Reject::NotPermitted { reason })) = permit("Other") else { panic!() };
    assert!(reason.contains("a may not use Kv"), "{reason}");
}

#[test]
fn each_service_that_a_client_names_must_be_permitted() {
    static LOG: ServiceDescription =
        ServiceDescription { name: "Log", fingerprint: 1, methods: &[] };
    static OTHER: ServiceDescription =
        ServiceDescription { name: "Other", fingerprint: 1, methods: &[] };
    let connect = |further: &[&'static ServiceDescription]| {
        let permit = |_: &Identity, asked: &str| asked != "Other";
        let mut client = client(Some(key("a", 1))).carrying(further);
        honestly(&mut client, &mut server(only(key("a", 1)).permit(permit))).map(|_| ())
    };
    assert_eq!(connect(&[&LOG]), Ok(()));
    for further in [&[&OTHER][..], &[&LOG, &OTHER], &[&OTHER, &LOG]] {
        let Err(End::Server(Reject::NotPermitted { reason })) = connect(further) else { panic!() };
        assert!(reason.contains("a may not use Other"), "{reason}");
    }
    // One whose socket has told who the client is.
    let permits = Authentication::new().permit(|_, asked| asked != "Other");
    let mut server = ServerHandshake::default().knowing(Identity::named("a"), Some(permits));
    let end = honestly(&mut client(None).carrying(&[&OTHER]), &mut server);
    assert!(matches!(end, Err(End::Server(Reject::NotPermitted { .. }))), "{end:?}");
}

/// A server that lacks the key cannot pose as one that has it: whatever it answers, the client does not connect.
#[test]
fn a_false_server_is_refused() {
    // It asks, takes any proof, and proves nothing, or something with another key.
    let welcome =
        Frame::Welcome(Welcome { terms: TERMS, setup: Vec::new(), connection: None }).to_bytes();
    let proof = Frame::Proof([7; 32]).to_bytes();
    let challenge = Frame::Challenge(SERVER_NONCE).to_bytes();
    let answers = |after: &[&[u8]]| {
        let mut client = client(Some(key("a", 1)));
        assert!(matches!(client.receive(&challenge), Ok(ClientStep::Send(_))));
        client.receive(&after.concat())
    };
    assert!(matches!(answers(&[&welcome]), Ok(ClientStep::Receive)), "without a proof it waits");
    assert!(matches!(answers(&[&welcome, &proof]), Err(Refusal::FalseServer)));
    for after in [&[&*proof][..], &[&welcome, &welcome], &[&challenge]] {
        assert!(matches!(answers(after), Err(Refusal::UnexpectedFrame)), "{after:?}");
    }
    // It sends the client's own proof back.
    let mut reflected = client(Some(key("a", 1)));
    let Ok(ClientStep::Send(sent)) = reflected.receive(&challenge) else { panic!() };
    let own = &sent[sent.len() - proof.len()..];
    let end = reflected.receive(&[&welcome, own].concat());
    assert!(matches!(end, Err(Refusal::FalseServer)), "{end:?}");
}

#[test]
fn a_proof_of_another_session_does_not_hold() {
    let sent = recorded();
    // A server with another nonce.
    let mut next = ServerHandshake::default().authenticating(only(key("a", 1)), [3; 32]);
    assert!(matches!(give(&mut next, &sent[0]), Ok(ServerStep::Challenge(_))));
    assert!(matches!(give(&mut next, &sent[2]), Ok(ServerStep::Reject(_))));
    // A client with another nonce.
    let mut next =
        ClientHandshake::new(samples::hello(CLIENT_SETUP), &KV).with_key(key("a", 1), [3; 32]);
    assert!(matches!(next.receive(&sent[1]), Ok(ClientStep::Send(_))));
    assert!(matches!(next.receive(&sent[3]), Err(Refusal::FalseServer)));
}

#[test]
fn a_client_that_was_refused_cannot_try_again_in_the_same_handshake() {
    let sent = recorded();
    let mut server = server(only(key("a", 1)));
    let mut wrong = sent[2].clone();
    *wrong.last_mut().unwrap() ^= 1;
    assert!(matches!(give(&mut server, &sent[0]), Ok(ServerStep::Challenge(_))));
    assert!(matches!(give(&mut server, &wrong), Ok(ServerStep::Reject(_))));
    for again in [&sent[2], &sent[0]] {
        assert!(matches!(give(&mut server, again), Ok(ServerStep::Refuse(_))));
    }
}

#[test]
fn frames_of_a_proof_that_are_not_due_are_refused() {
    let sent = recorded();
    let proof = Frame::Proof([0; 32]).to_bytes();
    let steps: &[&[&[u8]]] = &[
        &[&sent[2]],
        &[&proof],
        &[&sent[0], &proof],
        &[&sent[0], &sent[0]],
        &[&sent[0], &sent[1]],
    ];
    for messages in steps {
        let mut server = server(only(key("a", 1)));
        let (last, first) = messages.split_last().unwrap();
        first.iter().for_each(|bytes| assert!(give(&mut server, bytes).is_ok()));
        assert!(matches!(give(&mut server, last), Ok(ServerStep::Refuse(_))), "{messages:?}");
    }
}

/// How many frames these bytes are.
fn frames(mut bytes: &[u8]) -> usize {
    let mut reader = FrameReader::default();
    std::iter::from_fn(|| reader.push(&mut bytes).ok().flatten()).count()
}

#[test]
fn the_secret_is_not_among_what_is_sent() {
    let sent = recorded();
    let counts: Vec<_> = sent.iter().map(|bytes| frames(bytes)).collect();
    assert_eq!(counts, [1, 1, 2, 3], "hello, challenge, identify and proof, methods to proof");
    let key = key("a", 1);
    assert!(!sent.concat().windows(key.secret().len()).any(|part| part == key.secret()));
}

proptest! {
    /// Whoever sits between the ends and changes a byte of either, or swaps what they say of themselves, connects nobody.
    #[test]
    fn a_changed_byte_anywhere_connects_nobody(message in 0usize..4, at: usize, change in 1u8..) {
        let (mut client, mut server) = (client(Some(key("a", 1))), server(only(key("a", 1))));
        let mut was = (0, 0);
        let end = shake_hands(&mut client, &mut server, &mut |number, bytes| {
            if number == message {
                let at = at % bytes.len();
                bytes[at] ^= change;
                was = (at, bytes.len());
            }
        });
        prop_assert!(was.1 > 0, "message {message} was never sent");
        prop_assert!(end.is_err(), "byte {} of {} of message {message}", was.0, was.1);
    }
}
