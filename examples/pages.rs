//! Large data in pieces, in place of streams: a listing by pages, and an upload of parts, several of them outstanding.
//!
//! ```sh
//! cargo run --release --example pages
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farcall::{Bytes, RpcError, Server};

/// Entries of one page: the round trip hardly counts any more, and no message is large.
const PAGE: usize = 256;

/// Bytes of one part of a file. It fits into a slot of `write_imm` on shared memory.
const PART: usize = 64 << 10;

/// Parts that are under way at a time.
const OUTSTANDING: usize = 8;

#[farcall::service]
trait Files {
    /// The next names after this one, in order; fewer than a page at the end. The server keeps no cursor.
    #[rpc(idempotent)]
    fn names_after(&self, last: &str) -> Vec<String>;

    /// Writes a part of a file. Parts say where they belong, so they may come in any order, and twice.
    #[rpc(idempotent)]
    fn write(&self, name: &str, offset: u64, part: &[u8]);

    /// How long the file is.
    fn length(&self, name: &str) -> Option<u64>;
}

#[derive(Default)]
struct InMemory(Mutex<BTreeMap<String, Vec<u8>>>);

impl InMemory {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files for InMemory {
    fn names_after(&self, last: &str) -> Vec<String> {
        let after = (Bound::Excluded(last), Bound::Unbounded);
        self.files().range::<str, _>(after).map(|(name, _)| name.clone()).take(PAGE).collect()
    }

    fn write(&self, name: &str, offset: u64, part: &[u8]) {
        // A server of strangers would bound this.
        let begin = offset as usize;
        let mut files = self.files();
        let file = files.entry(name.to_owned()).or_default();
        file.resize(file.len().max(begin + part.len()), 0);
        file[begin..begin + part.len()].copy_from_slice(part);
    }

    fn length(&self, name: &str) -> Option<u64> {
        self.files().get(name).map(|file| file.len() as u64)
    }
}

fn upload(files: &mut FilesPollClient, name: &str, content: &[u8]) -> Result<(), RpcError> {
    let mut parts = (0..).zip(content.chunks(PART));
    let mut calls = VecDeque::with_capacity(OUTSTANDING);
    loop {
        while calls.len() < OUTSTANDING
            && let Some((number, part)) = parts.next()
        {
            calls.push_back(files.start_write(name, number * PART as u64, part)?);
        }
        if calls.is_empty() {
            return Ok(());
        }
        files.poll();
        while let Some(oldest) = calls.front_mut()
            && let Some(answer) = files.take(oldest)
        {
            answer?;
            calls.pop_front();
        }
    }
}

fn list(files: &mut FilesPollClient) -> Result<Vec<String>, RpcError> {
    let mut names = Vec::new();
    let mut last = String::new();
    loop {
        let page = files.names_after(&last)?;
        let is_end = page.len() < PAGE;
        names.extend(page);
        match names.last() {
            Some(name) if !is_end => last.clone_from(name),
            _ => return Ok(names),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::builder()
        .service(FilesServer::new(InMemory::default()))
        .listen(format!("shm://pages-example-{}", std::process::id()))?;
    let mut files = FilesPollClient::connect(server.address()).wait()?;

    let content = Bytes::from(vec![7; 3 * PART + 5]);
    upload(&mut files, "picture", &content)?;
    assert_eq!(files.length("picture")?, Some(content.len() as u64));
    println!("uploaded {} bytes", content.len());

    for number in 0..1_000 {
        files.write(&format!("note-{number:04}"), 0, b"tea")?;
    }
    let names = list(&mut files)?;
    assert_eq!(names.len(), 1_001);
    assert!(names.is_sorted());
    println!("listed {} names in {} pages", names.len(), names.len().div_ceil(PAGE));
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
