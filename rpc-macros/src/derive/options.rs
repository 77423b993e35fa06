//! The derive's own options: `#[rpc(...)]` on a type and on its fields.

use syn::{Attribute, Error, LitStr, Path, Result, Token};

use crate::shapes::{Opaque, facade, named};

/// The options of a type.
pub(super) struct TypeOptions {
    /// The path of the facade.
    pub(super) krate: Path,
    /// The name that is the type's whole shape.
    pub(super) opaque_name: Option<LitStr>,
    /// Types of other crates within it.
    pub(super) opaque: Vec<Opaque>,
}

impl TypeOptions {
    pub(super) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut options = Self { krate: facade(), opaque_name: None, opaque: Vec::new() };
        for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("crate") {
                    options.krate = meta.value()?.call(Path::parse_mod_style)?;
                } else if meta.path.is_ident("opaque") && meta.input.peek(Token![=]) {
                    options.opaque_name = Some(named(meta.value()?)?);
                } else if meta.path.is_ident("opaque") {
                    options.opaque.extend(Opaque::several(meta.input)?);
                } else {
                    return Err(meta.error(
                        "unknown option of a type: there are `opaque = \"...\"`, `opaque(Type = \"...\")` and `crate = path`",
                    ));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

/// The name that is a field's whole shape: `#[rpc(opaque = "...")]`.
pub(super) fn opaque_field(attributes: &[Attribute]) -> Result<Option<LitStr>> {
    let mut opaque = None;
    for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("opaque") {
                return Err(meta.error("unknown option of a field: there is `opaque = \"...\"`"));
            }
            opaque = Some(named(meta.value()?)?);
            Ok(())
        })?;
    }
    Ok(opaque)
}

/// Refuses options where there are none.
pub(super) fn none(attributes: &[Attribute], of: &str) -> Result<()> {
    match attributes.iter().find(|attribute| is_rpc(attribute)) {
        None => Ok(()),
        Some(attribute) => Err(Error::new_spanned(attribute, format_args!("{of} has no options"))),
    }
}

fn is_rpc(attribute: &Attribute) -> bool {
    attribute.path().is_ident("rpc")
}
