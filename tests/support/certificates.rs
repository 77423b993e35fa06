//! Certificates for tests, made when they are needed.

use farcall::tls::{Authorities, Certificate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};

/// An authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A new one of this name, whose own certificate is to be trusted.
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// What an end has that trusts it.
    pub(crate) fn trusted(&self) -> Authorities {
        Authorities::from_pem(self.0.pem()).unwrap()
    }

    /// A certificate.
    pub(crate) fn issue(&self, params: CertificateParams) -> Certificate {
        let [chain, key] = self.issue_pem(params);
        Certificate::from_pem(chain, key).unwrap()
    }

    /// A certificate and its key in PEM.
    pub(crate) fn issue_pem(&self, params: CertificateParams) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        [params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem()]
    }

    /// Its own certificate in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }
}

/// A certificate for these DNS names and IP addresses.
pub(crate) fn names(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// One for this DNS name.
pub(crate) fn name(name: &str) -> CertificateParams {
    names(&[name])
}

/// One for this URI.
pub(crate) fn uri(uri: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params
}
