//! The model of a service that passed every check; code is generated from it.

use std::collections::HashMap;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{
    Attribute, Error, Expr, Ident, ItemTrait, LitStr, Result, ReturnType, TraitItem, Type,
    Visibility,
};

use crate::forms::{self, Form};
use crate::hash;
use crate::options::{self, ArgumentOptions, Reserved, ServiceOptions};
use crate::refuse::{self, Parameter};
use crate::shapes::Shapes;
use crate::versions::{Version, Versions};

/// A service.
pub(crate) struct Service {
    /// The facade's module with the items that generated code names.
    pub(crate) private: TokenStream,
    /// The name in the handshake and in the ids.
    pub(crate) name: String,
    pub(crate) visibility: Visibility,
    pub(crate) ident: Ident,
    /// The shapes of the types in signatures.
    pub(crate) shapes: Shapes,
    pub(crate) methods: Vec<Method>,
    /// Ids that no method may have.
    pub(crate) reserved: Vec<Reserved>,
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
    /// The newest first.
    pub(crate) versions: Versions,
    id_span: Span,
    pub(crate) idempotent: bool,
    pub(crate) is_async: bool,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) outcome: Outcome,
}

/// An argument.
#[derive(Clone)]
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    /// The name in the shape.
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) form: Form,
    /// The name that is its whole shape.
    pub(crate) opaque: Option<LitStr>,
    /// The version that added it; `None`: the oldest.
    pub(crate) since: Option<u32>,
    /// Its value in calls of older versions, instead of `Default::default()`.
    pub(crate) default: Option<Expr>,
}

impl Argument {
    fn new(Parameter { ident, ty, attributes }: Parameter<'_>) -> Result<Self> {
        let options = options::of_argument(attributes)?;
        let name = match options.name {
            Some(name) => name.value(),
            None => ident.unraw().to_string(),
        };
        let ArgumentOptions { opaque, since, default, .. } = options;
        Ok(Self { ident, name, form: Form::of(&ty), ty, opaque, since, default })
    }
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
        require_methods(&options.require, &mut methods, &mut errors);
        refuse_collisions(&methods, &mut errors);
        refuse_reserved(&options.reserved, &methods, &mut errors);
        errors.into_result()?;
        let krate = &options.krate;
        let private = quote!(#krate::__private);
        Ok(Self {
            shapes: Shapes::new(&private, &options.opaque),
            private,
            reserved: options.reserved,
            name: options.name,
            any_thread: options.any_thread,
            visibility: item.vis.clone(),
            ident: item.ident.clone(),
            methods,
        })
    }

    /// All versions of all methods, in the order of the description: the older ones last.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Method, &Version)> {
        let newest = self.methods.iter().map(|method| (method, &method.versions.newest));
        let older = self
            .methods
            .iter()
            .flat_map(|method| method.versions.older.iter().map(move |version| (method, version)));
        newest.chain(older)
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
        let arguments =
            refuse::arguments(item).map(Argument::new).collect::<Result<Vec<Argument>>>()?;
        let versions = Versions::new(service, id, options.since, &arguments)?;
        let carried = ["doc", "deprecated"];
        Ok(Self {
            ident: item.sig.ident.clone(),
            versions,
            name,
            attributes: item
                .attrs
                .iter()
                .filter(|attribute| carried.iter().any(|name| attribute.path().is_ident(name)))
                .cloned()
                .collect(),
            id_span,
            idempotent: options.idempotent,
            is_async: item.sig.asyncness.is_some(),
            arguments,
            outcome: Outcome::new(&item.sig.output),
        })
    }

    /// The arguments of one of its versions.
    pub(crate) fn arguments(&self, version: &Version) -> Vec<Argument> {
        let mut arguments = self.arguments[..version.arguments].to_vec();
        if let [lone] = arguments.as_mut_slice() {
            lone.form = Form::of(&lone.ty).alone();
        }
        arguments
    }

    fn has_id(&self, id: u32) -> bool {
        self.versions.all().any(|version| version.id == id)
    }

    /// The name of one of its versions: `get`, `get@2`.
    pub(crate) fn version_name(&self, version: &Version) -> String {
        match version.number {
            1 => self.name.clone(),
            number => format!("{}@{number}", self.name),
        }
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

/// Marks the methods with these names: in any version, or from one version on.
fn require_methods(names: &[LitStr], methods: &mut [Method], errors: &mut Errors) {
    for name in names {
        let text = name.value();
        let version = methods.iter_mut().find_map(|method| {
            let oldest = method.name == text;
            let named: Vec<bool> =
                method.versions.all().map(|v| method.version_name(v) == text).collect();
            let place = named.iter().position(|is_named| *is_named);
            let place = if oldest { Some(named.len() - 1) } else { place };
            method.versions.all_mut().nth(place?)
        });
        match version {
            Some(version) => version.required = true,
            None => errors.at(name, format_args!("the service has no method `{text}`")),
        }
    }
}

fn refuse_collisions(methods: &[Method], errors: &mut Errors) {
    let mut names: HashMap<&str, &Method> = HashMap::new();
    let mut ids: HashMap<u32, String> = HashMap::new();
    for method in methods {
        let name = &method.name;
        if names.insert(name, method).is_some() {
            errors.at(
                &method.ident,
                format_args!("the service has two methods named `{name}`; rename one"),
            );
            continue;
        }
        for version in method.versions.all() {
            let (name, id) = (method.version_name(version), version.id);
            if let Some(first) = ids.insert(id, name.clone()) {
                errors.push(Error::new(
                    method.id_span,
                    format_args!(
                        "`{name}` has the same id as `{first}`, {id:#010x}; give one of them another with `#[rpc(id = N)]`",
                    ),
                ));
            }
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

fn refuse_reserved(reserved: &[Reserved], methods: &[Method], errors: &mut Errors) {
    for method in methods {
        let name = &method.name;
        if reserved.iter().any(|reserved| reserved.name.as_ref() == Some(name)) {
            errors.at(
                &method.ident,
                format_args!(
                    "`{name}` is reserved: a method of this name was removed, and older clients may still call it; \
                     take another name"
                ),
            );
        } else if let Some(id) = reserved.iter().map(|it| it.id).find(|id| method.has_id(*id)) {
            errors.push(Error::new(
                method.id_span,
                format_args!(
                    "the id {id:#010x} is reserved: a method that had it was removed, and older clients may still call it; \
                     give `{name}` another with `#[rpc(id = N)]`",
                ),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(text: &str) -> Service {
        let item: ItemTrait = syn::parse_str(text).unwrap();
        let options = options::of_service(TokenStream::new(), &item).unwrap();
        Service::new(options, &item).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_fixed_id_survives_a_rename() {
        let old = service("trait Kv { #[rpc(id = 7)] fn get(&self); }");
        let new = service("trait Kv { #[rpc(id = 7)] fn fetch(&self); }");
        let id = |service: &Service| service.methods[0].versions.newest.id;
        assert_eq!((id(&old), id(&new)), (7, 7));
    }

    #[test]
    fn required_methods_are_marked() {
        let item: ItemTrait = syn::parse_str("trait Kv { fn get(&self); fn put(&self); }").unwrap();
        let options = options::of_service(quote!(require = ["put"]), &item).unwrap();
        let service = Service::new(options, &item).unwrap_or_else(|error| panic!("{error}"));
        let required: Vec<_> =
            service.methods.iter().map(|method| method.versions.newest.required).collect();
        assert_eq!(required, [false, true]);
    }
}
