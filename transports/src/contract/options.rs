//! Options of addresses that belong to one backend.

use std::fmt;

/// An option that a backend understands.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Its name in an address.
    pub name: &'static str,
    /// What a value may be, for the error of a bad one.
    pub expected: fn() -> String,
    /// Whether this is a value.
    pub accepts: fn(&str) -> bool,
}

/// The values of a backend's own options, as an address gives them. Each was accepted by its [`OptionSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OptionValues(Vec<(&'static str, String)>);

impl OptionValues {
    /// Sets an option.
    pub fn set(&mut self, spec: &OptionSpec, value: &str) {
        self.0.retain(|(name, _)| *name != spec.name);
        self.0.push((spec.name, value.to_owned()));
    }

    /// The value of an option, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The value of an option, as `parse` reads it, or the default.
    pub(crate) fn value_or<T>(
        &self,
        spec: &OptionSpec,
        parse: fn(&str) -> Option<T>,
        default: T,
    ) -> T {
        self.get(spec.name).and_then(parse).unwrap_or(default)
    }

    /// Writes those that are not among others, as an address has them, each after a `&`.
    pub(crate) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        others: &[&OptionValues],
    ) -> fmt::Result {
        let is_new = |name: &str| others.iter().all(|other| other.get(name).is_none());
        let mut new = self.0.iter().filter(|(name, _)| is_new(name));
        new.try_for_each(|(name, value)| write!(f, "&{name}={value}"))
    }
}
