//! What a client may call at a server that declares the same service differently.

use crate::error::RpcError;
use crate::older::Older;
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
    /// The server knows an older version, without an argument that the call needs.
    #[error(
        "is older there, without an argument that is not at its default; upgrade the server, or pass the default"
    )]
    NewerArgument,
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
    /// The server has an older version of it.
    Older(Older),
}

/// How to send a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit<'c> {
    pub(crate) delivery: Delivery,
    /// The version to send it in, if that is not the newest.
    pub(crate) older: Option<&'c Older>,
}

fn missing(service: &ServiceDescription, method: &str, why: MethodMismatch) -> MissingMethod {
    MissingMethod { method: format!("{}.{method}", service.name).into(), why }
}

impl Compatibility {
    /// Compares the client's declaration with the server's, whose ids ascend. `None`: all of the client's methods can be called as they are.
    ///
    /// A method that only the client calls idempotent is called at most once. The reverse needs nothing: at most once is
    /// one way to run an idempotent method. Of a method that the server lacks, the newest version that it has is called.
    pub fn of(client: &ServiceDescription, server: &[DeclaredMethod]) -> Option<Compatibility> {
        let deviation = |method: &MethodDescription| match declared(server, method.id, method.shape)
        {
            Ok(found) => {
                (method.idempotent && !found.idempotent).then_some(Deviation::NotIdempotent)
            }
            Err(why) => Some(match older(client, method, server) {
                Some(older) => Deviation::Older(older),
                None => Deviation::Missing(missing(client, method.name, why)),
            }),
        };
        let mut deviations: Box<[_]> =
            newest(client).filter_map(|method| Some((method.id, deviation(method)?))).collect();
        deviations.sort_unstable_by_key(|(id, _)| *id);
        (!deviations.is_empty()).then_some(Compatibility { deviations })
    }

    /// What deviates in either: those of two services of one server.
    pub fn both(one: Option<Compatibility>, other: Option<Compatibility>) -> Option<Compatibility> {
        match (one, other) {
            (Some(one), Some(other)) => {
                let all = one.deviations.into_iter().chain(other.deviations);
                let mut deviations: Box<[_]> = all.collect();
                deviations.sort_unstable_by_key(|(id, _)| *id);
                Some(Compatibility { deviations })
            }
            (one, other) => one.or(other),
        }
    }

    /// The methods that cannot be called.
    pub fn missing(&self) -> impl Iterator<Item = &MissingMethod> {
        self.deviations.iter().filter_map(|(_, deviation)| match deviation {
            Deviation::Missing(missing) => Some(missing),
            Deviation::NotIdempotent | Deviation::Older(_) => None,
        })
    }

    /// The methods that are required and cannot be called, or all if none can. Required are those that the service's own
    /// declaration requires, and these by name: `get` in any version, `get@2` in this one or a newer one. `None`: the
    /// server's declaration fits.
    pub fn unmet(
        compatibility: Option<&Compatibility>,
        client: &ServiceDescription,
        require: &[&str],
    ) -> Vec<MissingMethod> {
        let undeclared = require
            .iter()
            .filter(|name| !client.methods.iter().any(|method| is_named(method, name)))
            .map(|name| missing(client, name, MethodMismatch::Undeclared));
        let mut unmet: Vec<_> = undeclared.collect();
        let Some(compatibility) = compatibility else { return unmet };
        if compatibility.missing().count() == newest(client).count() {
            unmet.extend(compatibility.missing().cloned());
            return unmet;
        }
        let methods = || client.methods.iter();
        for method in methods().filter(|method| method.required) {
            unmet.extend(compatibility.lacks(client, method));
        }
        for name in require {
            let lacking: Option<Vec<_>> = methods()
                .filter(|method| is_named(method, name))
                .map(|method| compatibility.lacks(client, method))
                .collect();
            let first = lacking.into_iter().flatten().next();
            unmet.extend(first.filter(|missing| !unmet.contains(missing)));
        }
        unmet
    }

