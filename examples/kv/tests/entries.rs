//! get, put, del and scan against a running server.

mod common;

use common::{Server, stderr};

#[test]
fn a_value_is_found_until_it_is_deleted() {
    let server = Server::start_with(&["--threads", "2"]);
    let missing = server.run(&["get", "tea"], b"");
    assert_eq!((missing.status.code(), &missing.stdout[..]), (Some(1), &b""[..]));
    assert_eq!(server.run(&["del", "tea"], b"").status.code(), Some(1));

    server.ok(&["put", "tea", "green"], b"");
    assert_eq!(server.ok(&["get", "tea"], b""), b"green");
    server.ok(&["put", "tea", "-"], b"white\n");
    assert_eq!(server.ok(&["get", "tea"], b""), b"white\n");
    server.ok(&["del", "tea"], b"");
    assert_eq!(server.run(&["get", "tea"], b"").status.code(), Some(1));
}

#[test]
fn any_bytes_are_a_key_or_a_value() {
    let server = Server::start();
    server.ok(&["put", "--hex", "00ff0a", "0d0a00"], b"");
    assert_eq!(server.ok(&["get", "--hex", "00ff0a"], b""), b"0d0a00\n");
    assert_eq!(server.ok(&["get", "-"], b"\x00\xff\n"), b"\r\n\0");
    assert_eq!(server.ok(&["scan", "--hex"], b""), b"00ff0a\t0d0a00\n");
    assert_eq!(server.ok(&["scan"], b""), b"\\x00\\xff\\n\t\\r\\n\\x00\n");
    server.ok(&["put", "--", "-v", "--value"], b"");
    assert_eq!(server.ok(&["get", "--", "-v"], b""), b"--value");
}

#[test]
fn a_value_and_a_key_of_16_mib_come_back() {
    let server = Server::start();
    let long: Vec<u8> = (0..16 << 20).map(|i: u32| (i ^ (i >> 7)) as u8).collect();
    server.ok(&["put", "long", "-"], &long);
    assert!(server.ok(&["get", "long"], b"") == long, "the value came back changed");
    server.ok(&["put", "-", "short"], &long);
    assert_eq!(server.ok(&["get", "-"], &long), b"short");

    let mut longer = long;
    longer.push(0);
    let refused = server.run(&["put", "long", "-"], &longer);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("16777217 bytes"), "{}", stderr(&refused));
    let refused = server.run(&["get", "-"], &longer);
    assert!(stderr(&refused).contains("16777217 bytes"), "{}", stderr(&refused));
}

#[test]
fn scans_begin_and_end_where_requested() {
    let server = Server::start();
    for key in ["a", "b1", "b2", "c"] {
        server.ok(&["put", key, &key.to_uppercase()], b"");
    }
    assert_eq!(server.ok(&["scan"], b""), b"a\tA\nb1\tB1\nb2\tB2\nc\tC\n");
    assert_eq!(server.ok(&["scan", "b"], b""), b"b1\tB1\nb2\tB2\nc\tC\n");
    assert_eq!(server.ok(&["scan", "b1", "--to", "c"], b""), b"b1\tB1\nb2\tB2\n");
    assert_eq!(server.ok(&["scan", "--prefix", "b"], b""), b"b1\tB1\nb2\tB2\n");
    assert_eq!(server.ok(&["scan", "--limit", "1"], b""), b"a\tA\n");
    assert_eq!(server.ok(&["scan", "x"], b""), b"");
}

#[test]
fn invalid_requests_are_refused_with_the_reason() {
    let server = Server::start_with(&["--memory-limit", "1K"]);
    let told = |arguments: &[&str], stdin: &[u8], words: &str| {
        let output = server.run(arguments, stdin);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    };
    told(&["get", ""], b"", "the key is empty");
    told(&["put", "k", ""], b"", "the value is empty");
    told(&["put", "k", "-"], b"", "the value is empty");
    told(&["put", "-", "-"], b"", "not both");
    told(&["get", "--hex", "abc"], b"", "two make a byte");
    told(&["get", "--hex", "zz"], b"", "no hexadecimal digit");
    told(&["put", "k", "-"], &[7; 2000], "the store is full");
    told(&["get", "k", "--timeout", "0"], b"", "seconds");
}
