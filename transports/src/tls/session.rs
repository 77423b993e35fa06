//! One connection's TLS, without its socket.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use farcall_core::Identity;
use farcall_core::identity::MAX_NAME_BYTES;
use farcall_core::transport::{BindTls, DialTls};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, Connection, ServerConnection};
use webpki::EndEntityCert;

use super::Failure;
use super::failure::{End, explain};
use super::settings::{ClientTls, ServerTls};
use super::stream::TlsStream;
use crate::contract::Stream;

/// The label of what proofs of keys are bound to (RFC 5705, section 4).
const BINDING_LABEL: &[u8] = b"EXPORTER-farcall-key-proof";

/// The state of one connection.
pub(crate) struct Session {
    connection: Connection,
    end: End,
}

fn foreign() -> Failure {
    Failure("the settings for TLS are none of farcall::tls".into())
}

/// Whether these are settings for TLS.
pub(crate) fn knows(tls: &BindTls) -> Result<(), Failure> {
    tls.settings::<ServerTls>().map(|_| ()).ok_or_else(foreign)
}

/// A client's connection to a server at this host.
pub(crate) fn client_session(tls: &DialTls, host: &str) -> Result<Session, Failure> {
    let tls = tls.settings::<ClientTls>().ok_or_else(foreign)?;
    let name = tls.name_of(host).map_err(|error| Failure(error.to_string()))?;
    let connection =
        ClientConnection::new(tls.config(), name).map_err(|error| explain(&error, End::Client))?;
    Ok(Session { connection: connection.into(), end: End::Client })
}

/// A server's connection to a client.
pub(crate) fn server_session(tls: &BindTls) -> Result<Session, Failure> {
    let tls = tls.settings::<ServerTls>().ok_or_else(foreign)?;
    let connection =
        ServerConnection::new(tls.config()).map_err(|error| explain(&error, End::Server))?;
    Ok(Session { connection: connection.into(), end: End::Server })
}

impl Session {
    /// Whether the ends do not yet know one another.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Takes what the peer has sent.
    ///
    /// # Errors
    /// The session is over. [`records`](Self::records) has what the peer is to be told.
    pub(crate) fn take_records(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let taken = self.connection.read_tls(&mut bytes);
            let taken = taken.map_err(|error| Failure(format!("TLS: {error}")))?;
            self.connection.process_new_packets().map_err(|error| explain(&error, self.end))?;
            // It has said that it sends nothing more.
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// What is to be sent to the peer now.
    pub(crate) fn records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.connection.wants_write() {
            // A vector takes everything.
            if self.connection.write_tls(&mut records).is_err() {
                break;
            }
        }
        records
    }

    /// What the peer has said; 0 bytes: nothing more so far.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        // The other answers are that there is nothing now, or never again; then the socket says which.
        self.connection.reader().read(into).unwrap_or(0)
    }

    /// Says this to the peer: [`records`](Self::records) has it then.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.connection.writer().write_all(bytes);
        written.map_err(|error| Failure(format!("TLS: {error}")))
    }

    /// Who the peer is, by its certificate; `None` if it was not asked for one.
    ///
    /// # Errors
    /// The certificate tells no name.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, Failure> {
        match self.connection.peer_certificates() {
            Some([certificate, ..]) => identity(certificate).map(Some),
            _ => Ok(None),
        }
    }

    /// What only the two ends of this session know.
    ///
    /// # Errors
    /// The ends do not yet know one another.
    pub(crate) fn binding(&self) -> Result<[u8; 32], Failure> {
        let binding = self.connection.export_keying_material([0; 32], BINDING_LABEL, None);
        binding.map_err(|error| explain(&error, self.end))
    }

    /// The stream that goes on within this session on its socket, which never blocks.
    pub(crate) fn into_stream(self, socket: OwnedFd) -> Stream {
        Stream::Custom(Box::new(TlsStream::new(self.connection, self.end, socket)))
    }
}

/// The name in a certificate that was checked already.
fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, Failure> {
    let certificate = EndEntityCert::try_from(certificate)
        .map_err(|error| Failure(format!("the client's certificate cannot be read: {error}")))?;
    let name =
        certificate.valid_uri_names().next().or_else(|| certificate.valid_dns_names().next());
    let Some(name) = name else {
        return Err(Failure(
            "the client's certificate has neither a URI nor a DNS name among its alternative names, so it says not who the \
             client is; issue it with one"
                .into(),
        ));
    };
    if name.len() > MAX_NAME_BYTES {
        let len = name.len();
        return Err(Failure(format!(
            "the name in the client's certificate has {len} bytes; {MAX_NAME_BYTES} are the most"
        )));
    }
    Ok(Identity::named(name))
}
