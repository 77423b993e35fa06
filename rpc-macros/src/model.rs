//! The model of a service that passed every check; code is generated from it.

use std::collections::HashMap;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Attribute, Error, Ident, ItemTrait, Result, ReturnType, TraitItem, Type, Visibility};

use crate::forms::{self, Form};
use crate::hash::{self, Hasher};
use crate::options::{self, ServiceOptions};
use crate::refuse;

/// A service.
pub(crate) struct Service {
    /// The facade's module with the items that generated code names.
    pub(crate) private: TokenStream,
    /// The name in the handshake and in the ids.
    pub(crate) name: String,
    pub(crate) visibility: Visibility,
    pub(crate) ident: Ident,
    pub(crate) fingerprint: u64,
    pub(crate) methods: Vec<Method>,
    /// Any thread of a server may run its calls, in any order.
    pub(crate) any_thread: bool,
}

/// A method.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    /// The name without `r#`.
    pub(crate) name: String,
    /// The attributes that the client's methods take over: documentation and deprecation.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) id: u32,
    id_span: Span,
    /// A hash of the types of the arguments and of the outcome.
    pub(crate) shape: u64,
    pub(crate) idempotent: bool,
    pub(crate) is_async: bool,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) outcome: Outcome,
}

/// An argument.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) form: Form,
}

/// What a method returns.
pub(crate) enum Outcome {
    /// Anything but a `Result`.
    Value(Box<Part>),
    /// A `Result`; an answer carries one of its sides.
    Fallible(Box<(Part, Part)>),
}

/// One type of an outcome.
pub(crate) struct Part {
    pub(crate) ty: Type,
    pub(crate) form: Form,
}

impl Part {
    fn new(ty: Type) -> Self {
        Self { form: Form::of(&ty).alone(), ty }
    }
}

impl Service {
    pub(crate) fn new(options: ServiceOptions, item: &ItemTrait) -> Result<Self> {
        let mut errors = Errors::default();
        refuse::of_trait(item, &mut errors);
        let mut methods = Vec::with_capacity(item.items.len());
        for item in &item.items {
            match item {
                TraitItem::Fn(method) => {
                    refuse::of_method(method, &mut errors);
                    match Method::new(&options.name, method) {
                        Ok(method) => methods.push(method),
                        Err(error) => errors.push(error),
                    }
                }
                other => refuse::other_item(other, &mut errors),
            }
        }
        refuse_collisions(&methods, &mut errors);
        errors.into_result()?;
        let krate = &options.krate;
        Ok(Self {
            private: quote!(#krate::__private),
            fingerprint: fingerprint(&options.name, &methods),
            name: options.name,
            any_thread: options.any_thread,
            visibility: item.vis.clone(),
            ident: item.ident.clone(),
            methods,
        })
    }

    pub(crate) fn server(&self) -> Ident {
        self.named("Server")
    }

    pub(crate) fn client(&self) -> Ident {
        self.named("Client")
    }

    pub(crate) fn poll_client(&self) -> Ident {
        self.named("PollClient")
    }

    /// The type of the methods, generic over the id.
    pub(crate) fn method_type(&self) -> Ident {
        Ident::new(&format!("__{}Method", self.ident.unraw()), self.ident.span())
    }

    pub(crate) fn declares(&self, method: &str) -> bool {
        self.methods.iter().any(|declared| declared.name == method)
    }

    fn named(&self, suffix: &str) -> Ident {
        Ident::new(&format!("{}{suffix}", self.ident.unraw()), self.ident.span())
    }
}

impl Method {
    fn new(service: &str, item: &syn::TraitItemFn) -> Result<Self> {
        let options = options::of_method(&item.attrs)?;
        let name = item.sig.ident.unraw().to_string();
        let (id, id_span) =
            options.id.unwrap_or_else(|| (hash::method_id(service, &name), item.sig.ident.span()));
        let mut arguments: Vec<Argument> = refuse::arguments(item)
            .map(|(ident, ty)| Argument { ident, form: Form::of(&ty), ty })
            .collect();
        if let [lone] = arguments.as_mut_slice() {
            lone.form = Form::of(&lone.ty).alone();
        }
        let outcome = Outcome::new(&item.sig.output);
        let carried = ["doc", "deprecated"];
        Ok(Self {
            ident: item.sig.ident.clone(),
            name,
            attributes: item
                .attrs
                .iter()
                .filter(|attribute| carried.iter().any(|name| attribute.path().is_ident(name)))
                .cloned()
                .collect(),
            id,
            id_span,
            idempotent: options.idempotent,
            is_async: item.sig.asyncness.is_some(),
            shape: shape(&arguments, &outcome),
            arguments,
            outcome,
        })
    }

    /// The poll-mode client's method that starts a call.
    pub(crate) fn starter(&self) -> Ident {
        Ident::new(&format!("start_{}", self.name), self.ident.span())
    }
}

impl Outcome {
    fn new(output: &ReturnType) -> Self {
        let ty = match output {
            ReturnType::Default => syn::parse_quote!(()),
            ReturnType::Type(_, ty) => (**ty).clone(),
        };
        match forms::of_result(&ty) {
            Some(Some((value, error))) => {
                Outcome::Fallible(Box::new((Part::new(value), Part::new(error))))
            }
            _ => Outcome::Value(Box::new(Part::new(ty))),
        }
    }
}

/// The errors so far.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            None => self.0 = Some(error),
            Some(first) => first.combine(error),
        }
    }

    /// Adds an error at these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.push(Error::new_spanned(tokens, message));
    }

    fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

