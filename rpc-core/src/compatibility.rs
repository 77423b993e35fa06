//! What a client may call at a server that declares the same service differently.

use crate::error::RpcError;
use crate::service::{MethodDescription, ServiceDescription};
use crate::transport::Delivery;
use core::fmt;
use std::sync::Arc;

/// A method as the server of a connection declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredMethod {
    /// Its id on the wire.
    pub id: u32,
    /// The [shapes](MethodDescription::shape) that the server understands.
    pub shapes: Vec<u64>,
    /// One call of it may run more than once.
    pub idempotent: bool,
}

/// Why a method of the client's cannot be called at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MethodMismatch {
    /// The server has no method with this id.
    #[error("is not there; upgrade the server, or do without it there")]
    Absent,
    /// The server declares other types for the arguments or the result.
    #[error(
        "has other types there; build both ends from one declaration, or give the changed method a new name"
    )]
    OtherShape,
    /// The client's own declaration has no method of this name.
    #[error("is required, but this program's trait does not declare it; check the name")]
    Undeclared,
}

/// A method that cannot be called at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingMethod {
    /// `Service.method`.
    pub method: Arc<str>,
    /// Why.
    pub why: MethodMismatch,
}

impl fmt::Display for MissingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.why)
    }
}

/// The methods of a service that one connection's server lacks or declares in another way. It exists only where the two
/// declarations differ: a call over any other connection has nothing to look up.
#[derive(Debug)]
pub struct Compatibility {
    /// By id. The methods that are not here can be called as they are.
    deviations: Box<[(u32, Deviation)]>,
}

#[derive(Debug)]
enum Deviation {
    Missing(MissingMethod),
    /// The server runs a call of it at most once, and has to keep its answer.
    NotIdempotent,
}

fn missing(service: &ServiceDescription, method: &str, why: MethodMismatch) -> MissingMethod {
    MissingMethod { method: format!("{}.{method}", service.name).into(), why }
}

impl Compatibility {
    /// Compares the client's declaration with the server's, whose ids ascend. `None`: all of the client's methods can be called as they are.
    ///
    /// A method that only the client calls idempotent is called at most once. The reverse needs nothing: at most once is
    /// one way to run an idempotent method.
    pub fn of(client: &ServiceDescription, server: &[DeclaredMethod]) -> Option<Compatibility> {
        let deviation = |method: &MethodDescription| {
            let missing = |why| Some(Deviation::Missing(missing(client, method.name, why)));
            let declared = server.binary_search_by_key(&method.id, |declared| declared.id);
            match declared.ok().map(|at| &server[at]) {
                None => missing(MethodMismatch::Absent),
                Some(declared) if !declared.shapes.contains(&method.shape) => {
                    missing(MethodMismatch::OtherShape)
                }
                Some(declared) if method.idempotent && !declared.idempotent => {
                    Some(Deviation::NotIdempotent)
                }
                Some(_) => None,
            }
        };
        let methods = client.methods.iter();
        let mut deviations: Box<[_]> =
            methods.filter_map(|method| Some((method.id, deviation(method)?))).collect();
        deviations.sort_unstable_by_key(|(id, _)| *id);
        (!deviations.is_empty()).then_some(Compatibility { deviations })
    }

    /// The methods that cannot be called.
    pub fn missing(&self) -> impl Iterator<Item = &MissingMethod> {
        self.deviations.iter().filter_map(|(_, deviation)| match deviation {
            Deviation::Missing(missing) => Some(missing),
            Deviation::NotIdempotent => None,
        })
    }

    /// The methods that are required and cannot be called, or all if none can. Required are those that the service's own
    /// declaration requires, and these by name. `None`: the server's declaration fits.
    pub fn unmet(
        compatibility: Option<&Compatibility>,
        client: &ServiceDescription,
        require: &[&str],
    ) -> Vec<MissingMethod> {
        let undeclared = require
            .iter()
            .filter(|name| client.methods.iter().all(|method| method.name != **name))
            .map(|name| missing(client, name, MethodMismatch::Undeclared));
        let mut unmet: Vec<_> = undeclared.collect();
        let Some(compatibility) = compatibility else { return unmet };
        if compatibility.missing().count() == client.methods.len() {
            unmet.extend(compatibility.missing().cloned());
            return unmet;
        }
        let required = client.methods.iter();
        let required = required.filter(|method| method.required || require.contains(&method.name));
        unmet.extend(required.filter_map(|method| match compatibility.find(method.id)? {
            Deviation::Missing(missing) => Some(missing.clone()),
            Deviation::NotIdempotent => None,
        }));
        unmet
    }

