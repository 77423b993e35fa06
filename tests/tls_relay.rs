//! A relay that has a certificate for the name that a client dials, and not the key, connects no client with a key: proofs of keys are
//! bound to the TLS session.
#![forbid(unsafe_code)]

#[allow(dead_code)] // Each test uses a part of it.
#[path = "support/certificates.rs"]
mod certificates;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use certificates::{Authority, names};
use farcall::tls::{ClientTls, ServerTls};
use farcall::{Authentication, CallContext, ConnectError, Key, Server};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

#[farcall::service]
trait Vault {
    fn keep(&self, secret: String) -> Option<String>;
}

struct Here;

impl Vault for Here {
    fn keep(&self, _: String) -> Option<String> {
        CallContext::current()?.identity().map(|identity| identity.name().to_owned())
    }
}

/// Copies what is there; `false` at the end.
fn pump(from: &mut impl Read, to: &mut impl Write, seen: &Mutex<Vec<u8>>) -> bool {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(len) => {
            seen.lock().unwrap().extend(&bytes[..len]);
            to.write_all(&bytes[..len]).and_then(|()| to.flush()).is_ok()
        }
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn a_relay_with_a_certificate_and_no_key_connects_nobody() {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authority = Authority::new("both");
    let key = || Key::new("alice", [7; 32]).unwrap();
    let tls =
        ServerTls::without_client_certificates(authority.issue(names(&["127.0.0.1"]))).unwrap();
    let server = Server::builder()
        .service(VaultServer::new(Here))
        .tls(tls)
        .authenticate(Authentication::new().key(key()))
        .listen("tcp://127.0.0.1:0")
        .unwrap();
    let real = server.address().trim_start_matches("tcp://").split('?').next().unwrap().to_owned();

    // The relay: another certificate of the same authority for the same name, as a former or a neighbouring server has.
    let [chain, its_key] = authority.issue_pem(names(&["127.0.0.1"]));
    let mut inside = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(its_key.as_bytes()).unwrap(),
        )
        .unwrap();
    inside.alpn_protocols = vec![b"farcall".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let mut outside = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    outside.alpn_protocols = vec![b"farcall".to_vec()];
    let (inside, outside, seen) =
        (Arc::new(inside), Arc::new(outside), Arc::new(Mutex::new(Vec::new())));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let log = seen.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&real).unwrap());
            for socket in [&client, &server] {
                socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            }
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let mut inner =
                StreamOwned::new(ServerConnection::new(inside.clone()).unwrap(), client);
            let mut outer =
                StreamOwned::new(ClientConnection::new(outside.clone(), name).unwrap(), server);
            let log = log.clone();
            std::thread::spawn(move || {
                while pump(&mut inner, &mut outer, &log) && pump(&mut outer, &mut inner, &log) {}
            });
        }
    });

    let connect = |address: String| {
        VaultPollClient::connect(address)
            .tls(ClientTls::without_certificate(authority.trusted()).unwrap())
            .key(key())
            .wait()
    };
    let refused = connect(format!("tcp://{address}")).unwrap_err();
    assert!(matches!(refused, ConnectError::NotPermitted { .. }), "{refused}");
    // The relay has passed on the handshake, and nothing was wrong but the session.
    assert!(!seen.lock().unwrap().is_empty(), "it relays nothing");
    let mut direct = connect(server.address().to_owned()).unwrap();
    assert_eq!(direct.keep("the secret".into()).unwrap().as_deref(), Some("alice"));
}
