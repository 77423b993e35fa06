//! The server's decision about a hello: pure.

use std::iter;
use std::sync::Arc;

use farcall_core::Authentication;
use farcall_core::service::ServiceDescription;

use super::frame::{Hello, Reject};
use crate::contract::{Config, Terms};

/// What a server offers to one client.
#[derive(Debug)]
pub struct Offered {
    /// The backend that the client has named, by its place among the server's.
    pub backend: usize,
    /// What holds for the connection.
    pub terms: Terms,
    /// All services that the client has named, if its declaration of one differs.
    pub differing: Vec<&'static ServiceDescription>,
    /// Which of the server's services the client may call, if a client may not call all: those that it has named, as they were
    /// permitted.
    pub services: Option<Arc<[bool]>>,
}

/// What a server offers, and checks each hello against.
#[derive(Debug)]
pub struct Offer {
    /// The names of backends, with the limits of this end.
    backends: Vec<(&'static str, Config)>,
    services: Vec<&'static ServiceDescription>,
    authentication: Option<Authentication>,
}

impl Offer {
    /// A server of these services over the backends of those names.
    pub fn new(
        backends: Vec<(&'static str, Config)>,
        services: &[&'static ServiceDescription],
    ) -> Offer {
        Offer { backends, services: services.to_vec(), authentication: None }
    }

    /// The same to clients that prove who they are, if there is an authentication.
    pub fn with_authentication(self, authentication: Option<Authentication>) -> Offer {
        Offer { authentication, ..self }
    }

    /// What clients are to prove.
    pub fn authentication(&self) -> Option<&Authentication> {
        self.authentication.as_ref()
    }

    /// The name of the backend at this place.
    pub fn name(&self, backend: usize) -> &'static str {
        self.backends[backend].0
    }

    /// The terms of the connection and what it may call.
    ///
    /// # Errors
    /// Why there can be none, for the client.
    pub fn check(&self, hello: &Hello) -> Result<Offered, Reject> {
        let backend = self.backends.iter().position(|(name, _)| *name == hello.backend);
        let Some(backend) = backend else {
            let names: Vec<_> = self.backends.iter().map(|(name, _)| *name).collect();
            return Err(Reject::Backend { theirs: names.join(",") });
        };
        let find = |name| self.services.iter().position(|service| service.name == name);
        let Some(named) = hello.services().map(find).collect::<Option<Vec<_>>>() else {
            let served = self.services.iter().map(|service| service.name.to_owned()).collect();
            return Err(Reject::Service { served });
        };
        let terms = Terms::agree(&self.backends[backend].1, &hello.terms).ok_or_else(|| {
            Reject::Malformed { what: format!("impossible terms {:?}", hello.terms) }
        })?;
        let further = hello.further.iter().map(|further| further.fingerprint);
        let fingerprints = iter::once(hello.fingerprint).chain(further);
        let differs = |(&at, theirs): (&usize, u64)| self.services[at].fingerprint != theirs;
        let differing = match named.iter().zip(fingerprints).any(differs) {
            true => self.named(&named).collect(),
            false => Vec::new(),
        };
        let is_limited = self.authentication.as_ref().is_some_and(Authentication::has_permits);
        let services =
            is_limited.then(|| (0..self.services.len()).map(|at| named.contains(&at)).collect());
        Ok(Offered { backend, terms, differing, services })
    }

    /// The services of these indices, each once.
    fn named(&self, named: &[usize]) -> impl Iterator<Item = &'static ServiceDescription> {
        let services = self.services.iter().enumerate();
        services.filter(|(at, _)| named.contains(at)).map(|(_, service)| *service)
    }
}

#[cfg(test)]
mod tests {
    use farcall_core::transport::{Lane, LaneReason};

    use super::*;
    use crate::handshake::NamedService;

    static KV: ServiceDescription = ServiceDescription { name: "Kv", fingerprint: 7, methods: &[] };

    fn hello() -> Hello {
        Hello {
            backend: "write_imm".into(),
            service: "Kv".into(),
            fingerprint: 7,
            terms: Terms { window: 8, slot: 1 << 20, max_message: 99 },
            setup: Vec::new(),
            further: Vec::new(),
            lane: Lane::Alone,
            why: LaneReason::First,
            thread: None,
        }
    }

    #[test]
    fn each_mismatch_is_its_own_rejection_but_other_methods_are_none() {
        let offer = Offer::new(vec![("write_imm", Config::default())], &[&KV]);
        let check = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            offer.check(&hello).map(|it| (it.terms.window, !it.differing.is_empty()))
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

    static LOG: ServiceDescription =
        ServiceDescription { name: "Log", fingerprint: 5, methods: &[] };

    fn with_log(fingerprint: u64) -> Hello {
        let log = NamedService { name: "Log".into(), fingerprint };
        Hello { further: vec![log], ..hello() }
    }

    #[test]
    fn each_named_service_is_looked_for_and_compared() {
        let offer = |services: &[&'static ServiceDescription]| {
            Offer::new(vec![("write_imm", Config::default())], services)
        };
        let served = vec!["Kv".into()];
        let refused = offer(&[&KV]).check(&with_log(5)).unwrap_err();
        assert_eq!(refused, Reject::Service { served });
        let both = offer(&[&LOG, &KV]);
        assert!(both.check(&with_log(5)).unwrap().differing.is_empty());
        let differing = |hello: &Hello| {
            let differing = both.check(hello).unwrap().differing;
            differing.iter().map(|it| it.name).collect::<Vec<_>>()
        };
        assert_eq!(differing(&with_log(6)), ["Log", "Kv"]);
        let mut twice = with_log(6);
        twice.further.extend(twice.further.clone());
        assert_eq!(differing(&twice), ["Log", "Kv"]);
    }

    #[test]
    fn a_client_may_call_what_it_has_named_where_not_all_may_be_called() {
        let anybody = Authentication::new();
        let some = anybody.clone().permit(|_, _| true);
        for (authentication, allowed) in [(anybody, None), (some, Some([true, false, true]))] {
            let offer = Offer::new(vec![("write_imm", Config::default())], &[&LOG, &OTHER, &KV])
                .with_authentication(Some(authentication));
            let services = offer.check(&with_log(5)).unwrap().services;
            assert_eq!(services.as_deref(), allowed.as_ref().map(|it| &it[..]));
        }
    }

    static OTHER: ServiceDescription =
        ServiceDescription { name: "Other", fingerprint: 1, methods: &[] };

    #[test]
    fn a_client_chooses_among_the_backends_and_has_the_terms_of_that_one() {
        let small = Config { window: 4, ..Config::default() };
        let backends = vec![("rfp", small), ("write_imm", Config::default())];
        let offer = Offer::new(backends, &[&KV]);
        let check = |backend: &str| {
            let offered = offer.check(&Hello { backend: backend.into(), ..hello() });
            offered.map(|offered| (offered.backend, offered.terms.window))
        };
        assert_eq!(check("rfp"), Ok((0, 4)));
        assert_eq!(check("write_imm"), Ok((1, 8)));
        assert_eq!(check("scale"), Err(Reject::Backend { theirs: "rfp,write_imm".into() }));
    }
}
