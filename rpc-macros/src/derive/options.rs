//! The derive's own options: `#[rpc(...)]` on a type and on its fields.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Expr, LitStr, Path, Result, Token};

use crate::options::version;
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

/// The options of a field.
#[derive(Default)]
pub(super) struct FieldOptions {
    /// The name that is its whole shape.
    pub(super) opaque: Option<LitStr>,
    /// The version of the type that added it.
    pub(super) since: Option<u32>,
    /// Its value where it is missing.
    pub(super) default: Option<Expr>,
}

impl FieldOptions {
    /// The options of a field; it can be a later version's if its type `grows`.
    pub(super) fn of(attributes: &[Attribute], grows: bool) -> Result<Self> {
        let mut options = Self::default();
        for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("opaque") {
                    options.opaque = Some(named(meta.value()?)?);
                } else if meta.path.is_ident("since") {
                    growing(&meta, grows)?;
                    options.since = Some(version(meta.value()?)?);
                } else if meta.path.is_ident("default") {
                    growing(&meta, grows)?;
                    options.default = Some(meta.value()?.parse()?);
                } else {
                    return Err(meta.error(
                        "unknown option of a field: there is `opaque = \"...\"`, and with `derive(Grow)` there are `since = N` and `default = value`",
                    ));
                }
                Ok(())
            })?;
        }
        match &options {
            FieldOptions { default: Some(default), since: None, .. } => Err(Error::new_spanned(
                default,
                "a default is for values that lack the field: say which version added it, as in `since = 2, default = 0`",
            )),
            _ => Ok(options),
        }
    }
}

/// The options of a variant.
#[derive(Default)]
pub(super) struct VariantOptions {
    /// The version of the enum that added it.
    pub(super) since: Option<u32>,
    /// It stands for variants that this program does not know.
    pub(super) is_unknown: bool,
}

impl VariantOptions {
    /// The options of a variant of an enum that `grows`; others have none.
    pub(super) fn of(attributes: &[Attribute], grows: bool) -> Result<Self> {
        let mut options = Self::default();
        for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
            if !grows {
                return Err(Error::new_spanned(
                    attribute,
                    "a variant has no options, except with `derive(Grow)`",
                ));
            }
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("since") {
                    options.since = Some(version(meta.value()?)?);
                } else if meta.path.is_ident("unknown") {
                    options.is_unknown = true;
                } else {
                    return Err(meta.error(
                        "unknown option of a variant: there are `since = N` and `unknown`",
                    ));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

fn growing(meta: &ParseNestedMeta<'_>, grows: bool) -> Result<()> {
    if grows {
        return Ok(());
    }
    Err(meta.error(
        "only a struct with `#[derive(farcall::Grow)]` gets new fields, from its first version on; \
         it takes the place of `Shape` and serde's derives",
    ))
}

fn is_rpc(attribute: &Attribute) -> bool {
    attribute.path().is_ident("rpc")
}
