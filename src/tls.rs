//! TLS for `rdma://` and `tcp://` addresses (feature `tls`): who the other end is, by its certificate.
//!
//! ```no_run
//! use farcall::tls::{Authorities, Certificate, ClientTls, ServerTls};
//! use farcall::{Authentication, Server};
//! # #[farcall::service]
//! # trait Kv { fn get(&self, key: String) -> String; }
//! # struct Store;
//! # impl Kv for Store { fn get(&self, key: String) -> String { key } }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let certificate = Certificate::from_pem_files("/etc/kv/server.pem", "/etc/kv/server.key")?;
//! let clients = Authorities::from_pem_file("/etc/kv/clients.pem")?;
//! let server = Server::builder()
//!     .tls(ServerTls::new(certificate, clients)?)
//!     .authenticate(Authentication::new().permit(|client, _| client.name() == "billing.example"))
//!     .service(KvServer::new(Store))
//!     .listen("tcp://0.0.0.0:7471")?;
//!
//! let certificate = Certificate::from_pem_files("/etc/billing/client.pem", "/etc/billing/client.key")?;
//! let servers = Authorities::from_pem_file("/etc/billing/servers.pem")?;
//! let client = KvClient::connect("tcp://kv.example:7471")
//!     .tls(ClientTls::new(certificate, servers)?)
//!     .wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! The page *Security* of the book tells what this protects, and what not.

pub use farcall_transports::tls::{Authorities, Certificate, ClientTls, ServerTls, TlsError};
