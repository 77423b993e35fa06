//! Fuzz targets of the handshake's frames, which come from peers that nobody has checked yet.

use bolero::{TypeGenerator, check};
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{ConnectionId, Lane, LaneReason};
use farcall_core::{Authentication, Key, MethodDescription};

use super::frame::PREFIX_BYTES;
use super::methods::MethodList;
use super::{
    ClientHandshake, ClientStep, Frame, FrameError, FrameReader, Hello, Identify, MAX_BODY_BYTES,
    MethodEntry, NamedService, Nonce, Reject, ServerHandshake, ServerStep, TimeTold, Welcome,
};
use crate::contract::{SlicePlan, Terms};
use crate::corpus::is_kept;

/// What a frame is made of.
#[derive(Clone, Debug, TypeGenerator)]
struct Parts {
    kind: u8,
    text: String,
    texts: [String; 2],
    number: u64,
    terms: (u32, u32, u64),
    setup: Vec<u8>,
    methods: Vec<(u32, u8, Vec<u64>)>,
    nonce: Nonce,
}

impl Parts {
    fn frame(self) -> Frame {
        let Parts { kind, text, texts, number, terms, setup, methods, nonce } = self;
        let (window, slot, max_message) = terms;
        let terms = Terms { window, slot, max_message };
        let reject = match kind % 15 {
            0 => return Frame::Ready,
            1 => return Frame::Welcome(Welcome { terms, setup, connection: None }),
            2 => {
                let [backend, service] = texts;
                let further = NamedService { name: text, fingerprint: !number };
                let further = vec![further; (number % 3) as usize];
                return Frame::Hello(Hello {
                    backend,
                    service,
                    fingerprint: number,
                    terms,
                    setup,
                    further,
                    lane: [Lane::Alone, Lane::First, Lane::Of(ConnectionId::new([7; 16]))]
                        [(number % 3) as usize],
                    why: LaneReason::of_number(number as u8),
                    thread: (kind % 2 == 0).then_some(number as u16),
                });
            }
            3 => Reject::Backend { theirs: text },
            4 => Reject::Service { served: texts.into() },
            5 => {
                let entry = |(id, flags, shapes)| MethodEntry { id, flags, shapes };
                return Frame::Methods(methods.into_iter().map(entry).collect());
            }
            6 => Reject::Refused { reason: text },
            7 => Reject::Malformed { what: text },
            8 => Reject::ShuttingDown,
            9 => return Frame::AskTime,
            10 => {
                let plan = SlicePlan { groups: terms.window, slice_nanos: terms.max_message };
                let told = TimeTold { received_nanos: number, answered_nanos: !number, plan };
                return Frame::Time(told);
            }
            11 => return Frame::Challenge(nonce),
            12 => {
                let [server, _] = texts;
                let server = (number % 2 == 1).then_some(server);
                return Frame::Identify(Identify { key: text, server, nonce });
            }
            13 => return Frame::Proof(nonce),
            _ => Reject::NotPermitted { reason: text },
        };
        Frame::Reject(reject)
    }
}

/// Reads a frame as it is read from a socket: as many bytes as the reader misses, until the frame is whole.
fn read(mut bytes: &[u8]) -> Result<Frame, FrameError> {
    let mut reader = FrameReader::default();
    loop {
        let missing = reader.missing();
        assert!(missing <= PREFIX_BYTES.max(MAX_BODY_BYTES), "the reader misses {missing} bytes");
        let (mut front, rest) = bytes.split_at_checked(missing).ok_or(FrameError::Body)?;
        bytes = rest;
        if let Some(frame) = reader.push(&mut front)? {
            return Ok(frame);
        }
    }
}

/// Bytes of text and of lists in a frame at least.
fn size(frame: &Frame) -> usize {
    match frame {
        Frame::Ready | Frame::AskTime | Frame::Reject(Reject::ShuttingDown) => 0,
        // Two times, and two numbers.
        Frame::Time(_) => 4,
        Frame::Challenge(nonce) | Frame::Proof(nonce) => nonce.len(),
        Frame::Identify(Identify { key, server, nonce }) => {
            key.len() + server.as_ref().map_or(0, |server| 1 + server.len()) + nonce.len()
        }
        Frame::Hello(hello) => hello.backend.len() + hello.service.len() + hello.setup.len(),
        Frame::Welcome(welcome) => welcome.setup.len(),
        Frame::Reject(Reject::Service { served }) => served.iter().map(|name| 1 + name.len()).sum(),
        Frame::Reject(Reject::Backend { theirs: text })
        | Frame::Reject(Reject::Refused { reason: text })
        | Frame::Reject(Reject::Malformed { what: text })
        | Frame::Reject(Reject::NotPermitted { reason: text }) => text.len(),
        Frame::Methods(page) => page.iter().map(|entry| 3 + entry.shapes.len()).sum(),
    }
}

/// Any bytes are a frame or an error, and the reader makes room for no more than the longest body.
#[test]
fn any_bytes_are_a_frame_or_an_error() {
    check!().for_each(|bytes: &[u8]| drop(read(bytes)));
}

