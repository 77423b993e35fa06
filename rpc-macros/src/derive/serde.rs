//! The attributes of serde's derives that change how a type is encoded.
//!
//! The others (`rename_all`, `default`, `alias`, `bound`, `borrow`, ...) have no effect on the codec, which writes no names.

use quote::ToTokens;
use syn::meta::ParseNestedMeta;
use syn::parse::ParseStream;
use syn::{Attribute, Error, LitStr, Result, Token, Type};

use crate::hash;

/// Of a struct or an enum.
#[derive(Default)]
pub(super) struct TypeAttributes {
    pub(super) name: Option<String>,
    pub(super) transparent: bool,
    /// The type that values are converted to and from.
    pub(super) travels_as: Option<Type>,
}

const SELF_DESCRIBING: &str =
    "a type with this attribute cannot travel: it needs a format that describes itself";

impl TypeAttributes {
    pub(super) fn of(attributes: &[Attribute], opaque: bool) -> Result<Self> {
        let mut found = Self::default();
        let mut from: Option<(Type, Error)> = None;
        let mut into: Option<(Type, Error)> = None;
        each(attributes, |meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            match name.as_str() {
                "rename" => found.name = rename(meta)?,
                "transparent" => found.transparent = true,
                "tag" | "content" | "untagged" => return Err(meta.error(SELF_DESCRIBING)),
                "from" | "try_from" => from = Some(conversion(meta)?),
                "into" => into = Some(conversion(meta)?),
                "remote" | "variant_identifier" | "field_identifier" if !opaque => {
                    return Err(meta.error("a type with this attribute has no shape of its own"));
                }
                _ => skip_value(meta.input)?,
            }
            Ok(())
        })?;
        if opaque {
            return Ok(found);
        }
        found.travels_as = match (from, into) {
            (None, None) => None,
            (Some((from, _)), Some((into, _))) if same(&from, &into) => Some(from),
            (Some((_, error)), _) | (None, Some((_, error))) => return Err(error),
        };
        Ok(found)
    }
}

/// Of a variant.
#[derive(Default)]
pub(super) struct VariantAttributes {
    pub(super) name: Option<String>,
    pub(super) skip: bool,
}

impl VariantAttributes {
    pub(super) fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        each(attributes, |meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            match name.as_str() {
                "rename" => found.name = rename(meta)?,
                "skip" => found.skip = true,
                "skip_serializing" | "skip_deserializing" => return Err(one_sided(&meta)),
                "untagged" | "other" => return Err(meta.error(SELF_DESCRIBING)),
                "with" | "serialize_with" | "deserialize_with" => {
                    return Err(meta.error(
                        "the encoding of this variant is unknown: put what it holds into a type with `#[rpc(opaque = \"...\")]`",
                    ));
                }
                _ => skip_value(meta.input)?,
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Of a field.
#[derive(Default)]
pub(super) struct FieldAttributes {
    pub(super) name: Option<String>,
    pub(super) skip: bool,
}

impl FieldAttributes {
    pub(super) fn of(attributes: &[Attribute], opaque: bool) -> Result<Self> {
        let mut found = Self::default();
        each(attributes, |meta| {
            let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
            match name.as_str() {
                "rename" => found.name = rename(meta)?,
                "skip" => found.skip = true,
                "skip_serializing" | "skip_deserializing" => return Err(one_sided(&meta)),
                "flatten" | "skip_serializing_if" => return Err(meta.error(SELF_DESCRIBING)),
                "with" | "serialize_with" | "deserialize_with" if !opaque => {
                    let by: LitStr = meta.value()?.parse()?;
                    // It writes the same bytes as serde does without it.
                    if by.value() != "serde_bytes" {
                        return Err(Error::new(
                            by.span(),
                            "the encoding of this field is unknown: give it a name with `#[rpc(opaque = \"...\")]`, and another \
                             one whenever it changes",
                        ));
                    }
                }
                _ => skip_value(meta.input)?,
            }
            Ok(())
        })?;
        Ok(found)
    }
}

fn each(
    attributes: &[Attribute],
    mut option: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    let serde = attributes.iter().filter(|attribute| attribute.path().is_ident("serde"));
    for attribute in serde {
        attribute.parse_nested_meta(&mut option)?;
    }
    Ok(())
}

fn one_sided(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error("one end would write what the other does not read: use `skip`")
}

/// `rename = "..."`, or `rename(serialize = "...", deserialize = "...")`.
fn rename(meta: ParseNestedMeta<'_>) -> Result<Option<String>> {
    if meta.input.peek(Token![=]) {
        return Ok(Some(meta.value()?.parse::<LitStr>()?.value()));
    }
    let mut name = None;
    meta.parse_nested_meta(|side| {
        let text: LitStr = side.value()?.parse()?;
        if side.path.is_ident("serialize") {
            name = Some(text.value());
        }
        Ok(())
    })?;
    Ok(name)
}

/// The type in quotes, and the error for one direction alone.
fn conversion(meta: ParseNestedMeta<'_>) -> Result<(Type, Error)> {
    let error = meta.error(
        "this is one direction: without `from` (or `try_from`) and `into` of one type, the two ends differ; \
         or give the encoding a name with `#[rpc(opaque = \"...\")]`",
    );
    let text: LitStr = meta.value()?.parse()?;
    Ok((text.parse()?, error))
}

fn same(one: &Type, other: &Type) -> bool {
    hash::normalised(one.to_token_stream()) == hash::normalised(other.to_token_stream())
}

/// Skips ` = value` or `(...)`.
fn skip_value(input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![=]) {
        input.parse::<Token![=]>()?;
        input.parse::<syn::Expr>()?;
    } else if input.peek(syn::token::Paren) {
        let content;
        syn::parenthesized!(content in input);
        content.parse::<proc_macro2::TokenStream>()?;
    }
    Ok(())
}
