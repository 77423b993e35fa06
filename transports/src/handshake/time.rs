//! A server's question for the time of another, whose slices it shares.
//!
//! It is the first frame of a connection, in place of a client's hello. The answer may be followed by further questions.

use super::frame::{Frame, FrameError, FrameReader, Reject, TimeTold};

/// Questions on one connection, at the server that asks.
#[derive(Debug, Default)]
pub struct TimeQuestions {
    reader: FrameReader,
}

/// Why there was no time in an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoTime {
    /// The bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The server does not tell.
    #[error("it answers: {0}")]
    Refused(String),
    /// A frame of another kind.
    #[error("its answer is none to that question")]
    OtherFrame,
}

impl TimeQuestions {
    /// The bytes of a question.
    pub fn question(&self) -> Vec<u8> {
        Frame::AskTime.to_bytes_in(self.reader.versions())
    }

    /// How many bytes of the answer are missing.
    pub fn missing(&self) -> usize {
        self.reader.missing()
    }

    /// Takes bytes of the answer. Gives it once it is whole.
    ///
    /// # Errors
    /// [`NoTime`]; nothing more can be asked then.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<Option<TimeTold>, NoTime> {
        match self.reader.push(&mut bytes)? {
            None => Ok(None),
            Some(Frame::Time(told)) => Ok(Some(told)),
            Some(Frame::Reject(reject)) => Err(NoTime::Refused(match reject {
                Reject::Refused { reason } => reason,
                Reject::Malformed { what } => what,
                Reject::NotPermitted { reason } => reason,
                other => format!("{other:?}"),
            })),
            Some(_) => Err(NoTime::OtherFrame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::{ServerHandshake, ServerStep};
    use super::*;
    use crate::contract::SlicePlan;

    const TOLD: TimeTold = TimeTold {
        received_nanos: 5,
        answered_nanos: 7,
        plan: SlicePlan { groups: 4, slice_nanos: 100_000 },
    };

    #[test]
    fn questions_are_answered_one_after_the_other() {
        let (mut questions, mut server) = (TimeQuestions::default(), ServerHandshake::default());
        for _ in 0..3 {
            assert_eq!(server.receive(&questions.question()), Ok(ServerStep::TellTime));
            let answer = server.tell_time(TOLD);
            let (front, rest) = answer.split_at(9);
            assert_eq!(questions.receive(front), Ok(None));
            assert_eq!(questions.missing(), 16 - 9);
            assert_eq!(questions.receive(rest), Ok(Some(TOLD)));
        }
    }

    #[test]
    fn what_is_no_time_is_told() {
        let receive = |frame: Frame| TimeQuestions::default().receive(&frame.to_bytes());
        let refused = Frame::Reject(Reject::Refused { reason: "no slices".into() });
        assert_eq!(receive(refused), Err(NoTime::Refused("no slices".into())));
        assert_eq!(receive(Frame::Ready), Err(NoTime::OtherFrame));
        let garbage = TimeQuestions::default().receive(&[0; 16]);
        assert_eq!(garbage, Err(NoTime::Frame(FrameError::Magic)));
    }

    #[test]
    fn a_client_that_was_welcomed_does_not_ask_for_the_time() {
        let mut server = ServerHandshake::default();
        server.welcome(super::super::server::Greeting {
            differing: Vec::new(),
            welcome: super::super::frame::Welcome {
                terms: crate::contract::Config::default().terms(),
                setup: Vec::new(),
                connection: None,
            },
        });
        let asked = server.receive(&TimeQuestions::default().question());
        assert!(matches!(asked, Ok(ServerStep::Refuse(_))));
    }
}
