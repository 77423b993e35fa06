//! What went wrong in TLS, in words that name the certificate and the mend.

use rustls::{AlertDescription, CertificateError, Error};

use super::Failure;

/// An end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

impl End {
    fn peer(self) -> &'static str {
        match self {
            End::Client => "server",
            End::Server => "client",
        }
    }

    /// What this end is given its authorities with.
    fn settings(self) -> &'static str {
        match self {
            End::Client => "ClientTls",
            End::Server => "ServerTls",
        }
    }

    /// What the peer is given its certificate with.
    fn settings_of_peer(self) -> &'static str {
        match self {
            End::Client => "ServerTls",
            End::Server => "ClientTls",
        }
    }
}

/// What this error of a session means at this end.
pub(super) fn explain(error: &Error, end: End) -> Failure {
    let (peer, ours, theirs) = (end.peer(), end.settings(), end.settings_of_peer());
    Failure(match error {
        Error::InvalidCertificate(problem) => explain_certificate(problem, end),
        Error::NoCertificatesPresented => {
            format!("the {peer} has shown no certificate; give it one with {theirs}::new")
        }
        Error::AlertReceived(alert) => explain_alert(*alert, end),
        Error::PeerIncompatible(what) => {
            format!("the {peer} speaks no TLS 1.3, or not as it is spoken here ({what:?})")
        }
        Error::InvalidMessage(_) => format!(
            "the {peer} does not speak TLS; give it {theirs}, or leave {ours} away at both ends"
        ),
        Error::NoApplicationProtocol => {
            format!("the {peer} asked for another protocol than farcall's within TLS")
        }
        other => format!("TLS with the {peer} failed: {other}"),
    })
}

fn explain_certificate(problem: &CertificateError, end: End) -> String {
    use CertificateError as Problem;
    let (peer, ours) = (end.peer(), end.settings());
    match problem {
        // A bad signature is that of another authority of the same name.
        Problem::UnknownIssuer | Problem::BadSignature => format!(
            "no authority that this end trusts has issued the {peer}'s certificate; give {ours} the authority that did"
        ),
        Problem::Expired | Problem::ExpiredContext { .. } => format!(
            "the {peer}'s certificate has expired; renew it, or correct the clock of this machine"
        ),
        Problem::NotValidYet | Problem::NotValidYetContext { .. } => format!(
            "the {peer}'s certificate is not valid yet; correct the clock of this machine, or that of its authority"
        ),
        Problem::NotValidForNameContext { expected, presented } => {
            let presented =
                if presented.is_empty() { "no name".into() } else { presented.join(", ") };
            format!(
                "the {peer}'s certificate is for {presented}, not for {:?}; dial a name that it has, or name it with \
                 ClientTls::server_name",
                expected.to_str()
            )
        }
        Problem::InvalidPurpose | Problem::InvalidPurposeContext { .. } => format!(
            "the {peer}'s certificate is not for a {peer}: its extended key usage says something else"
        ),
        other => format!("the {peer}'s certificate is not valid: {other}"),
    }
}

/// The peer has said why it ends the session.
fn explain_alert(alert: AlertDescription, end: End) -> String {
    use AlertDescription as Alert;
    let (peer, settings) = (end.peer(), end.settings());
    let refused = |why: &str| format!("the {peer} refused this end's certificate: {why}");
    match alert {
        Alert::CertificateRequired => format!(
            "the {peer} lets in only ends with a certificate; give this one its own with {settings}::new"
        ),
        Alert::UnknownCA | Alert::DecryptError => refused(
            "it trusts no authority that has issued it; take one of an authority that it trusts, or have it trust this one",
        ),
        Alert::CertificateExpired => {
            refused("it has expired, or the clocks of the two machines differ; renew it")
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown => refused(&format!("{alert:?}")),
        Alert::ProtocolVersion => format!("the {peer} speaks no TLS 1.3"),
        // What an end of ours without TLS says.
        Alert::UnexpectedMessage => format!(
            "the {peer} has no TLS; give it {}, or leave {settings} away at this end",
            end.settings_of_peer()
        ),
        Alert::NoApplicationProtocol => {
            format!("the {peer} speaks another protocol than farcall's within TLS")
        }
        other => format!("the {peer} ended TLS: {other:?}"),
    }
}
