//! The methods of services in frames, which a server sends to a client for whom a fingerprint differs: of all services that the client
//! has named, as no two of one server's have a method of the same id.
//!
//! Only the client compares: a server decodes arguments with the declaration that it was built from, whatever a client
//! believes. A client that ignores the comparison can send bytes that decode to other values than it means; it cannot do
//! more than a client that means these values.

use farcall_core::service::ServiceDescription;
use farcall_core::{Compatibility, DeclaredMethod};
use serde::{Deserialize, Serialize};

use super::frame::{Frame, MAX_BODY_BYTES};

/// Most methods of one service. 16,384 are 60 pages.
pub const MAX_METHODS: usize = 16 << 10;

/// Most shapes of one method.
const MAX_SHAPES: usize = 64;

/// Bytes of a page that are not entries: which frame it is, and how many entries follow.
const PAGE_HEADER_BYTES: usize = 8;

/// Bytes of an entry without its shapes at most: a u32 in base 128, the flags, and the number of shapes.
const ENTRY_BYTES: usize = 8;

/// Bytes of a shape at most: a u64 in base 128.
const SHAPE_BYTES: usize = 10;

/// In the flags of an entry: one call of the method may run more than once.
const IDEMPOTENT: u8 = 1;

/// One method, as its server declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodEntry {
    /// Its id.
    pub id: u32,
    /// Bit 0: idempotent. The others are for later versions; a reader ignores them.
    pub flags: u8,
    /// The shapes that the server understands.
    pub shapes: Vec<u64>,
}

/// Why a list of methods is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MethodsError {
    /// The ids do not ascend, within a page or from one to the next.
    #[error("the ids of its methods do not ascend")]
    Order,
    /// More methods, or more pages, than a service can have.
    #[error("more than {MAX_METHODS} methods")]
    TooMany,
    /// More shapes than a method can have.
    #[error("a method with more than {MAX_SHAPES} shapes")]
    TooManyShapes,
}

/// The frames with all methods of these services: at least one.
pub(super) fn pages(services: &[&ServiceDescription]) -> Vec<Frame> {
    let methods = services.iter().flat_map(|service| service.methods);
    let mut entries: Vec<_> = methods.map(MethodEntry::of).collect();
    entries.sort_unstable_by_key(|entry| entry.id);
    let (mut pages, mut page) = (Vec::new(), Vec::new());
    let mut free = MAX_BODY_BYTES - PAGE_HEADER_BYTES;
    for entry in entries {
        let len = ENTRY_BYTES + SHAPE_BYTES * entry.shapes.len();
        if len > free {
            pages.push(Frame::Methods(std::mem::take(&mut page)));
            free = MAX_BODY_BYTES - PAGE_HEADER_BYTES;
        }
        free -= len;
        page.push(entry);
    }
    pages.push(Frame::Methods(page));
    pages
}

impl MethodEntry {
    fn of(method: &farcall_core::MethodDescription) -> MethodEntry {
        let flags = if method.idempotent { IDEMPOTENT } else { 0 };
        MethodEntry { id: method.id, flags, shapes: vec![method.shape] }
    }
}

/// The server's methods, as their pages arrive at a client. It keeps those that the client has too.
#[derive(Debug)]
pub(super) struct MethodList {
    /// The ids of the client's methods, ascending.
    ours: Box<[u32]>,
    declared: Vec<DeclaredMethod>,
    last_id: Option<u32>,
    /// An empty page counts as one method, so that pages have a bound too.
    count: usize,
}

impl MethodList {
    pub(super) fn new(services: &[&ServiceDescription]) -> MethodList {
        let methods = services.iter().flat_map(|service| service.methods);
        let mut ours: Box<[u32]> = methods.map(|method| method.id).collect();
        ours.sort_unstable();
        MethodList { ours, declared: Vec::new(), last_id: None, count: 0 }
    }

