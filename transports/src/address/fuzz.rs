//! Fuzz targets of addresses, which users write and configuration files carry.

use bolero::{TypeGenerator, check};

use super::options::{OPTIONS, RDMA_OPTIONS};
use super::user_text::shown;
use super::{Address, AddressError};
use crate::corpus::is_kept;

/// The choices that an address is put together from, right ones and wrong ones.
#[derive(Clone, Debug, TypeGenerator)]
struct Choices {
    scheme: usize,
    place: usize,
    options: [Option<(usize, usize)>; 4],
    /// A character to put somewhere, or none.
    edit: Option<(usize, char)>,
}

const SCHEMES: &[&str] = &["shm", "rdma", "tcp", "sim", ""];

const PLACES: &[&str] = &[
    "kv",
    "kv-1.a_b",
    "a/b",
    "",
    "node:7471",
    "10.0.0.1:0",
    "[2001:db8::0:1]:65535",
    "[::ffff:10.0.0.1]:1",
    "::1:7471",
    "[node]:1",
    "node:65536",
    "user@node:1",
];

/// Every option, and what is none.
fn keys() -> Vec<&'static str> {
    [OPTIONS, &["without"], RDMA_OPTIONS, &["colour", ""]].concat()
}

const VALUES: &[&str] = &[
    "write_imm",
    "datagram",
    "tcp",
    "tcp2",
    "datagram,write_imm,rfp",
    "0",
    "1",
    "65",
    "255",
    "1024",
    "1m",
    "64K",
    "9g",
    "1099511627776",
    "18446744073709551615",
    "99999999999999999999g",
    "5s",
    "1500ms",
    "60m",
    "inline,bulk",
    "recovery",
    "inline,",
    "rxe0",
    "\u{e9}",
    "",
];

impl Choices {
    fn text(&self) -> String {
        let pick = |list: &[&'static str], choice: usize| list[choice % list.len()];
        let keys = keys();
        let options: Vec<String> = self
            .options
            .iter()
            .flatten()
            .map(|(key, value)| format!("{}={}", pick(&keys, *key), pick(VALUES, *value)))
            .collect();
        let place = pick(PLACES, self.place);
        let mut text = format!("{}://{place}?{}", pick(SCHEMES, self.scheme), options.join("&"));
        if let Some((at, character)) = self.edit {
            let mut at = at % (text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            text.insert(at, character);
        }
        text
    }
}

/// Parses `text`. The text of an address parses to an equal one; an error is short, and quotes the part of the text that is wrong.
fn is_an_address_or_an_error(text: &str) {
    match text.parse::<Address>() {
        Ok(address) => assert_eq!(address.to_string().parse(), Ok(address), "{text}"),
        Err(error) => {
            assert!(quotes_a_part(&error, text), "{text:?}: {error}");
            assert!(error.to_string().len() < MOST_ERROR_BYTES, "{error}");
        }
    }
}

/// An error names all options of a scheme and backend, and shows some characters of the text.
const MOST_ERROR_BYTES: usize = 1200;

/// Whether the message has one of the parts of `text` in backquotes, printable and short, or begins an option with its key.
fn quotes_a_part(error: &AddressError, text: &str) -> bool {
    let message = error.to_string();
    let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let is_quoted = |part: &str| message.contains(&format!("`{}`", shown(part)));
    let is_option = |option: &str| {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let is_value_quoted = is_quoted(value) || value.split(',').any(is_quoted);
        is_quoted(key) || is_value_quoted || message.contains(&format!("`{key}="))
    };
    [text, scheme, place].into_iter().any(is_quoted) || options.split('&').any(is_option)
}

/// Any text is an address that its own text parses back to, or an error that quotes what is wrong.
#[test]
fn any_text_is_an_address_or_an_error() {
    check!().for_each(|bytes: &[u8]| is_an_address_or_an_error(&String::from_utf8_lossy(bytes)));
}

/// The same of texts that are, or nearly are, addresses with up to four options.
#[test]
fn any_choice_of_options_is_an_address_or_an_error() {
    check!().with_type::<Choices>().for_each(|choices| is_an_address_or_an_error(&choices.text()));
}

#[test]
fn the_corpus_has_addresses_of_each_scheme() {
    let texts = [
        ("shm", "shm://kv?backend=rfp&window=32&slot=4k"),
        ("rdma", "rdma://10.0.0.1:7471?device=rxe0&backend=datagram&silence=5s"),
        ("tcp", "tcp://[::1]:7471?max_message=1m&memory=64m"),
        ("place", "tcp://node:65535"),
    ];
    let addresses = texts.map(|(name, text)| {
        assert!(text.parse::<Address>().is_ok(), "{text}: {:?}", text.parse::<Address>());
        (name.to_owned(), text.as_bytes().to_vec())
    });
    let target = "address::fuzz::any_text_is_an_address_or_an_error";
    is_kept("src/address", target, addresses);
}
