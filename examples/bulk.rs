//! Large data in two ways: images that are sent in buffers without a copy, and a file that a client moves itself.
//!
//! ```sh
//! cargo run --release --example bulk
//! ```

use std::time::Duration;

use farcall::buffers::{BufferError, Buffers, LargeMessageCounts};
use farcall::bulk::{Bulk, BulkClient, BulkError, BulkServer, Download, Upload};
use farcall::memory::{Memory, MemoryServer, Region, RemoteMemory};
use farcall::{Bytes, Server};

const IMAGE_BYTES: usize = 8 << 20;
const FILE_BYTES: u64 = 12 << 20;
/// How long a client may take to move a file.
const LEASE: Duration = Duration::from_secs(30);

#[farcall::service]
trait Studio {
    /// The negative of an image.
    fn invert(&self, image: Bytes) -> Bytes;
    /// Where a file may be put. The call's value is its checksum.
    fn put_file(&self) -> Result<Upload<u64>, BulkError>;
    /// Where two parts of the file lie, and its checksum.
    fn get_file(&self) -> Result<Download<u64>, BulkError>;
}

struct Service {
    buffers: Buffers,
    bulk: Bulk,
    file: Region,
}

impl Service {
    fn invert(&self, image: &[u8]) -> Result<Bytes, BufferError> {
        let mut inverted = self.buffers.buffer(image.len())?;
        for (to, from) in inverted.iter_mut().zip(image) {
            *to = !from;
        }
        Ok(inverted.freeze())
    }
}

/// The sum of all words.
fn checksum(file: &Region) -> u64 {
    (0..file.len()).step_by(8).fold(0, |sum: u64, at| sum.wrapping_add(file.load_u64(at)))
}

impl Studio for Service {
    fn invert(&self, image: Bytes) -> Bytes {
        // Without a free buffer it is sent like any other memory.
        let on_heap = |_| image.iter().map(|byte| !byte).collect::<Vec<u8>>().into();
        Service::invert(self, &image).unwrap_or_else(on_heap)
    }

    fn put_file(&self) -> Result<Upload<u64>, BulkError> {
        let file = self.file.clone();
        self.bulk.accept([(&self.file, 0..FILE_BYTES)], LEASE, move || checksum(&file))
    }

    fn get_file(&self) -> Result<Download<u64>, BulkError> {
        let halves = [0..FILE_BYTES / 2, FILE_BYTES / 2..FILE_BYTES];
        self.bulk.offer(checksum(&self.file), halves.map(|half| (&self.file, half)), LEASE)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = format!("shm://bulk-example-{}", std::process::id());
    let memory = Memory::new()?;
    let (bulk, file) = (Bulk::new(&memory), memory.region(FILE_BYTES as usize)?);
    let service = Service { buffers: Buffers::new()?, bulk: bulk.clone(), file };
    let server = Server::builder()
        .service(StudioServer::new(service))
        .service(MemoryServer::new(memory))
        .service(BulkServer::new(bulk))
        .listen(&address)?;

    let studio =
        StudioClient::connect(&address).also::<RemoteMemory>().also::<BulkClient>().wait()?;
    let buffers = Buffers::new()?;
    for shade in 0..10 {
        let mut image = buffers.buffer(IMAGE_BYTES)?;
        image.fill(shade);
        let inverted = studio.invert(image.freeze()).wait()?;
        assert!(inverted.iter().all(|byte| *byte == !shade));
    }
    let sent = LargeMessageCounts::now().sent_in_place;
    println!("{sent} images were read where they were; the pool: {:?}", buffers.snapshot());
    assert_eq!(sent, 20, "10 there and 10 back");

    // One line each: the value of the call comes out of the transfer.
    let bulk = BulkClient::of(studio.channel())?;
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at % 251) as u8).collect();
    let stored = studio.put_file().wait()?.write(&bulk, [bytes.clone()]).wait()?;
    let (loaded, halves) = studio.get_file().wait()?.read(&bulk).wait()?;
    assert_eq!((stored, halves.concat()), (loaded, bytes));
    println!("a file of {FILE_BYTES} bytes was moved there and back; its checksum is {stored:x}");
    server.shutdown();
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("all of it");
}
