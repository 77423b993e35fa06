//! The options in `#[farcall::service(...)]` and `#[rpc(...)]`.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, FnArg, Ident, ItemTrait, Lit, LitInt, LitStr, Path, Result, Token,
    TraitItem, bracketed,
};

use crate::hash;
use crate::shapes::{Opaque, facade, named};

/// The options of a service.
pub(crate) struct ServiceOptions {
    /// The path of the facade.
    pub(crate) krate: Path,
    /// The name in the handshake and in the ids.
    pub(crate) name: String,
    /// Any thread of a server may run its calls, in any order.
    pub(crate) any_thread: bool,
    /// Types of other crates, and the names of their encodings.
    pub(crate) opaque: Vec<Opaque>,
    /// The methods without which a client does not connect.
    pub(crate) require: Vec<LitStr>,
    /// Ids that no method may have.
    pub(crate) reserved: Vec<Reserved>,
}

/// The id of a method that was removed.
pub(crate) struct Reserved {
    /// Its name, if the id is made of it.
    pub(crate) name: Option<String>,
    pub(crate) id: u32,
}

/// The options of a method.
#[derive(Default)]
pub(crate) struct MethodOptions {
    /// The id, instead of the hash.
    pub(crate) id: Option<(u32, Span)>,
    /// One call may run more than once.
    pub(crate) idempotent: bool,
    /// The oldest version.
    pub(crate) since: Option<u32>,
}

/// The options of an argument.
#[derive(Default)]
pub(crate) struct ArgumentOptions {
    /// Its name in the shape, instead of the parameter's.
    pub(crate) name: Option<LitStr>,
    /// The name that is its whole shape.
    pub(crate) opaque: Option<LitStr>,
    /// The method's version that added it.
    pub(crate) since: Option<u32>,
    /// Its value where it is missing.
    pub(crate) default: Option<Expr>,
}

