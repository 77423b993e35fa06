//! How often the bytes of a call are copied on their way: in how many places of this process's memory they lie after it.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use farcall::buffers::{Buffers, LargeMessageCounts};
use farcall::{DrivenServer, Server};
use farcall_core::site::{Clock, Site};
use farcall_core::time::Instant;
use farcall_transports::Address;
use tokio::runtime;

#[farcall::service]
trait Exchange {
    /// Takes bytes, and gives others.
    fn whole(&self, bytes: Bytes) -> Bytes;
    /// The same, as a part of the arguments and of the result.
    fn part(&self, number: u64, bytes: &[u8]) -> (u64, Bytes);
}

#[derive(Clone, Default)]
struct Service(Arc<Mutex<Bytes>>);

impl Exchange for Service {
    fn whole(&self, _bytes: Bytes) -> Bytes {
        self.0.lock().unwrap().clone()
    }

    fn part(&self, number: u64, _bytes: &[u8]) -> (u64, Bytes) {
        (number, self.0.lock().unwrap().clone())
    }
}

/// The bytes of one message, as no other message has them.
#[derive(Clone, Copy)]
struct Pattern(u64);

impl Pattern {
    fn byte(self, at: usize) -> u8 {
        let mixed = ((self.0 << 32) | (at as u64 / 4)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (24 + 8 * (at % 4))) as u8
    }

    fn message(self, len: usize) -> Bytes {
        (0..len).map(|at| self.byte(at)).collect::<Vec<_>>().into()
    }

    /// Whether these are the message's bytes from there on. Makes no copy.
    fn is(self, from: usize, bytes: &[u8]) -> bool {
        bytes.iter().enumerate().all(|(at, byte)| *byte == self.byte(from + at))
    }
}

/// Bytes of a message that are searched for.
const NEEDLE_BYTES: usize = 24;

const PAGE_BYTES: usize = 4096;

/// Pages that are read at once.
const PAGES: usize = 256;

/// Reads this process's memory.
struct Search {
    memory: File,
    /// What is read into. It is not searched.
    room: Box<[u8]>,
}

impl Search {
    fn new() -> Search {
        let room = vec![0; PAGES * PAGE_BYTES + NEEDLE_BYTES].into();
        Search { memory: File::open("/proc/self/mem").unwrap(), room }
    }

    /// How many places hold bytes near the end of each message: later parts of a long one do not overwrite those. A page that is mapped
    /// twice is one place.
    fn places(&mut self, messages: [Pattern; 2], len: usize) -> [usize; 2] {
        let from = len - 2 * NEEDLE_BYTES;
        let first = messages.map(|message| message.byte(from));
        let Search { memory, room } = self;
        let own = room.as_ptr().addr() as u64..room.as_ptr_range().end.addr() as u64;
        let mut places = [BTreeSet::new(), BTreeSet::new()];
        for Mapping { start, len, file, offset } in mappings() {
            for part in (0..len).step_by(PAGES * PAGE_BYTES) {
                let wanted = room.len().min(len - part);
                // Some of the kernel's own pages cannot be read.
                let read = memory.read_at(&mut room[..wanted], start + part as u64).unwrap_or(0);
                for page in (0..read).step_by(PAGE_BYTES) {
                    let bytes = &room[page..read.min(page + PAGE_BYTES + NEEDLE_BYTES)];
                    if bytes[..bytes.len().min(PAGE_BYTES)] == [0; PAGE_BYTES] {
                        continue;
                    }
                    for at in 0..bytes.len().saturating_sub(NEEDLE_BYTES) {
                        if !first.contains(&bytes[at]) {
                            continue;
                        }
                        let needle = &bytes[at..at + NEEDLE_BYTES];
                        let at = (part + page + at) as u64;
                        for (message, places) in messages.iter().zip(&mut places) {
                            if message.is(from, needle) && !own.contains(&(start + at)) {
                                places.insert((file.clone(), offset + at));
                            }
                        }
                    }
                }
            }
        }
        places.map(|places| places.len())
    }
}

/// Memory that this process can write.
struct Mapping {
    start: u64,
    len: usize,
    /// Its device and number; or nothing, and `offset` is the address.
    file: String,
    offset: u64,
}

fn mappings() -> Vec<Mapping> {
    let parse = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let (start, len) = (number(start), (number(end) - number(start)) as usize);
        let (file, offset) = match fields[4] {
            "0" => (String::new(), start),
            inode => (format!("{} {inode}", fields[3]), number(fields[2])),
        };
        fields[1].starts_with("rw").then_some(Mapping { start, len, file, offset })
    };
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter_map(parse).collect()
}

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Wait,
    Await,
    Poll,
}

/// The most copies of a request and of its response.
///
/// Two are needed where each side keeps memory that the other cannot write: one into memory that both have, and one out of it. A
/// message of several parts is encoded in between. A short one is copied at each step: that costs less than to count who uses its memory.
fn most_copies(how: How, is_whole: bool, len: usize) -> [usize; 2] {
    match (is_whole, how) {
        (true, _) if len >= 1024 => [2, 2],
        (true, How::Poll) => [4, 4],
        (true, _) => [5, 5],
        (false, _) if len >= 1024 => [3, 3],
        (false, How::Poll) => [3, 4],
        (false, _) => [4, 5],
    }
}

