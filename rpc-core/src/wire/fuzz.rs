//! Fuzz targets of the header in front of each message, which the peer writes as it likes.

use bolero::check;

use super::*;
use crate::support::corpus;

const TARGET: &str = "wire::fuzz::any_bytes_are_a_request_and_a_response";

/// Any bytes are a request if they are as long as a header, and a response or an error.
#[test]
fn any_bytes_are_a_request_and_a_response() {
    check!().for_each(|bytes: &[u8]| {
        let header = RequestHeader::read(bytes);
        assert_eq!(header.is_some(), bytes.len() >= HEADER_BYTES);
        if let Some(header) = header {
            let again = RequestHeader::new(header.method(), header.timeout_us());
            assert_eq!(again.as_bytes(), &bytes[..HEADER_BYTES]);
        }
        match open_response(Message::Borrowed(bytes)) {
            Answer::Value(body) | Answer::Service(body) => {
                assert_eq!(&*body, &bytes[HEADER_BYTES..]);
            }
            Answer::Failed(_) => {}
        }
    });
}

#[test]
fn the_corpus_has_a_response_of_each_status() {
    let responses = Status::ALL.map(|status| {
        let body = match status {
            Status::TooLarge => too_large_body(200, 100).to_vec(),
            _ => b"body".to_vec(),
        };
        (status.name().to_owned(), [&status.alone()[..], &body].concat())
    });
    corpus::is_kept("src/wire", TARGET, responses);
}
