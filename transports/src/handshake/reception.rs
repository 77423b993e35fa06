//! The server's decision about a hello: pure, without sockets and threads.

use farcall_core::service::ServiceDescription;

use super::message::{Hello, Reject, Terms};
use crate::address::{Limits, MAX_SLOT_BYTES, MAX_WINDOW, MIN_SLOT_BYTES};
use crate::backend::BackendKind;

/// What a server offers, and checks each hello against.
#[derive(Debug)]
pub struct Reception {
    backend: BackendKind,
    services: Vec<&'static ServiceDescription>,
    limits: Limits,
}

impl Reception {
    /// A server of these services over this backend.
    pub fn new(
        backend: BackendKind,
        services: &[&'static ServiceDescription],
        limits: Limits,
    ) -> Reception {
        Reception { backend, services: services.to_vec(), limits }
    }

    /// The backend that it serves over.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    /// The limits of this end.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The terms of the connection, or why there can be none.
    pub fn check(&self, hello: &Hello) -> Result<Terms, Reject> {
        if hello.backend != self.backend.name() {
            return Err(Reject::Backend { theirs: self.backend.name().to_owned() });
        }
        let Some(service) = self.services.iter().find(|service| service.name == hello.service)
        else {
            let served = self.services.iter().map(|service| service.name.to_owned()).collect();
            return Err(Reject::Service { served });
        };
        if service.fingerprint != hello.fingerprint {
            return Err(Reject::Fingerprint { theirs: service.fingerprint });
        }
        agree(&self.limits, &hello.terms).ok_or_else(|| Reject::Malformed {
            what: format!("impossible terms {:?}", hello.terms),
        })
    }
}

fn agree(ours: &Limits, theirs: &Terms) -> Option<Terms> {
    let possible = (1..=MAX_WINDOW).contains(&theirs.window)
        && (MIN_SLOT_BYTES..=MAX_SLOT_BYTES).contains(&theirs.slot)
        && theirs.slot.is_multiple_of(64)
        && theirs.max_message > 0;
    possible.then(|| Terms {
        window: ours.window.min(theirs.window),
        slot: ours.slot.min(theirs.slot),
        max_message: ours.max_message.min(theirs.max_message),
    })
}

/// Whether a client may take these terms: none exceeds what it offered.
pub(crate) fn within(agreed: &Terms, offered: &Terms) -> bool {
    (1..=offered.window).contains(&agreed.window)
        && (MIN_SLOT_BYTES..=offered.slot).contains(&agreed.slot)
        && agreed.slot.is_multiple_of(64)
        && (1..=offered.max_message).contains(&agreed.max_message)
}

#[cfg(test)]
mod tests {
    use super::*;

    static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };

    fn reception() -> Reception {
        Reception::new(BackendKind::WriteImm, &[&KV], Limits::default())
    }

    fn hello() -> Hello {
        Hello {
            backend: "write_imm".into(),
            service: "Kv".into(),
            fingerprint: 7,
            terms: Terms { window: 8, slot: 1 << 20, max_message: 99 },
            setup: Vec::new(),
        }
    }

    #[test]
    fn the_smaller_limit_holds() {
        let terms = reception().check(&hello()).unwrap();
        assert_eq!(terms, Terms { window: 8, slot: Limits::default().slot, max_message: 99 });
        assert!(within(&terms, &hello().terms));
        assert!(!within(&Terms { window: 9, ..terms }, &hello().terms));
    }

    #[test]
    fn each_mismatch_is_its_own_rejection() {
        let mut other = hello();
        other.backend = "herd".into();
        assert_eq!(reception().check(&other), Err(Reject::Backend { theirs: "write_imm".into() }));
        let mut other = hello();
        other.service = "Kw".into();
        assert_eq!(reception().check(&other), Err(Reject::Service { served: vec!["Kv".into()] }));
        let mut other = hello();
        other.fingerprint = 8;
        assert_eq!(reception().check(&other), Err(Reject::Fingerprint { theirs: 7 }));
    }

    #[test]
    fn impossible_terms_are_refused() {
        for terms in [
            Terms { window: 0, slot: 4096, max_message: 1 },
            Terms { window: MAX_WINDOW + 1, slot: 4096, max_message: 1 },
            Terms { window: 1, slot: 65, max_message: 1 },
            Terms { window: 1, slot: 0, max_message: 1 },
            Terms { window: 1, slot: u32::MAX, max_message: 1 },
            Terms { window: 1, slot: 4096, max_message: 0 },
        ] {
            let other = Hello { terms, ..hello() };
            assert!(
                matches!(reception().check(&other), Err(Reject::Malformed { .. })),
                "{terms:?}"
            );
        }
    }
}
