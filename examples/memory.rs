//! A server that lends a table, and clients that read and count in it: no handler of the server's runs for that.
//!
//! ```sh
//! cargo run --release --example memory
//! ```

use std::thread;

use farcall::Server;
use farcall::memory::{
    Memory, MemoryError, MemoryServer, Region, Remote, RemoteMemory, Rights, Until,
};

/// A row: how often it was visited, and a name.
const ROW_BYTES: u64 = 64;
const NAME: std::ops::Range<u64> = 8..64;
const NAMES: [&str; 4] = ["assam", "ceylon", "darjeeling", "sencha"];

/// Where the table is. Clients ask once.
#[farcall::service]
trait Tea {
    fn table(&self) -> Result<Remote, MemoryError>;
}

#[derive(Clone)]
struct Table(Region);

impl Table {
    fn fill(&self) {
        for (row, name) in NAMES.iter().enumerate() {
            self.0.write(row * ROW_BYTES as usize + NAME.start as usize, name.as_bytes());
        }
    }

    fn visits(&self, row: usize) -> u64 {
        self.0.load_u64(row * ROW_BYTES as usize)
    }
}

impl Tea for Table {
    fn table(&self) -> Result<Remote, MemoryError> {
        self.0.lend(.., Rights::READ | Rights::ATOMIC, Until::REVOKED)
    }
}

/// Reads each name, and counts the visit.
fn visit(address: &str, rounds: u64) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let tea = TeaClient::connect(address).also::<RemoteMemory>().wait()?;
    let memory = RemoteMemory::on(tea.channel())?;
    let table = tea.table().wait()?;
    for round in 0..rounds {
        for (row, expected) in (0..).zip(NAMES) {
            let row = table.slice(row * ROW_BYTES..(row + 1) * ROW_BYTES)?;
            // Both travel together.
            let visit = memory.batch().fetch_add(&row.word(0)?, 1).read(&row.slice(NAME)?);
            let outcomes = visit.post().wait()?;
            let name = String::from_utf8_lossy(outcomes[1].bytes());
            assert_eq!(name.trim_end_matches('\0'), expected, "round {round}");
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address = format!("shm://memory-example-{}", std::process::id());
    let memory = Memory::new()?;
    let table = Table(memory.region(NAMES.len() * ROW_BYTES as usize)?);
    table.fill();
    let server = Server::builder()
        .service(TeaServer::new(table.clone()))
        .service(MemoryServer::new(memory.clone()))
        .listen(&address)?;

    // The clients could as well be other processes of this user.
    let clients = [(); 3].map(|()| {
        let address = address.clone();
        thread::spawn(move || visit(&address, 100))
    });
    for client in clients {
        client.join().map_err(|_| "a client has panicked")??;
    }
    for (row, name) in NAMES.iter().enumerate() {
        println!("{name}: {} visits", table.visits(row));
        assert_eq!(table.visits(row), 300);
    }

    // The table is to be rebuilt: all lends end, for certain, before its bytes change.
    let lent = table.table()?;
    println!("{} lends revoked", table.0.revoke());
    let late = RemoteMemory::connect(&address).wait()?;
    assert_eq!(late.read(&lent.slice(NAME)?).wait(), Err(MemoryError::Revoked));
    server.shutdown();
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    main()
}
