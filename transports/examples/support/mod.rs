//! The server of both examples.

use farcall_core::transport::{CallToken, Message, Replies, RequestSink};

/// Answers each request with its own bytes.
pub(crate) struct Echo;

impl RequestSink for Echo {
    #[inline]
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        match replies.reserve(&call, message.len()) {
            Ok(room) => {
                room.copy_from_slice(&message);
                replies.post(call, message.len());
            }
            Err(error) => eprintln!("no reply: {error}"),
        }
    }
    fn cancelled(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn disconnected(&mut self, _: u32, _: u32) {}
}
