//! Checks that what clients saw of one key is linearizable: each operation takes effect at one moment between its begin and its end, and one
//! without an end at any moment after its begin, or never. The search is that of Wing and Gong, with the memoization of Lowe.

use std::collections::HashSet;

/// The most operations on one key: the bits of a mask.
pub(super) const MAX_OPERATIONS: usize = 128;

/// What a key has.
pub(super) type Value = Option<u64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It read this.
    Get(Value),
    Put(u64),
    /// Swaps the first for the second. What the key had, if that is known.
    Swap(Value, Value, Option<Value>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) begin: u64,
    pub(super) end: Option<u64>,
    pub(super) kind: Kind,
}

impl Kind {
    /// What the key has afterwards. `None`: it cannot have seen what it saw.
    fn apply(self, value: Value) -> Option<Value> {
        match self {
            Kind::Get(seen) => (seen == value).then_some(value),
            Kind::Put(new) => Some(Some(new)),
            Kind::Swap(expected, new, seen) => {
                let fits = seen.is_none_or(|seen| seen == value);
                fits.then_some(if value == expected { new } else { value })
            }
        }
    }
}

/// Whether there is an order.
pub(super) fn is_linearizable(operations: &[Operation]) -> bool {
    assert!(operations.len() <= MAX_OPERATIONS, "{} operations on one key", operations.len());
    search(operations, 0, None, &mut HashSet::new())
}

fn search(
    operations: &[Operation],
    done: u128,
    value: Value,
    tried: &mut HashSet<(u128, Value)>,
) -> bool {
    let left = || operations.iter().enumerate().filter(move |(at, _)| done >> at & 1 == 0);
    // None may take effect after another one has ended.
    let Some(first_end) = left().filter_map(|(_, operation)| operation.end).min() else {
        return true;
    };
    if !tried.insert((done, value)) {
        return false;
    }
    left().filter(|(_, operation)| operation.begin <= first_end).any(|(at, operation)| {
        let after = operation.kind.apply(value);
        after.is_some_and(|after| search(operations, done | 1 << at, after, tried))
    })
}

#[test]
fn it_tells_right_from_wrong() {
    let operation = |begin, end, kind| Operation { begin, end, kind };
    let put = operation(0, Some(10), Kind::Put(1));
    let overlapping = operation(5, Some(15), Kind::Get(None));
    let later = operation(20, Some(30), Kind::Get(Some(1)));
    assert!(is_linearizable(&[put, overlapping, later]));
    let lost = operation(20, Some(30), Kind::Get(None));
    assert!(!is_linearizable(&[put, lost]));
    let unknown = operation(0, None, Kind::Put(1));
    assert!(is_linearizable(&[unknown, lost]));
    assert!(is_linearizable(&[unknown, later]));
    let again = operation(40, Some(50), Kind::Get(None));
    assert!(!is_linearizable(&[unknown, later, again]));
    let swap = |seen| operation(20, Some(30), Kind::Swap(Some(1), Some(2), Some(seen)));
    assert!(is_linearizable(&[put, swap(Some(1)), operation(40, Some(50), Kind::Get(Some(2)))]));
    assert!(!is_linearizable(&[put, swap(None)]));
}
