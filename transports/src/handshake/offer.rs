//! The server's decision about a hello: pure.

use farcall_core::Authentication;
use farcall_core::service::ServiceDescription;

use super::frame::{Hello, Reject};
use crate::contract::{Config, Terms};

/// What a server offers, and checks each hello against.
#[derive(Debug)]
pub struct Offer {
    backend: &'static str,
    services: Vec<&'static ServiceDescription>,
    config: Config,
    authentication: Option<Authentication>,
}

impl Offer {
    /// A server of these services over the backend of that name.
    pub fn new(
        backend: &'static str,
        services: &[&'static ServiceDescription],
        config: Config,
    ) -> Offer {
        Offer { backend, services: services.to_vec(), config, authentication: None }
    }

    /// The same to clients that prove who they are, if there is an authentication.
    pub fn with_authentication(self, authentication: Option<Authentication>) -> Offer {
        Offer { authentication, ..self }
    }

    /// What clients are to prove.
    pub fn authentication(&self) -> Option<&Authentication> {
        self.authentication.as_ref()
    }

    /// The limits of this end.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The terms of the connection; and the service, if the client's declaration of it differs.
    ///
    /// # Errors
    /// Why there can be none, for the client.
    pub fn check(
        &self,
        hello: &Hello,
    ) -> Result<(Terms, Option<&'static ServiceDescription>), Reject> {
        if hello.backend != self.backend {
            return Err(Reject::Backend { theirs: self.backend.to_owned() });
        }
        let named = |service: &&&ServiceDescription| service.name == hello.service;
        let Some(service) = self.services.iter().find(named) else {
            let served = self.services.iter().map(|service| service.name.to_owned()).collect();
            return Err(Reject::Service { served });
        };
        let terms = Terms::agree(&self.config, &hello.terms).ok_or_else(|| Reject::Malformed {
            what: format!("impossible terms {:?}", hello.terms),
        })?;
        Ok((terms, (service.fingerprint != hello.fingerprint).then_some(*service)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };

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
    fn each_mismatch_is_its_own_rejection_but_other_methods_are_none() {
        let offer = Offer::new("write_imm", &[&KV], Config::default());
        let check = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            offer.check(&hello).map(|(terms, differing)| (terms.window, differing.is_some()))
        };
        assert_eq!(check(|_| ()), Ok((8, false)));
        assert_eq!(check(|hello| hello.fingerprint = 8), Ok((8, true)));
        assert_eq!(
            check(|hello| hello.backend = "herd".into()),
            Err(Reject::Backend { theirs: "write_imm".into() })
        );
        assert_eq!(
            check(|hello| hello.service = "Kw".into()),
            Err(Reject::Service { served: vec!["Kv".into()] })
        );
        let impossible = check(|hello| hello.terms.window = 0);
        assert!(matches!(impossible, Err(Reject::Malformed { .. })));
    }
}
