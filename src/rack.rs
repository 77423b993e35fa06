//! Simulated racks of servers and clients: in virtual time, in one thread, from one seed.
//!
//! The code is the same as on hardware; only the NICs, the wires and the clock are simulated ([`sim`]). A
//! service can thus be tested with a hundred clients, under faults, and with the NICs of published papers,
//! and each run can be repeated from its seed.
//!
//! ```
//! use std::time::Duration;
//!
//! use farcall::Server;
//! use farcall::rack::Rack;
//!
//! #[farcall::service]
//! trait Adder {
//!     fn add(&self, a: u64, b: u64) -> u64;
//! }
//!
//! struct Sums;
//!
//! impl Adder for Sums {
//!     fn add(&self, a: u64, b: u64) -> u64 {
//!         a + b
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut rack = Rack::new(42);
//! let server = rack.add_node();
//! let address = format!("sim://{server}/adder");
//! let serving = rack.serve(&address, Server::builder().service(AdderServer::new(Sums)).threads(2))?;
//!
//! // A hundred clients on ten machines, each of which makes ten calls.
//! let machines: Vec<_> = (0..10).map(|_| rack.add_node()).collect();
//! let clients: Vec<_> = (0..100u64)
//!     .map(|client| {
//!         let address = address.clone();
//!         rack.spawn_program(machines[client as usize % 10], async move |host| {
//!             let adder: AdderClient = host.connect(&address).await?;
//!             let begin = host.now();
//!             for call in 0..10 {
//!                 assert_eq!(adder.add(client, call).await?, client + call);
//!             }
//!             Ok::<_, Box<dyn std::error::Error>>((host.now() - begin) / 10)
//!         })
//!     })
//!     .collect();
//! rack.run_for(1_000_000);
//! for client in clients {
//!     let per_call = client.take().expect("a millisecond is enough")?;
//!     assert!(per_call > Duration::from_micros(2) && per_call < Duration::from_micros(30));
//! }
//! assert_eq!(serving.metrics().snapshot().method("Adder", "add").map(|add| add.ok()), Some(1000));
//! # Ok(())
//! # }
//! ```

pub use farcall_rack::{
    CpuCosts, Dialled, Dialling, Host, Rack, RackAddress, Task, site_of, turn_after,
};
pub use farcall_verbs::sim;