    /// Takes a page.
    pub(super) fn take(&mut self, page: Vec<MethodEntry>) -> Result<(), MethodsError> {
        self.count += page.len().max(1);
        if self.count > MAX_METHODS {
            return Err(MethodsError::TooMany);
        }
        for MethodEntry { id, flags, shapes } in page {
            if self.last_id.is_some_and(|last| id <= last) {
                return Err(MethodsError::Order);
            }
            self.last_id = Some(id);
            if shapes.len() > MAX_SHAPES {
                return Err(MethodsError::TooManyShapes);
            }
            if self.ours.binary_search(&id).is_ok() {
                let idempotent = flags & IDEMPOTENT != 0;
                self.declared.push(DeclaredMethod { id, shapes, idempotent });
            }
        }
        Ok(())
    }

    /// What the client cannot call of that service; `None`: it can call everything.
    pub(super) fn compare(&self, service: &ServiceDescription) -> Option<Compatibility> {
        Compatibility::of(service, &self.declared)
    }
}

#[cfg(test)]
mod tests {
    use farcall_core::MethodDescription;

    use super::*;

    fn service(ids: impl Iterator<Item = u32>) -> &'static ServiceDescription {
        let methods: Vec<_> =
            ids.map(|id| MethodDescription::new("m", id, u64::MAX).idempotent()).collect();
        Box::leak(Box::new(ServiceDescription {
            name: "Big",
            fingerprint: 1,
            methods: methods.leak(),
        }))
    }

    fn page(ids: &[u32]) -> Vec<MethodEntry> {
        ids.iter().map(|id| MethodEntry { id: *id, flags: 0, shapes: vec![7] }).collect()
    }

    #[test]
    fn thousands_of_methods_travel_in_pages_that_each_fit_a_frame() {
        let big = service((0..MAX_METHODS as u32).map(|n| u32::MAX - n));
        let pages = pages(&[big]);
        assert!(pages.len() > 60 && pages.len() < 100, "{} pages", pages.len());
        let mut list = MethodList::new(&[big]);
        for page in pages {
            let bytes = page.to_bytes();
            assert!(bytes.len() <= super::super::frame::PREFIX_BYTES + MAX_BODY_BYTES);
            let Ok(Frame::Methods(read)) = Frame::from_body(&bytes[16..]) else { panic!("a page") };
            list.take(read).unwrap();
        }
        assert_eq!(list.declared.len(), MAX_METHODS);
        assert!(list.compare(big).is_none());
    }

    #[test]
    fn a_service_without_methods_has_a_page_too() {
        assert_eq!(pages(&[service(0..0)]), [Frame::Methods(Vec::new())]);
        let two = service(1..3);
        assert_eq!(MethodList::new(&[two]).compare(two).unwrap().missing().count(), 2);
    }

    #[test]
    fn a_client_keeps_only_what_it_knows() {
        let mut list = MethodList::new(&[service(5..7)]);
        for first in 0..100 {
            list.take(page(&[10 * first, 10 * first + 5])).unwrap();
        }
        assert_eq!(list.declared.len(), 1);
    }

    #[test]
    fn ids_must_ascend_within_pages_and_across_them() {
        let list = || MethodList::new(&[service(0..4)]);
        assert_eq!(list().take(page(&[1, 1])), Err(MethodsError::Order));
        assert_eq!(list().take(page(&[2, 1])), Err(MethodsError::Order));
        let mut two = list();
        two.take(page(&[1, 2])).unwrap();
        assert_eq!(two.take(page(&[2])), Err(MethodsError::Order));
    }

    #[test]
    fn methods_pages_and_shapes_have_bounds() {
        let mut list = MethodList::new(&[service(0..1)]);
        for _ in 0..MAX_METHODS {
            list.take(Vec::new()).unwrap();
        }
        assert_eq!(list.take(Vec::new()), Err(MethodsError::TooMany));
        let with_shapes = |count| {
            let entry = MethodEntry { id: 0, flags: 0, shapes: vec![0; count] };
            MethodList::new(&[service(0..1)]).take(vec![entry])
        };
        assert_eq!(with_shapes(MAX_SHAPES), Ok(()));
        assert_eq!(with_shapes(MAX_SHAPES + 1), Err(MethodsError::TooManyShapes));
    }
}
