//! From a method's id on the wire to its service and its place in the trait.

use crate::error::BindError;
use crate::service::{MethodDescription, ServiceDescription};

/// The method that an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The service's index.
    pub(super) service: u32,
    /// The method's index in the service's description.
    pub(super) method: u32,
    /// The method's row in the counters.
    pub(super) row: u32,
    /// Any thread may run it.
    pub(super) any_thread: bool,
    /// One call of it may run more than once.
    pub(super) idempotent: bool,
}

/// A hash table without collisions: one multiplication and one comparison find a method.
pub(super) struct Table {
    multiplier: u32,
    shift: u32,
    cells: Box<[Cell]>,
}

#[derive(Clone, Copy)]
struct Cell {
    id: u32,
    target: Option<Target>,
}

/// Multipliers tried for each size before the table doubles.
const TRIES_PER_SIZE: u32 = 256;

impl Table {
    /// A table of all methods of all services, in their order.
    pub(super) fn new(services: &[&'static ServiceDescription]) -> Result<Table, BindError> {
        check(services)?;
        let mut targets = Vec::new();
        for (service, description) in services.iter().enumerate() {
            for (index, method) in description.methods.iter().enumerate() {
                let row = targets.len() as u32;
                let (service, index) = (service as u32, index as u32);
                let MethodDescription { any_thread, idempotent, .. } = *method;
                let target = Target { service, method: index, row, any_thread, idempotent };
                targets.push((method.id, target));
            }
        }
        let mut bits = targets.len().max(1).next_power_of_two().trailing_zeros() + 1;
        loop {
            for step in 0..TRIES_PER_SIZE {
                // Odd multiples of the golden ratio spread ids that differ in few bits.
                let multiplier = 0x9e37_79b9_u32.wrapping_mul(2 * step + 1);
                if let Some(table) = Table::try_new(&targets, multiplier, bits) {
                    return Ok(table);
                }
            }
            // With distinct ids and an odd multiplier this ends at 32 bits at the latest.
            bits += 1;
        }
    }

    fn try_new(targets: &[(u32, Target)], multiplier: u32, bits: u32) -> Option<Table> {
        let empty = Cell { id: 0, target: None };
        let cells = vec![empty; 1 << bits].into_boxed_slice();
        let mut table = Table { multiplier, shift: 32 - bits, cells };
        for (id, target) in targets {
            let cell = table.index(*id);
            if table.cells[cell].target.is_some() {
                return None;
            }
            table.cells[cell] = Cell { id: *id, target: Some(*target) };
        }
        Some(table)
    }

    #[inline]
    fn index(&self, id: u32) -> usize {
        (id.wrapping_mul(self.multiplier) >> self.shift) as usize
    }

    /// The method with this id, which a peer sent.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<Target> {
        let cell = &self.cells[self.index(id)];
        if cell.id == id { cell.target } else { None }
    }
}

/// Refuses services with the same name, and methods with the same id.
fn check(services: &[&'static ServiceDescription]) -> Result<(), BindError> {
    if services.is_empty() {
        return Err(BindError::NoService);
    }
    let mut seen: Vec<(u32, &str, &str)> = Vec::new();
    for (index, service) in services.iter().enumerate() {
        if services[..index].iter().any(|other| other.name == service.name) {
            return Err(BindError::DuplicateService { service: service.name });
        }
        seen.extend(service.methods.iter().map(|method| (method.id, service.name, method.name)));
    }
    seen.sort_by_key(|(id, ..)| *id);
    match seen.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(BindError::MethodCollision {
            first: format!("{}.{}", pair[0].1, pair[0].2),
            second: format!("{}.{}", pair[1].1, pair[1].2),
            id: pair[0].0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn service(name: &'static str, ids: &[u32]) -> &'static ServiceDescription {
        let methods: Vec<_> = ids.iter().map(|id| MethodDescription::new("m", *id, 0)).collect();
        Box::leak(Box::new(ServiceDescription { name, fingerprint: 0, methods: methods.leak() }))
    }

    fn target(service: u32, method: u32, row: u32) -> Target {
        Target { service, method, row, any_thread: false, idempotent: false }
    }

    proptest! {
        #[test]
        fn every_method_is_found_and_no_other(
            ids in proptest::collection::hash_set(any::<u32>(), 1..40),
            stranger: u32,
        ) {
            let ids: Vec<u32> = ids.into_iter().collect();
            let table = Table::new(&[service("A", &ids)]).expect("distinct ids");
            for (row, id) in ids.iter().enumerate() {
                prop_assert_eq!(table.find(*id), Some(target(0, row as u32, row as u32)));
            }
            prop_assert_eq!(table.find(stranger).is_some(), ids.contains(&stranger));
        }
    }

    #[test]
    fn a_method_is_known_by_its_index_within_its_own_service() {
        let table = Table::new(&[service("A", &[7, 3]), service("B", &[5, 9])]);
        let table = table.expect("distinct ids");
        assert_eq!(table.find(9), Some(target(1, 1, 3)));
        assert_eq!(table.find(5), Some(target(1, 0, 2)));
    }

    #[test]
    fn services_with_the_same_names_or_ids_are_refused() {
        let (a, b) = (service("A", &[1, 2]), service("B", &[2]));
        assert!(matches!(Table::new(&[a, b]), Err(BindError::MethodCollision { id: 2, .. })));
        assert!(matches!(Table::new(&[a, a]), Err(BindError::DuplicateService { service: "A" })));
        assert!(matches!(Table::new(&[]), Err(BindError::NoService)));
    }
}
