//! What a change of a service breaks.

use core::fmt;

use super::growth;
use super::parse::{Lock, Method, Part};

/// What works between the ends of two versions of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compatibility {
    changes: Vec<Change>,
}

/// One difference between two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What it breaks.
    pub verdict: Verdict,
    /// The difference.
    pub what: String,
    /// What changed, as lines that begin with `-` and `+`.
    pub lines: Vec<String>,
}

/// What a difference breaks. A call that does not work fails at once, and is not sent, unless the difference says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing.
    Harmless,
    /// New clients fail at old servers: upgrade the servers first.
    NewClients,
    /// Old clients fail at new servers.
    OldClients,
    /// Calls fail in both directions.
    Both,
}

impl Compatibility {
    /// Compares two versions.
    pub fn of(old: &Lock, new: &Lock) -> Compatibility {
        let mut changes = Vec::new();
        if old.service != new.service {
            let what = format!("the service {} is called {} now", old.service, new.service);
            changes.push(Change::new(Verdict::Both, what));
            return Compatibility { changes };
        }
        for before in &old.methods {
            match new.methods.iter().find(|after| after.id == before.id) {
                None => changes.extend(removed(before, new)),
                Some(after) => changes.extend(changed((old, before), (new, after))),
            }
        }
        for after in &new.methods {
            if !old.methods.iter().any(|before| before.id == after.id) {
                changes.push(added(after, old));
            }
        }
        changes.extend(growth::changes(old, new));
        let forgotten = old.reserved.iter().filter(|id| !new.reserved.contains(id));
        for id in forgotten.filter(|id| !new.methods.iter().any(|method| method.id == **id)) {
            let what = format!("the id {id:#010x} is no longer reserved");
            changes.push(Change::new(Verdict::Harmless, what));
        }
        changes.sort_by_key(|change| core::cmp::Reverse(change.verdict));
        Compatibility { changes }
    }

    /// The differences, the worst first.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// All that old clients can do works at new servers, so that servers can be upgraded first.
    pub fn keeps_old_clients(&self) -> bool {
        !self.any(&[Verdict::OldClients, Verdict::Both])
    }

    /// All that new clients can do works at old servers, so that the order of an upgrade does not matter.
    pub fn keeps_old_servers(&self) -> bool {
        !self.any(&[Verdict::NewClients, Verdict::Both])
    }

    fn any(&self, verdicts: &[Verdict]) -> bool {
        self.changes.iter().any(|change| verdicts.contains(&change.verdict))
    }
}

impl Change {
    pub(super) fn new(verdict: Verdict, what: String) -> Change {
        Change { verdict, what, lines: Vec::new() }
    }
}

fn removed(before: &Method, new: &Lock) -> Option<Change> {
    let (name, id) = (&before.part.name, before.id);
    if new.methods.iter().any(|after| after.method_name() == before.method_name()) {
        let what = format!("{name} is no longer served in this version");
        return Some(Change::new(Verdict::OldClients, what));
    }
    let mut what = format!("{name} is removed");
    // The ids of later versions are made of the first one's.
    let is_first = before.method_name() == name;
    if is_first && !new.reserved.contains(&id) {
        what += &format!("; add `reserved = [\"{name}\"]`, so that no other method gets its id");
    }
    Some(Change::new(Verdict::OldClients, what))
}

fn added(after: &Method, old: &Lock) -> Change {
    let name = &after.part.name;
    if old.reserved.contains(&after.id) {
        let what = format!("{name} has the id {:#010x}, which is reserved", after.id);
        return Change::new(Verdict::Both, what);
    }
    let mut what = format!("{name} is added");
    if old.methods.iter().any(|before| before.method_name() == after.method_name()) {
        what += "; at old servers, clients call an older version, and fail if a newer argument is not at its default";
    }
    Change::new(Verdict::NewClients, what)
}

fn changed((old, before): (&Lock, &Method), (new, after): (&Lock, &Method)) -> Option<Change> {
    let name = &before.part.name;
    if before.shape != after.shape {
        let mut change = Change::new(Verdict::Both, format!("{name} has another shape"));
        change.lines = difference(&definitions(old, before), &definitions(new, after));
        return Some(change);
    }
    if before.part.name != after.part.name {
        let what = format!("{name} is called {} now, with the same id and shape", after.part.name);
        return Some(Change::new(Verdict::Harmless, what));
    }
    if before.idempotent != after.idempotent {
        let now = if after.idempotent { "is idempotent now" } else { "is no longer idempotent" };
        let what = format!("{name} {now}; between old and new ends it runs at most once");
        return Some(Change::new(Verdict::Harmless, what));
    }
    None
}

/// The method, and all types that it mentions.
pub(super) fn definitions<'l>(lock: &'l Lock, method: &'l Method) -> Vec<&'l Part> {
    let mut parts = vec![&method.part];
    let mut at = 0;
    while let Some(part) = parts.get(at).copied() {
        at += 1;
        for ty in &lock.types {
            let is_new = !parts.iter().any(|known| core::ptr::eq(*known, ty));
            if is_new && part.lines.iter().any(|line| mentions(line, &ty.name)) {
                parts.push(ty);
            }
        }
    }
    parts
}

/// The line has this type as a word of its own.
fn mentions(line: &str, ty: &str) -> bool {
    let is_name = |char: char| char.is_alphanumeric() || char == '_';
    line.match_indices(ty).any(|(at, _)| {
        !line[..at].ends_with(is_name) && !line[at + ty.len()..].starts_with(is_name)
    })
}

fn difference(old: &[&Part], new: &[&Part]) -> Vec<String> {
    let gone = old.iter().filter(|part| !new.contains(part)).map(|part| format!("- {part}"));
    let come = new.iter().filter(|part| !old.contains(part)).map(|part| format!("+ {part}"));
    gone.chain(come).collect()
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{ {} }}", self.name, self.lines.join(", "))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Harmless => "harmless",
            Verdict::NewClients => "new clients fail at old servers",
            Verdict::OldClients => "old clients fail at new servers",
            Verdict::Both => "old clients fail at new servers, and new clients at old servers",
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.verdict)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// One line for each change, with what changed below it.
impl fmt::Display for Compatibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.changes.is_empty() {
            return f.write_str("nothing changed that client and server compare");
        }
        for (index, change) in self.changes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{change}")?;
        }
        Ok(())
    }
}
