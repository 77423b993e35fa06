//! load and dump against a running server.

mod common;

use std::fs;
use std::path::Path;

use common::{Server, stderr};

fn sorted(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_dump_loads_into_an_equal_store() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.tsv");
    // More than a page by count, one entry longer than a page, and all byte values.
    let mut text = Vec::new();
    for i in 0..3000u32 {
        text.extend_from_slice(format!("key{i}\tvalue {i}\n").as_bytes());
    }
    text.extend_from_slice(b"large\t");
    text.extend(std::iter::repeat_n(b'x', 3 << 20));
    text.push(b'\n');
    for byte in 0..=255u8 {
        text.extend_from_slice(format!("\\x{byte:02x}\tbyte\\x{byte:02X}\n").as_bytes());
    }
    fs::write(&first, &text).unwrap();

    let one = Server::start();
    one.ok(&["load", path(&first)], b"");
    let dumped = one.ok(&["dump"], b"");
    assert_eq!(sorted(&dumped).len(), 3000 + 1 + 256);

    let other = Server::start_with(&["--threads", "2"]);
    other.ok(&["load", "-"], &dumped);
    assert!(other.ok(&["dump"], b"") == dumped, "the dumps differ");
    assert_eq!(other.ok(&["get", "--hex", "09"], b""), b"6279746509\n");
}

#[test]
fn a_bad_line_stops_the_load_unless_it_may_be_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.tsv");
    fs::write(&file, b"a\t1\nno tab here\nb\t2\nc\t3\\q\n\t4\nd\t4").unwrap();

    let server = Server::start();
    let stopped = server.run(&["load", path(&file)], b"");
    let told = stderr(&stopped);
    assert_eq!(stopped.status.code(), Some(2));
    assert!(told.contains("bad.tsv, line 2: no tab"), "{told}");
    assert!(told.contains("--skip-bad"), "{told}");
    assert_eq!(server.ok(&["dump"], b""), b"a\t1\n");

    let skipped = server.run(&["load", "--skip-bad", path(&file)], b"");
    let told = stderr(&skipped);
    assert_eq!(skipped.status.code(), Some(0), "{told}");
    for bad in ["line 2: no tab", "line 4: column 4", "line 5: the key is empty", "3 bad lines"] {
        assert!(told.contains(bad), "{bad}: {told}");
    }
    assert_eq!(server.ok(&["dump"], b""), b"a\t1\nb\t2\nd\t4\n");
}

#[test]
fn a_missing_file_is_reported() {
    let server = Server::start();
    let missing = server.run(&["load", "/nonexistent/file.tsv"], b"");
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("/nonexistent/file.tsv"));
}