    fn find(&self, method: u32) -> Option<&Deviation> {
        let at = self.deviations.binary_search_by_key(&method, |(id, _)| *id).ok()?;
        Some(&self.deviations[at].1)
    }

    /// How to deliver a call of the method with this id.
    ///
    /// # Errors
    /// [`RpcError::NoSuchMethod`]: it must not be sent.
    #[cold]
    pub(crate) fn check(&self, method: u32, delivery: Delivery) -> Result<Delivery, RpcError> {
        match self.find(method) {
            None => Ok(delivery),
            Some(Deviation::Missing(MissingMethod { method, why })) => {
                Err(RpcError::NoSuchMethod { method: method.clone(), why: *why })
            }
            Some(Deviation::NotIdempotent) => Ok(Delivery::AtMostOnce),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static METHODS: [MethodDescription; 3] = [
        MethodDescription::new("put", 30, 3),
        MethodDescription::new("get", 10, 1).idempotent(),
        MethodDescription::new("scan", 20, 2),
    ];
    static KV: ServiceDescription =
        ServiceDescription { name: "Kv", fingerprint: 1, methods: &METHODS };

    fn declared() -> Vec<DeclaredMethod> {
        let declare = |method: &MethodDescription| DeclaredMethod {
            id: method.id,
            shapes: vec![method.shape],
            idempotent: method.idempotent,
        };
        let mut declared: Vec<_> = METHODS.iter().map(declare).collect();
        declared.sort_by_key(|method| method.id);
        declared
    }

    fn check(server: &[DeclaredMethod], id: u32) -> Result<Delivery, RpcError> {
        let compatibility = Compatibility::of(&KV, server);
        compatibility.map_or(Ok(Delivery::Idempotent), |it| it.check(id, Delivery::Idempotent))
    }

    #[test]
    fn what_the_server_has_besides_changes_nothing() {
        let mut server = declared();
        server.push(DeclaredMethod { id: 40, shapes: vec![4], idempotent: false });
        server[1].idempotent = true;
        server[2].shapes.push(99);
        assert!(Compatibility::of(&KV, &server).is_none());
    }

    #[test]
    fn a_method_that_is_not_there_fails_alone() {
        let mut server = declared();
        server.remove(1);
        let error = check(&server, 20).unwrap_err();
        assert!(!error.may_have_run());
        assert!(error.to_string().starts_with("Kv.scan is not there"), "{error}");
        assert_eq!(check(&server, 30), Ok(Delivery::Idempotent));
    }

    #[test]
    fn a_method_of_another_shape_fails_alone() {
        let mut server = declared();
        server[2].shapes = vec![99];
        let error = check(&server, 30).unwrap_err();
        assert!(error.to_string().starts_with("Kv.put has other types there"), "{error}");
        assert_eq!(check(&server, 20), Ok(Delivery::Idempotent));
        let missing: Vec<_> = Compatibility::of(&KV, &server)
            .iter()
            .flat_map(|it| it.missing().map(ToString::to_string))
            .collect();
        assert_eq!(missing.len(), 1);
    }

    #[test]
    fn a_required_method_is_unmet_by_name_or_by_declaration() {
        static METHODS: [MethodDescription; 3] = [
            MethodDescription::new("put", 30, 3),
            MethodDescription::new("get", 10, 1).required(),
            MethodDescription::new("scan", 20, 2),
        ];
        static KV: ServiceDescription =
            ServiceDescription { name: "Kv", fingerprint: 1, methods: &METHODS };
        let unmet = |gone: u32, require: &[&str]| -> Vec<String> {
            let server: Vec<_> = declared().into_iter().filter(|it| it.id != gone).collect();
            let compatibility = Compatibility::of(&KV, &server);
            let unmet = Compatibility::unmet(compatibility.as_ref(), &KV, require);
            unmet.iter().map(|it| it.method.to_string()).collect()
        };
        assert_eq!(unmet(10, &[]), ["Kv.get"]);
        assert!(unmet(20, &["put"]).is_empty());
        assert_eq!(unmet(20, &["put", "scan"]), ["Kv.scan"]);
        assert_eq!(unmet(0, &["scna"]), ["Kv.scna"]);
    }

    #[test]
    fn what_only_the_client_calls_idempotent_runs_at_most_once() {
        let mut server = declared();
        server[0].idempotent = false;
        assert_eq!(check(&server, 10), Ok(Delivery::AtMostOnce));
        assert_eq!(check(&server, 20), Ok(Delivery::Idempotent), "not asked of this one");
    }
}
