//! The options of TLS.

use std::path::PathBuf;

use anyhow::Result;
use farcall::tls::{Authorities, Certificate, ClientTls};

#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// Connects within TLS, to a server whose certificate one of the authorities in this PEM file has issued.
    #[arg(long, value_name = "PATH")]
    tls_ca: Option<PathBuf>,
    /// The certificate of this client, a PEM file, for servers that ask for one.
    #[arg(long, value_name = "PATH", requires = "tls_ca", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, a PEM file.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name that the server's certificate must be for [default: the host of the address].
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl TlsArgs {
    /// What they say; `None`: no TLS.
    pub(crate) fn settings(&self) -> Result<Option<ClientTls>> {
        let Some(authorities) = &self.tls_ca else { return Ok(None) };
        let authorities = Authorities::from_pem_file(authorities)?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                ClientTls::new(Certificate::from_pem_files(certificate, key)?, authorities)?
            }
            _ => ClientTls::without_certificate(authorities)?,
        };
        Ok(Some(match &self.tls_name {
            Some(name) => tls.server_name(name)?,
            None => tls,
        }))
    }
}
