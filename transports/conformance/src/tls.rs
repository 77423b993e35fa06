//! TLS around a fixture's sockets, with certificates that are made for the run.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use farcall_core::transport::{BindTls, DialTls};
use farcall_transports::tls::{Authorities, Certificate, ClientTls, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig,
    ServerConnection, SideData, StreamOwned,
};

use crate::addresses::Within;
use crate::hostile::{Stream, poll_in};

/// The host of all addresses.
const HOST: &str = "127.0.0.1";

/// One authority, and an end of each kind that has a certificate of it.
pub struct MutualTls {
    server: ServerTls,
    client: ClientTls,
    /// The same for ends in the hands of a test.
    raw_server: Arc<ServerConfig>,
    raw_client: Arc<ClientConfig>,
}

impl Default for MutualTls {
    fn default() -> MutualTls {
        MutualTls::new()
    }
}

impl MutualTls {
    /// A new authority.
    pub fn new() -> MutualTls {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let issue = |name: &str| {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new([name.to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            [certificate.pem(), key.serialize_pem()]
        };
        let ([server_chain, server_key], [client_chain, client_key]) =
            (issue(HOST), issue("client.example"));
        let trusted = Authorities::from_pem(authority.pem()).expect("an authority");
        let certificate = |chain, key| Certificate::from_pem(chain, key).expect("a certificate");
        let server = ServerTls::new(certificate(&server_chain, &server_key), trusted.clone());
        let client = ClientTls::new(certificate(&client_chain, &client_key), trusted);

        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("an authority");
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let raw_server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(chain_of(&server_chain), key_of(&server_key))
            .expect("a pair");
        let raw_client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain_of(&client_chain), key_of(&client_key))
            .expect("a pair");
        MutualTls {
            server: server.expect("a server's TLS"),
            client: client.expect("a client's TLS"),
            raw_server: Arc::new(raw_server),
            raw_client: Arc::new(raw_client),
        }
    }
}

fn chain_of(pem: &str) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")]
}

fn key_of(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key")
}

impl Within for MutualTls {
    fn server(&self) -> BindTls {
        self.server.clone().into()
    }

    fn client(&self) -> DialTls {
        self.client.clone().into()
    }

    fn greet(&self, socket: TcpStream) -> io::Result<Box<dyn Stream>> {
        let host = IpAddr::from(Ipv4Addr::LOCALHOST).into();
        let connection = ClientConnection::new(self.raw_client.clone(), host);
        let connection = connection.map_err(io::Error::other)?;
        Ok(Box::new(Secured(StreamOwned::new(connection, socket))))
    }

    fn accept(&self, socket: TcpStream) -> io::Result<Box<dyn Stream>> {
        let connection = ServerConnection::new(self.raw_server.clone());
        let connection = connection.map_err(io::Error::other)?;
        Ok(Box::new(Secured(StreamOwned::new(connection, socket))))
    }
}

/// A socket within TLS, which waits as the socket does.
struct Secured<C: DerefMut + Deref<Target = ConnectionCommon<S>>, S: SideData>(
    StreamOwned<C, TcpStream>,
)
where
    C: Sized;

impl<C: DerefMut + Deref<Target = ConnectionCommon<S>>, S: SideData> Read for Secured<C, S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.0.read(bytes) {
            // This project's ends close the socket alone.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }
}

impl<C: DerefMut + Deref<Target = ConnectionCommon<S>>, S: SideData> Write for Secured<C, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<C, S> Stream for Secured<C, S>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>> + Send,
    S: SideData + Send,
{
    fn is_readable(&self) -> bool {
        poll_in(&self.0.sock)
    }

    fn close_half(&self) {
        // Fails only if the other end has closed all of it.
        let _ = self.0.sock.shutdown(Shutdown::Write);
    }
}
