//! Proofs that an end has a secret, over all that both ends have said.
//!
//! A proof is HMAC-SHA256 of the secret over a label, which says whose proof it is, the SHA-256 of all bytes that the client
//! has sent so far, and that of all bytes of the server's. So it holds for one handshake, whose nonces are among these bytes,
//! and for what the ends said of themselves there: backend, service, terms, queue pairs, keys, epochs.
//!
//! Within TLS the proof is over keying material of that session, too (a channel binding, RFC 5705 and RFC 9266): a relay that has a
//! certificate has two sessions, and the proof of one end does not hold in the other.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// A fresh random number of one end. With it, no proof of an earlier handshake holds for this one.
pub type Nonce = [u8; 32];

/// A proof.
pub type Proof = [u8; 32];

/// What only the two ends of a TLS session know: it tells that session from all others.
pub type ChannelBinding = [u8; 32];

/// An end of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

impl End {
    /// Proofs of the two ends are of different kinds, so that none can be sent back.
    fn label(self) -> &'static [u8] {
        match self {
            End::Client => b"farcall client proof",
            End::Server => b"farcall server proof",
        }
    }
}

/// All bytes of a handshake so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Transcript {
    client: Sha256,
    server: Sha256,
    /// Of the TLS session that carries the handshake, if there is one.
    binding: Option<ChannelBinding>,
}

impl Transcript {
    /// The handshake is carried by a TLS session with this binding, or by none.
    pub(super) fn bind(&mut self, binding: Option<ChannelBinding>) {
        self.binding = binding;
    }

    /// This end has sent these bytes.
    pub(super) fn add(&mut self, by: End, bytes: &[u8]) {
        match by {
            End::Client => self.client.update(bytes),
            End::Server => self.server.update(bytes),
        }
    }

    fn mac(&self, by: End, secret: &[u8]) -> Option<Hmac<Sha256>> {
        // HMAC takes secrets of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
        mac.update(by.label());
        mac.update(&self.client.clone().finalize());
        mac.update(&self.server.clone().finalize());
        // The parts before have a fixed length, so no proof without a binding is one with it.
        if let Some(binding) = &self.binding {
            mac.update(binding);
        }
        Some(mac)
    }

    /// The proof of this end.
    pub(super) fn prove(&self, by: End, secret: &[u8]) -> Proof {
        self.mac(by, secret).map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
    }

    /// Whether this is the proof of that end. Takes the same time whichever byte is wrong.
    pub(super) fn is_proven(&self, by: End, secret: &[u8], proof: &Proof) -> bool {
        self.mac(by, secret).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef";

    fn transcript(client: &[u8], server: &[u8]) -> Transcript {
        let mut transcript = Transcript::default();
        transcript.add(End::Client, client);
        transcript.add(End::Server, server);
        transcript
    }

    #[test]
    fn a_proof_holds_for_its_end_its_secret_and_its_bytes() {
        let said = transcript(b"one", b"two");
        let proof = said.prove(End::Client, SECRET);
        assert!(said.is_proven(End::Client, SECRET, &proof));
        assert!(!said.is_proven(End::Server, SECRET, &proof), "reflected");
        assert!(!said.is_proven(End::Client, b"another secret!!", &proof));
        for other in [
            transcript(b"onet", b"wo"),
            transcript(b"two", b"one"),
            transcript(b"one", b"twp"),
            transcript(b"", b"onetwo"),
        ] {
            assert!(!other.is_proven(End::Client, SECRET, &proof));
        }
        let mut in_parts = transcript(b"o", b"t");
        in_parts.add(End::Server, b"wo");
        in_parts.add(End::Client, b"ne");
        assert!(in_parts.is_proven(End::Client, SECRET, &proof));
        for byte in 0..32 {
            let mut changed = proof;
            changed[byte] ^= 1;
            assert!(!said.is_proven(End::Client, SECRET, &changed));
        }
    }

    #[test]
    fn a_proof_holds_for_its_tls_session() {
        let bound = |binding| {
            let mut said = transcript(b"one", b"two");
            said.bind(binding);
            said
        };
        let proof = bound(Some([1; 32])).prove(End::Client, SECRET);
        assert!(bound(Some([1; 32])).is_proven(End::Client, SECRET, &proof));
        for other in [None, Some([0; 32]), Some([2; 32])] {
            assert!(!bound(other).is_proven(End::Client, SECRET, &proof), "{other:?}");
        }
    }

    /// Computed with Python's `hmac` and `hashlib`, so that both ends cannot change together unnoticed.
    #[test]
    fn a_proof_is_hmac_sha256_of_label_and_digests() {
        let proof = transcript(b"one", b"two").prove(End::Server, SECRET);
        assert_eq!(proof, EXPECTED);
    }

    const EXPECTED: Proof = [
        0x07, 0x4a, 0x3f, 0x7e, 0x3c, 0x6d, 0x3e, 0x2b, 0x59, 0x72, 0xea, 0x22, 0xa9, 0xac, 0x9d,
        0x7e, 0xbd, 0xe5, 0x65, 0x84, 0x78, 0xec, 0xca, 0x2a, 0x0a, 0x96, 0x4f, 0xef, 0x4c, 0xb5,
        0x52, 0xd2,
    ];
}