/// Stands still: by any other clock handlers seem to run long when the system runs something else, and a request of a method that runs
/// long is copied once more.
struct Still(Instant);

impl Clock for Still {
    fn now(&self) -> Instant {
        self.0
    }
}

/// Servers so far.
static SERVERS: AtomicU32 = AtomicU32::new(0);

/// A server with such a clock, and one thread.
struct StillServer {
    server: DrivenServer,
    thread: Option<JoinHandle<()>>,
}

impl StillServer {
    fn listen(service: Service) -> StillServer {
        let (made, server) = mpsc::channel();
        let serve = move || {
            let number = SERVERS.fetch_add(1, Ordering::Relaxed);
            let binding = format!("shm://copies-{}-{number}", process::id());
            let binding: Address = binding.parse().unwrap();
            let now = Instant::from_nanos(1);
            let site = Site::with_clock(Arc::new(Still(now)));
            let builder = Server::builder().service(ExchangeServer::new(service));
            let (server, mut threads) = builder.assemble(&[&binding], vec![site]).unwrap();
            made.send(server).unwrap();
            let thread = &mut threads[0];
            while !thread.is_over() {
                thread.turn(now);
                thread::yield_now();
            }
        };
        let thread = Some(thread::spawn(serve));
        StillServer { server: server.recv().unwrap(), thread }
    }
}

impl Drop for StillServer {
    fn drop(&mut self) {
        self.server.shut_down(Duration::ZERO);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

/// The device makes the only copy, from one program's memory into the other's.
#[test]
fn messages_in_buffers_of_the_program_are_copied_once() {
    let _alone = ALONE.lock().unwrap();
    const LEN: usize = 8 << 20;
    let service = Service::default();
    let StillServer { server, .. } = &StillServer::listen(service.clone());
    let address = server.address();
    let client = ExchangeClient::connect(address).wait().unwrap();
    let mut polling = ExchangePollClient::connect(address).wait().unwrap();
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let buffers = Buffers::new().unwrap();
    let mut search = Search::new();
    let mut number = 1 << 20;
    for how in [How::Wait, How::Await, How::Poll] {
        number += 2;
        let messages @ [request, response] = [Pattern(number), Pattern(number + 1)];
        let in_buffer = |message: Pattern| {
            let mut buffer = buffers.buffer(LEN).unwrap();
            buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = message.byte(at));
            buffer.freeze()
        };
        *service.0.lock().unwrap() = in_buffer(response);
        let sent = in_buffer(request);
        let before = LargeMessageCounts::now().sent_in_place;
        let received = match how {
            How::Wait => client.whole(sent.clone()).wait(),
            How::Await => runtime.block_on(client.whole(sent.clone())),
            How::Poll => polling.whole(sent.clone()),
        };
        let received = received.unwrap();
        assert!(received.len() == LEN && response.is(0, &received));
        assert_eq!(LargeMessageCounts::now().sent_in_place - before, 2, "{how:?}");
        let copies = search.places(messages, LEN).map(|places| places - 1);
        assert_eq!(copies, [1, 1], "{how:?}");
    }
}

/// Tests that search the memory of the process, one at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn each_copy_of_a_message_has_a_reason() {
    let _alone = ALONE.lock().unwrap();
    let service = Service::default();
    let StillServer { server, .. } = &StillServer::listen(service.clone());
    let client = ExchangeClient::connect(server.address()).wait().unwrap();
    let mut polling = ExchangePollClient::connect(server.address()).wait().unwrap();
    let runtime = runtime::Builder::new_current_thread().build().unwrap();
    let mut search = Search::new();
    let mut number = 0;
    for (how, is_whole) in
        [How::Wait, How::Await, How::Poll].map(|how| [(how, true), (how, false)]).concat()
    {
        for len in [256, 1 << 10, 32 << 10, 100 << 10, 1 << 20] {
            let most = most_copies(how, is_whole, len);
            number += 2;
            let messages @ [request, response] = [Pattern(number), Pattern(number + 1)];
            *service.0.lock().unwrap() = response.message(len);
            let sent = request.message(len);
            let call = match (how, is_whole) {
                (How::Wait, true) => client.whole(sent.clone()).wait(),
                (How::Await, true) => runtime.block_on(client.whole(sent.clone())),
                (How::Poll, true) => polling.whole(sent.clone()),
                (How::Wait, false) => client.part(number, &sent).wait().map(|it| it.1),
                (How::Await, false) => runtime.block_on(client.part(number, &sent)).map(|it| it.1),
                (How::Poll, false) => polling.part(number, &sent).map(|it| it.1),
            };
            let received = call.unwrap();
            assert!(received.len() == len && response.is(0, &received));
            // The first place is where the bytes were from the beginning.
            let copies = search.places(messages, len).map(|places| places - 1);
            assert!(
                copies.iter().zip(most).all(|(copies, most)| (1..=most).contains(copies)),
                "{how:?}, {len} bytes, whole: {is_whole}: {copies:?} of {most:?}"
            );
        }
    }
}