fn refuse_collisions(methods: &[Method], errors: &mut Errors) {
    let mut names: HashMap<&str, &Method> = HashMap::new();
    let mut ids: HashMap<u32, &Method> = HashMap::new();
    for method in methods {
        let name = &method.name;
        if names.insert(name, method).is_some() {
            errors.at(
                &method.ident,
                format_args!("the service has two methods named `{name}`; rename one"),
            );
            continue;
        }
        if let Some(first) = ids.insert(method.id, method) {
            errors.push(Error::new(
                method.id_span,
                format_args!(
                    "`{name}` has the same id as `{}`, {:#010x}; give one of them another with `#[rpc(id = N)]`",
                    first.name, method.id
                ),
            ));
        }
    }
    for method in methods {
        let started = method.name.strip_prefix("start_").and_then(|name| names.get(name));
        if let Some(started) = started {
            errors.at(
                &method.ident,
                format_args!(
                    "the poll-mode client starts a call of `{}` with `{}`; rename one of the two methods",
                    started.name, method.name
                ),
            );
        }
    }
}

/// A hash of everything in which client and server must agree.
fn fingerprint(service: &str, methods: &[Method]) -> u64 {
    // Raised when the encoding of arguments or results changes.
    const ENCODING: &str = "farcall encoding 1";
    let mut sorted: Vec<&Method> = methods.iter().collect();
    sorted.sort_by_key(|method| method.id);
    let mut hasher = Hasher::new();
    hasher.add(ENCODING);
    hasher.add(service);
    for method in sorted {
        hasher.add(&method.id.to_string());
        hasher.add(&method.shape.to_string());
        // Not a part of the shape: the methods fit, but a client must know how often a call may run.
        hasher.add(if method.idempotent { "idempotent" } else { "once" });
    }
    hasher.finish()
}

/// A hash of everything in which the two ends of one method must agree.
fn shape(arguments: &[Argument], outcome: &Outcome) -> u64 {
    let mut hasher = Hasher::new();
    for argument in arguments {
        hasher.add(&hash::normalised(argument.ty.to_token_stream()));
    }
    hasher.add("->");
    match outcome {
        Outcome::Value(value) => hasher.add(&hash::normalised(value.ty.to_token_stream())),
        Outcome::Fallible(parts) => {
            hasher.add(&hash::normalised(parts.0.ty.to_token_stream()));
            hasher.add("or");
            hasher.add(&hash::normalised(parts.1.ty.to_token_stream()));
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(text: &str) -> Service {
        let item: ItemTrait = syn::parse_str(text).unwrap();
        let options = options::of_service(TokenStream::new(), &item).unwrap();
        Service::new(options, &item).unwrap_or_else(|error| panic!("{error}"))
    }

    fn fingerprint(text: &str) -> u64 {
        service(text).fingerprint
    }

    #[test]
    fn the_fingerprint_is_of_what_travels() {
        let original = fingerprint(
            "trait Kv { fn get(&self, key: &[u8]) -> Option<Bytes>; fn len(&self) -> u64; }",
        );
        let same = "
            /// A store.
            pub trait Kv {
                /// How many.
                async fn len(&self) -> u64;
                /// The value of a key.
                fn get(&self, name: &'_ [u8],) -> Option< Bytes >;
            }";
        assert_eq!(original, fingerprint(same));
        for other in [
            "trait Kv { fn get(&self, key: &[u8]) -> Option<Bytes>; }",
            "trait Kv { fn get(&self, key: &[u8]) -> Option<Bytes>; fn len(&self) -> u32; }",
            "trait Kv { fn get(&self, key: &str) -> Option<Bytes>; fn len(&self) -> u64; }",
            "trait Kv { fn get(&self, key: &[u8]) -> Option<Bytes>; fn size(&self) -> u64; }",
            "trait Store { fn get(&self, key: &[u8]) -> Option<Bytes>; fn len(&self) -> u64; }",
        ] {
            assert_ne!(original, fingerprint(other), "{other}");
        }
    }

    #[test]
    fn both_sides_of_a_result_count_in_the_fingerprint() {
        let original = fingerprint("trait Kv { fn get(&self) -> Result<u32, Missing>; }");
        for other in [
            "trait Kv { fn get(&self) -> Result<u32, Forbidden>; }",
            "trait Kv { fn get(&self) -> Result<u64, Missing>; }",
            "trait Kv { fn get(&self) -> Result<Missing, u32>; }",
            "trait Kv { fn get(&self) -> u32; }",
        ] {
            assert_ne!(original, fingerprint(other), "{other}");
        }
    }

    #[test]
    fn a_change_of_one_method_leaves_the_shapes_of_the_others() {
        let shapes = |text: &str| -> Vec<u64> {
            service(text).methods.iter().map(|method| method.shape).collect()
        };
        let old = shapes("trait Kv { fn get(&self, key: u32) -> u32; fn len(&self) -> u64; }");
        let new = shapes("trait Kv { fn get(&self, key: u64) -> u32; fn len(&self) -> u64; }");
        assert_ne!(old[0], new[0]);
        assert_eq!(old[1], new[1]);
    }

    #[test]
    fn a_fixed_id_survives_a_rename() {
        let old = service("trait Kv { #[rpc(id = 7)] fn get(&self); }");
        let new = service("trait Kv { #[rpc(id = 7)] fn fetch(&self); }");
        assert_eq!((old.methods[0].id, new.methods[0].id), (7, 7));
        assert_eq!(old.fingerprint, new.fingerprint);
    }

    #[test]
    fn whether_a_method_is_idempotent_counts_in_the_fingerprint_and_not_in_the_shape() {
        let once = service("trait Kv { fn get(&self); }");
        let often = service("trait Kv { #[rpc(idempotent)] fn get(&self); }");
        assert!(often.methods[0].idempotent);
        assert_ne!(once.fingerprint, often.fingerprint);
        assert_eq!(once.methods[0].shape, often.methods[0].shape);
    }
}
