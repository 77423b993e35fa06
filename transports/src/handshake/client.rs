//! The client's half of the handshake.

use super::frame::{Frame, FrameError, FrameReader, Hello, Reject, Welcome};
use crate::contract::Terms;

/// A client that has a hello to say.
#[derive(Debug)]
pub struct ClientHandshake {
    hello: Hello,
    reader: FrameReader,
}

/// Why a client is not connected.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server's bytes are not a frame.
    Frame(FrameError),
    /// The server says no.
    Rejected(Reject),
    /// The server agreed to terms that the client did not offer.
    ImpossibleTerms(Terms),
    /// The server answered with a frame that only clients send.
    UnexpectedFrame,
}

impl ClientHandshake {
    /// Begins with this hello.
    pub fn new(hello: Hello) -> ClientHandshake {
        ClientHandshake { hello, reader: FrameReader::default() }
    }

    /// The hello.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The bytes to send first.
    pub fn hello_bytes(&self) -> Vec<u8> {
        Frame::Hello(self.hello.clone()).to_bytes()
    }

    /// How many bytes of the server's answer are missing.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Takes bytes of the server's answer. Gives the welcome once it is whole.
    ///
    /// # Errors
    /// Why there is no connection; the handshake is over then.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<Option<Welcome>, Refusal> {
        match self.reader.push(&mut bytes).map_err(Refusal::Frame)? {
            None => Ok(None),
            Some(Frame::Welcome(welcome)) if welcome.terms.is_within(&self.hello.terms) => {
                Ok(Some(welcome))
            }
            Some(Frame::Welcome(Welcome { terms, .. })) => Err(Refusal::ImpossibleTerms(terms)),
            Some(Frame::Reject(reject)) => Err(Refusal::Rejected(reject)),
            Some(Frame::Hello(_) | Frame::Ready) => Err(Refusal::UnexpectedFrame),
        }
    }

    /// The bytes to send last: the client is connected.
    pub fn ready_bytes() -> Vec<u8> {
        Frame::Ready.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Terms = Terms { window: 8, slot: 4096, max_message: 99 };

    fn answer(frame: Frame) -> Result<Option<Welcome>, Refusal> {
        let hello = Hello {
            backend: "write_imm".into(),
            service: "Kv".into(),
            fingerprint: 7,
            terms: OFFERED,
            setup: Vec::new(),
        };
        let mut handshake = ClientHandshake::new(hello);
        let bytes = frame.to_bytes();
        let (last, front) = bytes.split_last().unwrap();
        assert_eq!(handshake.receive(front), Ok(None));
        assert_eq!(handshake.missing(), 1);
        handshake.receive(&[*last])
    }

    fn welcome(window: u32) -> Frame {
        Frame::Welcome(Welcome { terms: Terms { window, ..OFFERED }, setup: vec![1] })
    }

    #[test]
    fn a_welcome_ends_it_and_anything_else_refuses() {
        assert_eq!(answer(welcome(4)).unwrap().unwrap().setup, [1]);
        assert!(matches!(answer(welcome(9)), Err(Refusal::ImpossibleTerms(_))));
        let reject = Reject::Refused { reason: "full".into() };
        assert_eq!(answer(Frame::Reject(reject.clone())), Err(Refusal::Rejected(reject)));
        assert_eq!(answer(Frame::Ready), Err(Refusal::UnexpectedFrame));
    }
}