    /// Why the server has neither this version of a method nor a newer one; `None` if it has.
    fn lacks(
        &self,
        client: &ServiceDescription,
        version: &MethodDescription,
    ) -> Option<MissingMethod> {
        let place = |method: &MethodDescription| {
            method.older.iter().position(|older| older.id == version.id)
        };
        let (newest, place) = newest(client)
            .find_map(|method| Some((method, place(method)?)))
            .map_or((version, None), |(method, place)| (method, Some(place)));
        let why = match self.find(newest.id)? {
            Deviation::NotIdempotent => return None,
            Deviation::Older(older) if place.is_some_and(|place| older.index <= place) => {
                return None;
            }
            Deviation::Older(_) => MethodMismatch::Absent,
            Deviation::Missing(missing) => missing.why,
        };
        Some(missing(client, version.name, why))
    }

    fn find(&self, method: u32) -> Option<&Deviation> {
        let at = self.deviations.binary_search_by_key(&method, |(id, _)| *id).ok()?;
        Some(&self.deviations[at].1)
    }

    /// How to deliver a call of the method with this id, which has no older versions.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    #[cold]
    pub(crate) fn delivery(&self, method: u32, delivery: Delivery) -> Result<Delivery, RpcError> {
        self.check(method, delivery).map(|fit| fit.delivery)
    }

    /// How to send a call of the method with this id.
    ///
    /// # Errors
    /// [`RpcError::NoSuchMethod`]: it must not be sent.
    #[cold]
    pub(crate) fn check(&self, method: u32, delivery: Delivery) -> Result<Fit<'_>, RpcError> {
        match self.find(method) {
            None => Ok(Fit { delivery, older: None }),
            Some(Deviation::Missing(MissingMethod { method, why })) => {
                Err(RpcError::NoSuchMethod { method: method.clone(), why: *why })
            }
            Some(Deviation::NotIdempotent) => {
                Ok(Fit { delivery: Delivery::AtMostOnce, older: None })
            }
            Some(Deviation::Older(older)) => {
                let delivery = if older.at_most_once { Delivery::AtMostOnce } else { delivery };
                Ok(Fit { delivery, older: Some(older) })
            }
        }
    }
}

/// The methods that clients call, in their newest versions.
fn newest(service: &ServiceDescription) -> impl Iterator<Item = &MethodDescription> {
    service.methods.iter().filter(|method| !method.superseded)
}

/// It has this name, or it is a version of the method of this name.
fn is_named(method: &MethodDescription, name: &str) -> bool {
    let version = method.name.strip_prefix(name);
    version.is_some_and(|version| version.is_empty() || version.starts_with('@'))
}

/// The method with this id and shape at the server.
fn declared(
    server: &[DeclaredMethod],
    id: u32,
    shape: u64,
) -> Result<&DeclaredMethod, MethodMismatch> {
    let at = server.binary_search_by_key(&id, |declared| declared.id);
    let declared = at.map(|at| &server[at]).map_err(|_| MethodMismatch::Absent)?;
    declared.shapes.contains(&shape).then_some(declared).ok_or(MethodMismatch::OtherShape)
}

