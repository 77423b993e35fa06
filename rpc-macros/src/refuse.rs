//! The checks that refuse a trait as a service; each error says what to do instead.

use std::collections::HashSet;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Error, FnArg, GenericParam, Ident, Item, ItemTrait, Lifetime, Pat, PatType,
    ReceiverKind, ReturnType, Safety, TraitItem, TraitItemFn, Type, TypeImplTrait, TypePath,
    TypeReference,
};

use crate::model::Errors;
use crate::{forms, hash, options};

/// The codec has tuples of up to eight parts; more arguments than that are a struct with a name for each.
const MAX_ARGUMENTS: usize = 8;

/// Names of the generated clients' own functions.
const RESERVED: [(&str, &str); 2] = [
    ("connect", "`connect` makes a client of the service"),
    ("clone", "`clone` copies the client of the service"),
];

/// The error for an item that is not a trait.
pub(crate) fn not_a_trait(item: &TokenStream) -> Option<Error> {
    let item: Item = syn::parse2(item.clone()).ok()?;
    let mend = match &item {
        Item::Impl(_) => "; put it on the trait, and write this `impl` without it",
        Item::Struct(_) | Item::Enum(_) => {
            "; declare the methods in a trait, and implement it for this type"
        }
        _ => "",
    };
    Some(Error::new_spanned(item, format_args!("`#[farcall::service]` goes on a trait{mend}")))
}

pub(crate) fn of_trait(item: &ItemTrait, errors: &mut Errors) {
    if let Some(unsafety) = &item.unsafety {
        errors.at(
            unsafety,
            "a service is not `unsafe`: its callers are in other programs; take `unsafe` away",
        );
    }
    if let Some(auto) = &item.modifiers.auto_token {
        errors.at(auto, "a service is not an `auto` trait");
    }
    if !item.generics.params.is_empty() {
        errors.at(
            &item.generics,
            "a service has no generic parameters: client and server must agree on every type; \
             write concrete types, and one service for each combination",
        );
    }
    if let Some(clause) = &item.generics.where_clause {
        errors.at(
            clause,
            "a service has no `where` clause; put the bounds on the types of the implementation",
        );
    }
}

pub(crate) fn other_item(item: &TraitItem, errors: &mut Errors) {
    let message = match item {
        TraitItem::Const(_) => {
            "a service has no associated constants: a client could not see the server's; make it a method that returns it"
        }
        TraitItem::Type(_) => {
            "a service has no associated types: client and server must agree on every type; write the type itself in the methods"
        }
        TraitItem::Macro(_) => {
            "a service cannot be made by macros inside the trait: its methods must be seen; write them out, or let a macro make the whole trait"
        }
        _ => "a service has methods only",
    };
    errors.at(item, message);
}

pub(crate) fn of_method(method: &TraitItemFn, errors: &mut Errors) {
    let signature = &method.sig;
    for (name, what) in RESERVED {
        if signature.ident.unraw() == name {
            errors.at(&signature.ident, format_args!("{what}; give the method another name"));
        }
    }
    conditional(&method.attrs, "a method", errors);
    if let Some(token) = &signature.constness {
        errors.at(token, "a method of a service runs in another program: it cannot be `const`");
    }
    if let Safety::Unsafe(token) = &signature.safety {
        errors.at(
            token,
            "a method of a service is not `unsafe`: anyone can call it; check the arguments in it",
        );
    }
    if let Some(abi) = &signature.abi {
        errors.at(abi, "a method of a service has no ABI of its own; take `extern` away");
    }
    generics(method, errors);
    if let Some(body) = &method.default {
        errors.at(
            body,
            "a method of a service has no body here: end it with `;`, and put what implementations share into a function that they call",
        );
    }
    receiver(method, errors);
    parameters(method, errors);
    output(method, errors);
}

fn generics(method: &TraitItemFn, errors: &mut Errors) {
    let generics = &method.sig.generics;
    let only_lifetimes =
        generics.params.iter().all(|param| matches!(param, GenericParam::Lifetime(_)));
    if !generics.params.is_empty() {
        errors.at(
            generics,
            if only_lifetimes {
                "a method of a service needs no lifetime parameters: arguments borrow from the message; leave the lifetimes out, or write `'_`"
            } else {
                "a method of a service has no generic parameters: client and server must agree on every type; write concrete types, or an enum of them"
            },
        );
    }
    if let Some(clause) = &generics.where_clause {
        errors.at(clause, "a method of a service has no `where` clause; take it away");
    }
}

