//! Certificates, private keys and authorities in PEM.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Longest accepted PEM file, in bytes: the authorities of a whole operating system take some 250 KB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why there are no settings for TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("the file {path}: {cause}")]
    File {
        /// The path.
        path: String,
        /// The system's error. Not a source: the message above says it already.
        cause: io::Error,
    },
    /// A text is no PEM, or lacks what it is to have.
    #[error("{what}: {problem}")]
    Pem {
        /// What it was read as, and the file, if it is one.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The certificate does not go with the private key, or is of a kind that TLS 1.3 does not have.
    #[error("the certificate cannot be used with this private key: {0}; are they of one pair?")]
    Pair(String),
    /// The authorities cannot be used.
    #[error("the authorities cannot be used: {0}")]
    Authorities(String),
    /// It is no name of a server.
    #[error("{0:?} is neither a DNS name nor an IP address, so no certificate can be for it")]
    ServerName(String),
}

/// The certificates of authorities: an end trusts a certificate that one of them has issued.
#[derive(Clone)]
pub struct Authorities(pub(super) Arc<RootCertStore>);

impl Authorities {
    /// The certificates in a PEM file, one or more.
    ///
    /// # Errors
    /// [`TlsError::File`], and those of [`from_pem`](Self::from_pem).
    pub fn from_pem_file(path: impl AsRef<Path>) -> Result<Authorities, TlsError> {
        let path = path.as_ref();
        Authorities::parse(&read(path)?, format!("the authorities in {}", path.display()))
    }

    /// The certificates in this PEM text, one or more.
    ///
    /// # Errors
    /// [`TlsError::Pem`], [`TlsError::Authorities`].
    pub fn from_pem(pem: impl AsRef<[u8]>) -> Result<Authorities, TlsError> {
        Authorities::parse(pem.as_ref(), "the authorities".into())
    }

    fn parse(pem: &[u8], what: String) -> Result<Authorities, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in certificates(pem, &what)? {
            store.add(certificate).map_err(|error| TlsError::Pem {
                what: what.clone(),
                problem: error.to_string(),
            })?;
        }
        Ok(Authorities(Arc::new(store)))
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities").field("count", &self.0.len()).finish()
    }
}

/// An end's certificate with those between it and an authority, and its private key.
///
/// `Debug` does not print the key.
pub struct Certificate {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Two PEM files: the end's certificate, with those of intermediate authorities after it; and its private key, in PKCS#8,
    /// SEC1 or PKCS#1.
    ///
    /// # Errors
    /// [`TlsError::File`], and those of [`from_pem`](Self::from_pem).
    pub fn from_pem_files(
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Certificate, TlsError> {
        let (chain, key) = (chain.as_ref(), key.as_ref());
        Certificate::parse(
            (&read(chain)?, format!("the certificate in {}", chain.display())),
            (&read(key)?, format!("the private key in {}", key.display())),
        )
    }

    /// The same from two PEM texts.
    ///
    /// # Errors
    /// [`TlsError::Pem`].
    pub fn from_pem(
        chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Certificate, TlsError> {
        Certificate::parse(
            (chain.as_ref(), "the certificate".into()),
            (key.as_ref(), "the private key".into()),
        )
    }

    fn parse(
        (chain, of_chain): (&[u8], String),
        (key, of_key): (&[u8], String),
    ) -> Result<Certificate, TlsError> {
        let chain = certificates(chain, &of_chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Pem {
            what: of_key,
            problem: format!("it has no private key that can be read ({error})"),
        })?;
        Ok(Certificate { chain, key })
    }
}

impl Clone for Certificate {
    fn clone(&self) -> Certificate {
        Certificate { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// All certificates of a PEM text, at least one.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let problem = |problem: String| TlsError::Pem { what: what.to_owned(), problem };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| problem(format!("it is no PEM ({error})")))?;
    if found.is_empty() {
        return Err(problem(
            "it has no certificate; PEM begins with -----BEGIN CERTIFICATE-----".into(),
        ));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
        .map_err(|cause| TlsError::File { path: path.display().to_string(), cause })?;
    Ok(bytes)
}