/// The newest of a method's older versions that the server has.
fn older(
    client: &ServiceDescription,
    method: &MethodDescription,
    server: &[DeclaredMethod],
) -> Option<Older> {
    method.older.iter().enumerate().find_map(|(index, version)| {
        let found = declared(server, version.id, version.shape).ok()?;
        let name = format!("{}.{}", client.name, method.name).into();
        Older::new(name, index, version, method.idempotent && !found.idempotent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::older::Ends;
    use crate::service::OlderVersion;

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
        let Some(compatibility) = Compatibility::of(&KV, server) else {
            return Ok(Delivery::Idempotent);
        };
        compatibility.check(id, Delivery::Idempotent).map(|fit| {
            assert!(fit.older.is_none(), "{fit:?}");
            fit.delivery
        })
    }

    /// A method with a byte string alone in version 1, a number since version 2, and another since version 3.
    static VERSIONS: [MethodDescription; 3] = [
        MethodDescription::new("get@3", 3, 33).idempotent().with_older(&[
            OlderVersion { id: 2, shape: 22, is_whole: false, defaults: || Ok(vec![0]) },
            OlderVersion { id: 1, shape: 11, is_whole: true, defaults: || Ok(vec![7, 0]) },
        ]),
        MethodDescription::new("get@2", 2, 22).superseded().required(),
        MethodDescription::new("get", 1, 11).superseded(),
    ];
    static GROWN: ServiceDescription =
        ServiceDescription { name: "Kv", fingerprint: 1, methods: &VERSIONS };

    /// The id under which a call with these arguments is sent, and the bytes; or what is unmet.
    fn sent_to(server: &[(u32, u64, bool)], bytes: &[u8]) -> Result<(u32, Vec<u8>), String> {
        let declare =
            |&(id, shape, idempotent)| DeclaredMethod { id, shapes: vec![shape], idempotent };
        let declared: Vec<_> = server.iter().map(declare).collect();
        let compatibility = Compatibility::of(&GROWN, &declared).expect("it differs");
        let fit = compatibility.check(3, Delivery::Idempotent).map_err(|why| why.to_string())?;
        let older = fit.older.expect("the server lacks the newest");
        let idempotent = server.iter().find(|it| it.0 == older.id).is_some_and(|it| it.2);
        assert_eq!(fit.delivery == Delivery::Idempotent, idempotent);
        // The byte string and its length, then two numbers of a byte each.
        let ends = Ends::at([bytes.len() - 1, bytes.len() - 2]);
        let part = older.part(bytes, &ends).map_err(|why| why.to_string())?;
        Ok((older.id, bytes[part].to_vec()))
    }

    #[test]
    fn the_newest_version_that_the_server_has_is_called() {
        let (first, second) = ((1, 11, true), (2, 22, false));
        assert_eq!(sent_to(&[first, second], b"\x02kk\x09\0"), Ok((2, b"\x02kk\x09".to_vec())));
        assert_eq!(sent_to(&[first], b"\x02kk\x07\0"), Ok((1, b"kk".to_vec())));
        let reshaped = [first, (2, 99, true), (3, 99, true)];
        assert_eq!(sent_to(&reshaped, b"\0\x07\0"), Ok((1, Vec::new())));
        let long = [&[0x80, 1][..], &[b'k'; 128], &[7, 0]].concat();
        assert_eq!(sent_to(&[first], &long), Ok((1, vec![b'k'; 128])));
    }

    #[test]
    fn an_argument_that_the_server_does_not_know_must_have_its_default() {
        for (server, arguments) in
            [((1, 11, true), b"\x01k\x08\0"), ((2, 22, true), b"\x01k\x07\x01")]
        {
            let error = sent_to(&[server], arguments).unwrap_err();
            assert!(error.starts_with("Kv.get@3 is older there, without an argument"), "{error}");
        }
        let error = sent_to(&[(3, 99, true)], b"\0\x07\0").unwrap_err();
        assert!(error.starts_with("Kv.get@3 has other types there"), "{error}");
        let error = sent_to(&[(2, 99, true)], b"\0\x07\0").unwrap_err();
        assert!(error.starts_with("Kv.get@3 is not there"), "{error}");
    }

    #[test]
    fn a_required_version_is_met_by_itself_and_by_newer_ones() {
        let unmet = |id: u32, shape, require: &[&str]| -> Vec<String> {
            let declared = [DeclaredMethod { id, shapes: vec![shape], idempotent: true }];
            let compatibility = Compatibility::of(&GROWN, &declared);
            let unmet = Compatibility::unmet(compatibility.as_ref(), &GROWN, require);
            unmet.iter().map(|it| it.method.to_string()).collect()
        };
        assert!(unmet(3, 33, &["get", "get@2", "get@3"]).is_empty());
        assert!(unmet(2, 22, &["get", "get@2"]).is_empty());
        assert_eq!(unmet(2, 22, &["get@3"]), ["Kv.get@3"]);
        // The declaration requires it; by name, it is not told twice.
        assert_eq!(unmet(1, 11, &["get"]), ["Kv.get@2"]);
        assert_eq!(unmet(1, 11, &["get@2"]), ["Kv.get@2"]);
        assert_eq!(unmet(3, 33, &["get@4"]), ["Kv.get@4"]);
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