pub(crate) fn of_service(options: TokenStream, item: &ItemTrait) -> Result<ServiceOptions> {
    let mut krate: Option<Path> = None;
    let mut name: Option<LitStr> = None;
    let mut any_thread = false;
    let mut opaque: Vec<Opaque> = Vec::new();
    let mut require: Option<Vec<LitStr>> = None;
    let mut reserved: Vec<Lit> = Vec::new();
    syn::meta::parser(|meta| {
        if meta.path.is_ident("crate") {
            once(&krate, &meta.path)?;
            krate = Some(meta.value()?.call(Path::parse_mod_style)?);
        } else if meta.path.is_ident("name") {
            once(&name, &meta.path)?;
            name = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("any_thread") {
            once(&any_thread.then_some(()), &meta.path)?;
            any_thread = true;
        } else if meta.path.is_ident("require") {
            once(&require, &meta.path)?;
            let value = meta.value()?;
            let names;
            bracketed!(names in value);
            let names = names.parse_terminated(<LitStr as Parse>::parse, Token![,])?;
            require = Some(names.into_iter().collect());
        } else if meta.path.is_ident("opaque") {
            opaque.extend(Opaque::several(meta.input)?);
        } else if meta.path.is_ident("reserved") {
            let list;
            let value = meta.value()?;
            bracketed!(list in value);
            reserved.extend(Punctuated::<Lit, Token![,]>::parse_terminated(&list)?);
        } else {
            return Err(meta.error(
                "unknown option of a service: there are `name = \"...\"`, `any_thread`, `opaque(Type = \"...\")`, `require = [\"...\"]`, `reserved = [..]` and `crate = path`",
            ));
        }
        Ok(())
    })
    .parse2(options)?;
    let name = match name {
        None => item.ident.unraw().to_string(),
        Some(name) if name.value().is_empty() => {
            return Err(Error::new(name.span(), "the name of a service cannot be empty"));
        }
        Some(name) => name.value(),
    };
    let reserved = reserved.iter().map(|literal| Reserved::new(&name, literal));
    let reserved = reserved.collect::<Result<_>>()?;
    let (krate, require) = (krate.unwrap_or_else(facade), require.unwrap_or_default());
    Ok(ServiceOptions { krate, name, any_thread, opaque, require, reserved })
}

impl Reserved {
    fn new(service: &str, literal: &Lit) -> Result<Self> {
        match literal {
            Lit::Str(name) => {
                let name = name.value();
                Ok(Self { id: hash::method_id(service, &name), name: Some(name) })
            }
            Lit::Int(id) => Ok(Self { name: None, id: id.base10_parse()? }),
            other => Err(Error::new(
                other.span(),
                "the name of a method that was removed, or the id that it had: `reserved = [\"get\", 7]`",
            )),
        }
    }
}

pub(crate) fn of_method(attributes: &[Attribute]) -> Result<MethodOptions> {
    let mut options = MethodOptions::default();
    for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("id") {
                once(&options.id, &meta.path)?;
                let literal: LitInt = meta.value()?.parse()?;
                let id =
                    literal.base10_parse::<u32>().ok().filter(|id| *id != 0).ok_or_else(|| {
                        Error::new(literal.span(), "an id is a number from 1 to 4294967295")
                    })?;
                options.id = Some((id, literal.span()));
            } else if meta.path.is_ident("idempotent") {
                once(&options.idempotent.then_some(()), &meta.path)?;
                if meta.input.peek(Token![=]) {
                    return Err(meta.error(
                        "`idempotent` has no value: leave it out where a call must not run twice",
                    ));
                }
                options.idempotent = true;
            } else if meta.path.is_ident("since") {
                once(&options.since, &meta.path)?;
                options.since = Some(version(meta.value()?)?);
            } else {
                return Err(meta.error(
                    "unknown option of a method: there are `id = N`, `idempotent` and `since = N`",
                ));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

pub(crate) fn of_argument(attributes: &[Attribute]) -> Result<ArgumentOptions> {
    let mut options = ArgumentOptions::default();
    for attribute in attributes.iter().filter(|attribute| is_rpc(attribute)) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("name") {
                once(&options.name, &meta.path)?;
                options.name = Some(named(meta.value()?)?);
            } else if meta.path.is_ident("opaque") {
                once(&options.opaque, &meta.path)?;
                options.opaque = Some(named(meta.value()?)?);
            } else if meta.path.is_ident("since") {
                once(&options.since, &meta.path)?;
                options.since = Some(version(meta.value()?)?);
            } else if meta.path.is_ident("default") {
                once(&options.default, &meta.path)?;
                options.default = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error(
                    "unknown option of an argument: there are `name = \"...\"`, `opaque = \"...\"`, `since = N` and `default = value`",
                ));
            }
            Ok(())
        })?;
    }
    match &options {
        ArgumentOptions { default: Some(default), since: None, .. } => Err(Error::new(
            default.span(),
            "a default is for calls of clients that do not know the argument: say which version added it, as in \
             `since = 2, default = 0`",
        )),
        _ => Ok(options),
    }
}

/// The number of a version that is not the first.
pub(crate) fn version(input: ParseStream<'_>) -> Result<u32> {
    let literal: LitInt = input.parse()?;
    let version = literal.base10_parse::<u32>().ok().filter(|version| *version >= 2);
    version.ok_or_else(|| {
        Error::new(literal.span(), "what the first version has needs no `since`; the next one is 2")
    })
}

/// Removes our own attributes: the compiler does not know them.
pub(crate) fn strip(item: &mut ItemTrait) {
    for item in &mut item.items {
        let TraitItem::Fn(method) = item else { continue };
        method.attrs.retain(|attribute| !is_rpc(attribute));
        for input in &mut method.sig.inputs {
            if let FnArg::Typed(typed) = input {
                typed.attrs.retain(|attribute| !is_rpc(attribute));
            }
        }
    }
}

pub(crate) fn is_rpc(attribute: &Attribute) -> bool {
    attribute.path().get_ident().is_some_and(|ident: &Ident| ident == "rpc")
}

fn once<T>(option: &Option<T>, path: &Path) -> Result<()> {
    match option {
        None => Ok(()),
        Some(_) => Err(Error::new(path.span(), "this option is given twice")),
    }
}
