//! The handshake by hand, at either end.

use farcall_core::transport::{Lane, LaneReason};
use std::io;

use farcall_core::{
    ServiceDescription,
    codec::{As, Decode, Reader, Serde, encode, encoded_len},
};
use farcall_transports::contract::Terms;
use farcall_transports::handshake::{Frame, FrameReader, Hello, Reject, Welcome};
use serde::{Serialize, de::DeserializeOwned};

use super::{RawListener, Stream};

/// Reads one frame.
pub fn read_frame(stream: &mut dyn Stream) -> io::Result<Frame> {
    let mut reader = FrameReader::default();
    loop {
        let mut bytes = vec![0; reader.missing()];
        stream.read_exact(&mut bytes)?;
        let read = reader.push(&mut bytes.as_slice());
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        if let Some(frame) = read.map_err(invalid)? {
            return Ok(frame);
        }
    }
}

/// Terms for a handshake.
pub fn terms(window: u32, slot: u32, max_message: u64) -> Terms {
    Terms { window, slot, max_message }
}

/// A client's first frame.
pub fn hello(backend: &str, service: &ServiceDescription, terms: Terms, setup: Vec<u8>) -> Frame {
    Frame::Hello(Hello {
        backend: backend.to_owned(),
        service: service.name.to_owned(),
        fingerprint: service.fingerprint,
        terms,
        setup,
        further: Vec::new(),
        lane: Lane::Alone,
        why: LaneReason::First,
        thread: None,
    })
}

/// The handshake's encoding of an end's setup.
pub fn encode_setup<T: Serialize>(setup: &T) -> Vec<u8> {
    let payload = As::<Serde, T>::new(setup);
    let mut bytes = vec![0; encoded_len(&payload).expect("a length")];
    encode(&payload, &mut bytes).expect("its own length");
    bytes
}

/// The setup of an end of this project. What is behind it says what the end can do besides: ends of earlier versions do not look at it.
pub fn decode_setup<T: DeserializeOwned>(bytes: &[u8]) -> T {
    <Serde as Decode<'_, T>>::read(&mut Reader::borrowed(bytes)).expect("a setup")
}

/// Shakes hands as a client that keeps the rules so far.
///
/// # Panics
/// The stream ends early, or the server answers with a frame that is no answer.
pub fn shake_hands(stream: &mut dyn Stream, hello: &Frame) -> Result<Welcome, Reject> {
    stream.write_all(&hello.to_bytes()).expect("write hello");
    match read_frame(stream).expect("an answer to hello") {
        Frame::Welcome(welcome) => {
            stream.write_all(&Frame::Ready.to_bytes()).expect("write ready");
            Ok(welcome)
        }
        Frame::Reject(reject) => Err(reject),
        other => panic!("{other:?} is no answer to hello"),
    }
}

/// Shakes hands as a server that keeps the rules so far, and grants no more than `most`. `connect` makes this server's end
/// from the terms and the client's setup, and gives its own setup.
///
/// # Panics
/// No client comes in time, or it breaks the handshake's rules.
pub fn welcome_client<T>(
    listener: &mut RawListener,
    most: Terms,
    connect: impl FnOnce(Terms, &[u8]) -> (T, Vec<u8>),
) -> (T, Terms, Box<dyn Stream>) {
    welcome_client_and(listener, most, connect, |_| ())
}

/// The same, for a client that is ready only when the server has answered it in another way: `confirm` does.
///
/// # Panics
/// No client comes in time, or it breaks the handshake's rules.
pub fn welcome_client_and<T>(
    listener: &mut RawListener,
    most: Terms,
    connect: impl FnOnce(Terms, &[u8]) -> (T, Vec<u8>),
    confirm: impl FnOnce(&mut T),
) -> (T, Terms, Box<dyn Stream>) {
    let mut stream = (listener.accept)().expect("a client");
    let Ok(Frame::Hello(hello)) = read_frame(&mut *stream) else { panic!("a client says hello") };
    let terms = Terms {
        window: hello.terms.window.min(most.window),
        slot: hello.terms.slot.min(most.slot),
        max_message: hello.terms.max_message.min(most.max_message),
    };
    let (mut end, setup) = connect(terms, &hello.setup);
    stream
        .write_all(&Frame::Welcome(Welcome { terms, setup, connection: None }).to_bytes())
        .expect("write welcome");
    confirm(&mut end);
    match read_frame(&mut *stream) {
        Ok(Frame::Ready) => {}
        other => panic!("{other:?} instead of ready"),
    }
    (end, terms, stream)
}