fn receiver(method: &TraitItemFn, errors: &mut Errors) {
    const ADVICE: &str = "many calls run on one service, so it is shared: write `&self`, and put what changes behind a lock, a cell or an atomic";
    let Some(FnArg::Receiver(receiver)) = method.sig.inputs.first() else {
        return errors.at(
            &method.sig.ident,
            "a method of a service takes `&self` first; a function without `&self` cannot be called remotely",
        );
    };
    match &receiver.kind {
        ReceiverKind::Value => {
            errors.at(receiver, format_args!("a call cannot consume the service; {ADVICE}"));
        }
        ReceiverKind::Reference(_, _, Some(_)) => {
            errors.at(
                receiver,
                format_args!("a call has no exclusive access to the service; {ADVICE}"),
            );
        }
        ReceiverKind::Reference(_, Some(lifetime), None) => {
            errors.at(lifetime, "the lifetime of `&self` needs no name: write `&self`");
        }
        ReceiverKind::Reference(_, None, None) => {}
        _ => {
            errors.at(receiver, format_args!("a service has no receiver of another type; {ADVICE}"))
        }
    }
}

/// A parameter that is a plain name.
pub(crate) struct Parameter<'m> {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) attributes: &'m [Attribute],
}

/// The arguments whose parameter is a plain name.
pub(crate) fn arguments(method: &TraitItemFn) -> impl Iterator<Item = Parameter<'_>> + '_ {
    typed(method).filter_map(|parameter| {
        let ident = name(&parameter.pat)?.clone();
        Some(Parameter { ident, ty: (*parameter.ty).clone(), attributes: &parameter.attrs })
    })
}

fn typed(method: &TraitItemFn) -> impl Iterator<Item = &PatType> {
    method.sig.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed),
        FnArg::Receiver(_) => None,
    })
}

fn name(pattern: &Pat) -> Option<&Ident> {
    match pattern {
        Pat::Ident(name)
            if name.by_ref.is_none() && name.mutability.is_none() && name.subpat.is_none() =>
        {
            Some(&name.ident)
        }
        _ => None,
    }
}

fn parameters(method: &TraitItemFn, errors: &mut Errors) {
    if let Some(variadic) = &method.sig.variadic {
        errors.at(variadic, "a method of a service has a fixed number of arguments; take a `Vec`");
    }
    if let Some(beyond) = typed(method).nth(MAX_ARGUMENTS) {
        errors.at(
            beyond,
            format_args!(
                "a method of a service takes at most {MAX_ARGUMENTS} arguments; put them in a struct, which also names them at the call"
            ),
        );
    }
    let is_async = method.sig.asyncness.is_some();
    let mut seen = HashSet::new();
    for parameter in typed(method) {
        let foreign = parameter.attrs.iter().find(|attribute| !options::is_rpc(attribute));
        if let Some(attribute) = foreign {
            errors.at(
                attribute,
                "a parameter of a service's method has no attributes except `#[rpc(...)]`; take it away",
            );
        }
        match name(&parameter.pat) {
            Some(name) if !seen.insert(name.unraw().to_string()) => {
                errors.at(name, format_args!("two parameters are named `{name}`; rename one"));
            }
            Some(_) => {}
            None => errors.at(
                &parameter.pat,
                "a parameter of a service's method must be a plain name, because error messages mention it: \
                 write `name: Type`, and take it apart in the implementation",
            ),
        }
        let mut check = Types { position: Position::Argument { is_async }, depth: 0, errors };
        check.visit_type(&parameter.ty);
    }
}

fn output(method: &TraitItemFn, errors: &mut Errors) {
    let ReturnType::Type(_, ty) = &method.sig.output else { return };
    if let Some(None) = forms::of_result(ty) {
        errors.at(ty, "the error type of a result must be written out: `Result<T, E>`");
    }
    Types { position: Position::Result, depth: 0, errors }.visit_type(ty);
}

fn conditional(attributes: &[Attribute], what: &str, errors: &mut Errors) {
    for attribute in attributes {
        if attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr") {
            errors.at(
                attribute,
                format_args!(
                    "{what} of a service cannot depend on the build: client and server would differ; make two services, or answer an error"
                ),
            );
        }
    }
}

/// The position of a type in a method's signature.
#[derive(Clone, Copy)]
enum Position {
    Argument { is_async: bool },
    Result,
}

/// Searches a type for parts that cannot be sent.
struct Types<'e> {
    position: Position,
    depth: usize,
    errors: &'e mut Errors,
}

