//! The server's half of the handshake.

use farcall_core::service::ServiceDescription;

use super::frame::{Frame, FrameError, FrameReader, Hello, Reject, TimeTold, Welcome};
use super::methods;
use super::versions::Versions;

/// A handshake with one client, at the server.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    reader: FrameReader,
    is_welcomed: bool,
}

/// The answer to a client that is let in.
#[derive(Debug)]
pub struct Greeting {
    /// The service, if the client's declaration of it differs: the client must know its methods.
    pub differing: Option<&'static ServiceDescription>,
    /// The welcome.
    pub welcome: Welcome,
}

/// What the client's bytes come to.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerStep {
    /// More bytes are needed: [`missing`](ServerHandshake::missing) says how many.
    Receive,
    /// The client's first frame: answer it with [`welcome`](ServerHandshake::welcome) or
    /// [`reject`](ServerHandshake::reject).
    Decide(Hello),
    /// Not a client, but a server that asks for the time: answer it with [`tell_time`](ServerHandshake::tell_time) or
    /// [`reject`](ServerHandshake::reject).
    TellTime,
    /// The client is connected: a server thread may have it.
    Ready,
    /// The client broke the protocol: send these bytes, and hang up.
    Refuse(Vec<u8>),
}

impl ServerHandshake {
    /// At a server that speaks these versions of the protocol, instead of [`SPOKEN`](super::SPOKEN).
    pub fn speaking(versions: Versions) -> ServerHandshake {
        ServerHandshake { reader: FrameReader::speaking(versions), is_welcomed: false }
    }

    /// The versions that the server speaks; once the client has said hello, the one that both take.
    pub fn versions(&self) -> Versions {
        self.reader.versions()
    }

    /// How many bytes of the client's next frame are missing.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Takes bytes of the client's.
    ///
    /// # Errors
    /// The bytes are not a frame: it is not a client of farcall, and gets no answer.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<ServerStep, FrameError> {
        let read = self.reader.push(&mut bytes);
        let versions = self.versions();
        let refuse = |what: String| {
            ServerStep::Refuse(Frame::Reject(Reject::Malformed { what }).to_bytes_in(versions))
        };
        Ok(match read {
            Ok(None) => ServerStep::Receive,
            Ok(Some(Frame::Hello(hello))) if !self.is_welcomed => ServerStep::Decide(hello),
            Ok(Some(Frame::AskTime)) if !self.is_welcomed => ServerStep::TellTime,
            Ok(Some(Frame::Ready)) if self.is_welcomed => ServerStep::Ready,
            Ok(Some(_)) if !self.is_welcomed => refuse("no hello".into()),
            Ok(Some(_)) => refuse("a frame that was not due".into()),
            // The frame tells the client which versions are spoken here.
            Err(error @ FrameError::Version { .. }) => refuse(error.to_string()),
            Err(error) => return Err(error),
        })
    }

    /// The bytes for a client that is let in. Its next frame says that it is ready.
    pub fn welcome(&mut self, Greeting { differing, welcome }: Greeting) -> Vec<u8> {
        self.is_welcomed = true;
        let methods = differing.map(methods::pages).into_iter().flatten();
        let frames = methods.chain([Frame::Welcome(welcome)]);
        frames.flat_map(|frame| frame.to_bytes_in(self.versions())).collect()
    }

    /// The bytes for a server that asked for the time.
    pub fn tell_time(&self, told: TimeTold) -> Vec<u8> {
        Frame::Time(told).to_bytes_in(self.versions())
    }

    /// The bytes for a client that is not let in.
    pub fn reject(reject: Reject) -> Vec<u8> {
        Frame::Reject(reject).to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Terms;

    fn greeting() -> Greeting {
        Greeting { differing: None, welcome: Welcome { terms: TERMS, setup: Vec::new() } }
    }

    const TERMS: Terms = Terms { window: 8, slot: 4096, max_message: 99 };

    fn hello() -> Hello {
        Hello {
            backend: "write_imm".into(),
            service: "Kv".into(),
            fingerprint: 7,
            terms: TERMS,
            setup: vec![1],
        }
    }

    #[test]
    fn a_client_says_hello_is_welcomed_and_is_ready() {
        let mut handshake = ServerHandshake::default();
        let bytes = Frame::Hello(hello()).to_bytes();
        let mut step = ServerStep::Receive;
        for byte in bytes {
            assert_eq!(step, ServerStep::Receive);
            step = handshake.receive(&[byte]).unwrap();
        }
        assert_eq!(step, ServerStep::Decide(hello()));
        handshake.welcome(greeting());
        assert_eq!(handshake.receive(&Frame::Ready.to_bytes()), Ok(ServerStep::Ready));
    }

    #[test]
    fn frames_that_are_not_due_are_refused() {
        let hello = Frame::Hello(hello()).to_bytes();
        let mut handshake = ServerHandshake::default();
        let refused = handshake.receive(&Frame::Ready.to_bytes());
        assert!(matches!(refused, Ok(ServerStep::Refuse(_))));
        handshake.welcome(greeting());
        assert!(matches!(handshake.receive(&hello), Ok(ServerStep::Refuse(_))));
    }

    #[test]
    fn another_version_is_answered_and_garbage_is_not() {
        let mut bytes = Frame::Ready.to_bytes();
        bytes[8..12].copy_from_slice(&[9, 0, 9, 0]);
        let refused = ServerHandshake::default().receive(&bytes);
        assert!(matches!(refused, Ok(ServerStep::Refuse(_))));
        let garbage = ServerHandshake::default().receive(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(garbage, Err(FrameError::Magic));
    }
}