/// Any body is an error or a frame that holds no more than the body's bytes, and is read back if it is written again.
#[test]
fn any_body_is_a_frame_or_an_error() {
    check!().with_max_len(MAX_BODY_BYTES).for_each(|bytes: &[u8]| {
        // Small numbers are the discriminants and lengths that get deep into a frame.
        let small: Vec<u8> = bytes.iter().map(|byte| byte % 8).collect();
        for body in [bytes, &small] {
            if let Ok(frame) = Frame::from_body(body) {
                assert!(size(&frame) <= body.len(), "{frame:?}");
                assert_eq!(read(&frame.to_bytes()), Ok(frame));
            }
        }
    });
}

/// Every frame is read back as it was written, or refused for its length before its body is read.
#[test]
fn any_frame_is_read_back() {
    check!().with_type::<Parts>().cloned().for_each(|parts| {
        let frame = parts.frame();
        let bytes = frame.to_bytes();
        let len = bytes.len() - PREFIX_BYTES;
        let expected =
            if len <= MAX_BODY_BYTES { Ok(frame) } else { Err(FrameError::TooLong { len }) };
        assert_eq!(read(&bytes), expected);
    });
}

/// A frame with a changed byte, or cut short, is a frame or an error.
#[test]
fn a_frame_with_a_changed_byte_is_a_frame_or_an_error() {
    check!().with_type::<(Parts, usize, u8, usize)>().cloned().for_each(
        |(parts, at, value, cut)| {
            let mut bytes = parts.frame().to_bytes();
            let (at, cut) = (at % bytes.len(), cut % bytes.len());
            assert!(read(&bytes[..cut]).is_err(), "a frame of {cut} of {} bytes", bytes.len());
            bytes[at] = value;
            drop(read(&bytes));
        },
    );
}

/// Whatever a peer sends that does not have the key: a client that has it does not connect, and a server does not let it in.
#[test]
fn any_frames_without_the_secret_connect_nobody() {
    static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };
    let key = Key::new("a", [7; 16]).expect("a name and sixteen bytes");
    let terms = Terms { window: 8, slot: 4096, max_message: 99 };
    let (backend, service) = ("b".to_owned(), "Kv".to_owned());
    let hello = Hello {
        backend,
        service,
        fingerprint: 7,
        terms,
        setup: Vec::new(),
        further: Vec::new(),
        lane: Lane::Alone,
        why: LaneReason::First,
        thread: None,
    };
    check!().with_type::<Vec<Parts>>().cloned().for_each(|frames| {
        let mut client = ClientHandshake::new(hello.clone(), &KV).with_key(key.clone(), [1; 32]);
        let authentication = Authentication::new().key(key.clone());
        let mut server = ServerHandshake::default().authenticating(authentication, [2; 32]);
        // Most sequences end early; these begin as handshakes do.
        let challenged = client.receive(&Frame::Challenge([3; 32]).to_bytes());
        assert!(matches!(challenged, Ok(ClientStep::Send(_))));
        let greeted = server.receive(&Frame::Hello(hello.clone()).to_bytes());
        assert!(matches!(greeted, Ok(ServerStep::Challenge(_))));
        for frame in frames.into_iter().map(Parts::frame) {
            let bytes = frame.to_bytes();
            let connected = client.receive(&bytes);
            assert!(!matches!(connected, Ok(ClientStep::Connect(_))), "{connected:?}");
            let decided = server.receive(&bytes);
            assert!(!matches!(decided, Ok(ServerStep::Decide(_))), "{decided:?}");
        }
    });
}

/// What a client holds after any pages is bounded by its own service, and the pages end.
#[test]
fn any_pages_are_a_bounded_list_or_an_error() {
    static METHODS: [MethodDescription; 2] =
        [MethodDescription::new("get", 1, 1), MethodDescription::new("put", 2, 2)];
    static KV: ServiceDescription =
        ServiceDescription { name: "Kv", fingerprint: 7, methods: &METHODS };
    check!().with_type::<Vec<Vec<(u8, u8, Vec<u64>)>>>().cloned().for_each(|pages| {
        let mut list = MethodList::new(&[&KV]);
        for page in pages {
            let entry = |(id, flags, shapes)| MethodEntry { id: u32::from(id), flags, shapes };
            if list.take(page.into_iter().map(entry).collect()).is_err() {
                return;
            }
        }
        let missing = list.compare(&KV).map_or(0, |it| it.missing().count());
        assert!(missing <= METHODS.len());
    });
}

#[test]
fn the_corpora_have_a_frame_of_each_kind() {
    let frames = (0..15).map(|kind| {
        let parts = Parts {
            kind,
            text: "text".into(),
            texts: ["a".into(), "b".into()],
            number: 7,
            terms: (8, 4096, 1 << 20),
            setup: vec![1, 2, 3],
            methods: vec![(1, 0, vec![7, 8]), (2, 1, vec![9])],
            nonce: [5; 32],
        };
        parts.frame()
    });
    let mut named = Vec::new();
    for (number, frame) in frames.enumerate() {
        let bytes = frame.to_bytes();
        assert_eq!(read(&bytes), Ok(frame));
        named.push((format!("frame-{number:02}"), bytes));
    }
    let bodies = named.iter().map(|(name, bytes)| (name.clone(), bytes[PREFIX_BYTES..].to_vec()));
    let folder = "src/handshake";
    is_kept(folder, "handshake::fuzz::any_body_is_a_frame_or_an_error", bodies);
    is_kept(folder, "handshake::fuzz::any_bytes_are_a_frame_or_an_error", named);
}
