//! What a program says about TLS: who it is, whom it trusts.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use farcall_core::transport::{BindTls, DialTls};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::pem::{Authorities, Certificate, TlsError};

/// The protocol within TLS, for ALPN: with it, a server of another protocol that has the same certificate cannot be taken for
/// one of ours.
const PROTOCOL: &[u8] = b"farcall";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// TLS at a server: its certificate, and whose certificates clients must show.
///
/// Clones are the same settings: [`replace`](Self::replace) works on all of them.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<Mutex<Arc<ServerConfig>>>,
    identifies_clients: bool,
}

impl ServerTls {
    /// A server with this certificate, which lets in only clients whose certificate one of these authorities has issued.
    ///
    /// The identity of a client is the first URI among the alternative names of its certificate, or, without one, the first DNS
    /// name. A certificate with neither is refused.
    ///
    /// # Errors
    /// [`TlsError::Pair`], [`TlsError::Authorities`].
    pub fn new(certificate: Certificate, clients: Authorities) -> Result<ServerTls, TlsError> {
        ServerTls::make(certificate, Some(clients))
    }

    /// A server with this certificate, which asks clients for none: they know the server, the server does not know them. Keys
    /// can still prove who they are.
    ///
    /// # Errors
    /// [`TlsError::Pair`].
    pub fn without_client_certificates(certificate: Certificate) -> Result<ServerTls, TlsError> {
        ServerTls::make(certificate, None)
    }

    fn make(
        Certificate { chain, key }: Certificate,
        clients: Option<Authorities>,
    ) -> Result<ServerTls, TlsError> {
        let pair = |error: rustls::Error| TlsError::Pair(error.to_string());
        let identifies_clients = clients.is_some();
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(pair)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(Authorities(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .build()
                    .map_err(|error| TlsError::Authorities(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Each connection proves everything again. And a ticket would come after the handshake, when a socket that serves as the
        // liveness socket must be silent.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(ServerTls { config: Arc::new(Mutex::new(Arc::new(config))), identifies_clients })
    }

    /// Handshakes that begin from now on use the certificate and the authorities of `other`. Connections stay as they are.
    ///
    /// Whether clients must show a certificate is decided when the server begins to listen, and cannot be replaced: `false` if
    /// `other` differs in that, and nothing is replaced.
    pub fn replace(&self, other: &ServerTls) -> bool {
        let is_same_kind = self.identifies_clients == other.identifies_clients;
        if is_same_kind {
            // Not both locks at a time: `other` may be a clone of this.
            let config = other.config();
            *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        }
        is_same_kind
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<ServerTls> for BindTls {
    fn from(tls: ServerTls) -> BindTls {
        let identifies_clients = tls.identifies_clients;
        BindTls::new(tls, identifies_clients)
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("identifies_clients", &self.identifies_clients)
            .finish_non_exhaustive()
    }
}

/// TLS at a client: whose servers it trusts, and its own certificate if it has one.
///
/// Clones are the same settings: [`replace`](Self::replace) works on all of them.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<Mutex<Arc<ClientConfig>>>,
    server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// A client that has this certificate, and trusts servers whose certificate one of these authorities has issued for the host of
    /// the address.
    ///
    /// # Errors
    /// [`TlsError::Pair`].
    pub fn new(certificate: Certificate, servers: Authorities) -> Result<ClientTls, TlsError> {
        ClientTls::make(Some(certificate), servers)
    }

    /// A client without a certificate, for a server that asks for none.
    ///
    /// # Errors
    /// [`TlsError::Authorities`].
    pub fn without_certificate(servers: Authorities) -> Result<ClientTls, TlsError> {
        ClientTls::make(None, servers)
    }

    fn make(
        certificate: Option<Certificate>,
        Authorities(roots): Authorities,
    ) -> Result<ClientTls, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::Authorities(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(Certificate { chain, key }) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| TlsError::Pair(error.to_string()))?,
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(ClientTls { config: Arc::new(Mutex::new(Arc::new(config))), server_name: None })
    }

    /// The server's certificate must be for this DNS name or IP address. Default: for the host of the address.
    ///
    /// # Errors
    /// [`TlsError::ServerName`].
    pub fn server_name(mut self, name: &str) -> Result<ClientTls, TlsError> {
        self.server_name = Some(parse_name(name)?);
        Ok(self)
    }

    /// Connections that are made from now on use the certificate and the authorities of `other`. Those that exist stay as they are,
    /// and the server's name too.
    pub fn replace(&self, other: &ClientTls) {
        let config = other.config();
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the certificate of a server at this host must be for.
    pub(super) fn name_of(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        self.server_name.clone().map_or_else(|| parse_name(host), Ok)
    }
}

fn parse_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))
}

impl From<ClientTls> for DialTls {
    fn from(tls: ClientTls) -> DialTls {
        DialTls::new(tls)
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}