impl Types<'_> {
    /// Reports one error per reference; its target is not checked.
    fn reference(&mut self, reference: &TypeReference) -> bool {
        let text = hash::normalised(reference.to_token_stream());
        let owned = owned_in_place_of(reference);
        if reference.mutability.is_some() {
            self.errors.at(
                reference,
                format_args!("`{text}` cannot change the caller's value: take `{owned}` and return what changed"),
            );
            return false;
        }
        match self.position {
            Position::Result => {
                self.errors.at(
                    reference,
                    format_args!("`{text}` cannot be returned: the answer leaves this program; return `{owned}`"),
                );
                false
            }
            Position::Argument { is_async: true } => {
                self.errors.at(
                    reference,
                    format_args!(
                        "an `async fn` outlives the message that `{text}` would borrow from: take `{owned}`, or make the method a plain `fn`"
                    ),
                );
                false
            }
            Position::Argument { is_async: false } => {
                if reference.lifetime.as_ref().is_some_and(|lifetime| lifetime.ident == "static") {
                    self.errors.at(
                        reference,
                        format_args!("a message does not live for `'static`: take `{owned}`, or leave the lifetime out"),
                    );
                    return false;
                }
                if self.depth > 0 && !borrows_bytes(reference) {
                    self.errors.at(
                        reference,
                        format_args!("within another type only `&str` and `&[u8]` can borrow from a message: take `{owned}`"),
                    );
                    return false;
                }
                true
            }
        }
    }
}

impl Visit<'_> for Types<'_> {
    fn visit_type(&mut self, ty: &Type) {
        match ty {
            Type::Group(_) | Type::Paren(_) => return visit::visit_type(self, ty),
            Type::Reference(reference) if !self.reference(reference) => return,
            Type::Ptr(_) => {
                return self
                    .errors
                    .at(ty, "a pointer means nothing in another program; send what it points to");
            }
            Type::FnPtr(_) => {
                return self.errors.at(ty, "a function cannot travel to another program; send an enum that says what to do");
            }
            Type::TraitObject(_) => {
                return self.errors.at(ty, "a trait object cannot travel to another program; send an enum of the types it can be");
            }
            Type::Infer(_) => {
                return self
                    .errors
                    .at(ty, "client and server must agree on every type: write it out");
            }
            Type::Never(_) => {
                return self.errors.at(ty, "a call that never returns has no answer; return `()`");
            }
            _ => {}
        }
        self.depth += 1;
        visit::visit_type(self, ty);
        self.depth -= 1;
    }

    fn visit_type_impl_trait(&mut self, ty: &TypeImplTrait) {
        let future = ty.bounds.to_token_stream().to_string().contains("Future");
        self.errors.at(
            ty,
            match self.position {
                Position::Result if future => "write `async fn` and the future's output",
                Position::Result => "a type without a name cannot travel; return a type with a name, such as a `Vec`",
                Position::Argument { .. } => "a method of a service takes types with names, on which client and server agree; write the type itself",
            },
        );
    }

    fn visit_type_path(&mut self, ty: &TypePath) {
        if ty.path.segments.first().is_some_and(|first| first.ident == "Self") {
            return self.errors.at(
                ty,
                "`Self` is the server's type, which a client does not know; write the type itself",
            );
        }
        visit::visit_type_path(self, ty);
    }

    fn visit_lifetime(&mut self, lifetime: &Lifetime) {
        if lifetime.ident == "static" {
            return;
        }
        match self.position {
            Position::Result => self.errors.at(
                lifetime,
                "a result cannot borrow: the answer leaves this program; return a type that owns what it holds",
            ),
            Position::Argument { is_async: true } => self.errors.at(
                lifetime,
                "an `async fn` outlives the message that its arguments came in: take a type that owns what it holds, or make the method a plain `fn`",
            ),
            Position::Argument { is_async: false } => {}
        }
    }
}

fn borrows_bytes(reference: &TypeReference) -> bool {
    match forms::peeled(&reference.elem) {
        Type::Slice(slice) => forms::is_u8(&slice.elem),
        Type::Array(array) => forms::is_u8(&array.elem),
        Type::Path(path) => forms::is_borrowed_by_serde(path),
        _ => false,
    }
}

/// The type to take or return in place of a reference.
fn owned_in_place_of(reference: &TypeReference) -> String {
    match forms::peeled(&reference.elem) {
        Type::Slice(slice) if forms::is_u8(&slice.elem) => "Bytes` or `Vec<u8>".to_owned(),
        Type::Slice(slice) => format!("Vec<{}>", hash::normalised(slice.elem.to_token_stream())),
        Type::Path(path) if path.path.is_ident("str") => "String".to_owned(),
        Type::Path(path) if path.path.is_ident("Path") => "PathBuf".to_owned(),
        other => hash::normalised(other.to_token_stream()),
    }
}
