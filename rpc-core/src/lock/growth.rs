//! What changes in types that may grow: their shapes do not have what they got later, so client and server do not notice.

use super::Lock;
use super::compare::{Change, Verdict, definitions};
use super::parse::Part;

/// The changes of growing types in the calls that work between the two versions.
pub(super) fn changes(old: &Lock, new: &Lock) -> Vec<Change> {
    let mut types: Vec<&Part> = Vec::new();
    for before in &old.methods {
        let unchanged =
            |after: &super::parse::Method| (after.id, after.shape) == (before.id, before.shape);
        if new.methods.iter().any(unchanged) {
            for part in definitions(old, before).into_iter().filter(|part| part.grows) {
                if !types.iter().any(|known| core::ptr::eq(*known, part)) {
                    types.push(part);
                }
            }
        }
    }
    types.into_iter().filter_map(|before| change(before, new)).collect()
}

/// What became of one type.
fn change(before: &Part, new: &Lock) -> Option<Change> {
    let name = &before.name;
    // Types of different modules may have the same name.
    let namesakes = || new.types.iter().filter(|after| after.grows && after.name == *name);
    if namesakes().any(|after| after == before) {
        return None;
    }
    if let Some(after) = namesakes().find(|after| after.lines.starts_with(&before.lines)) {
        let mut change = Change::new(Verdict::Harmless, format!("{name} has grown"));
        let grown = after.lines[before.lines.len()..].iter();
        change.lines = grown.map(|line| format!("+ {line}")).collect();
        return Some(change);
    }
    let what = match namesakes().next() {
        None => format!(
            "{name} may grow, and no type has its name now, so that what it got later cannot be compared; keep its name"
        ),
        Some(_) => format!(
            "{name} may grow at its end only, but has changed before that; client and server do not notice, and misread each other"
        ),
    };
    let mut change = Change::new(Verdict::Both, what);
    change.lines.push(format!("- {before}"));
    change.lines.extend(namesakes().map(|after| format!("+ {after}")));
    Some(change)
}
