//! A type for each method: its id, its name, how its answer is read.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Type;

use super::{argument_name, defaulted, output, part};
use crate::forms::{Form, PassedAs, peeled, placed};
use crate::model::{Argument, Method, Outcome, Part, Service};
use crate::options::Reserved;
use crate::versions::Version;

pub(super) fn emit(service: &Service) -> TokenStream {
    let ty = service.method_type();
    let methods = service.methods.iter().map(|method| of_method(service, method));
    quote! {
        #[doc(hidden)]
        enum #ty<const ID: u32> {}
        const _: () = {
            #(#methods)*
        };
    }
}

fn of_method(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    let ty = super::method_type(service, method);
    let id = method.versions.newest.id;
    let name = format!("{}.{}", service.name, method.name);
    let output = output(service, method);
    let idempotent = method.idempotent.then(|| {
        quote!(
            const IDEMPOTENT: bool = true;
        )
    });
    let older = &method.versions.older;
    let counts = older.iter().map(|version| version.arguments);
    let older = (!older.is_empty()).then(|| {
        quote!(
            const OLDER: &'static [usize] = &[#(#counts),*];
        )
    });
    let side = |side: &Part| {
        let (form, ty) = (side.form.tokens(private), &side.ty);
        placed(ty, quote!(|__message| #private::side::<#form, _>(__message)))
    };
    let read = |answer: TokenStream| match &method.outcome {
        Outcome::Value(value) => {
            let value = side(value);
            quote!(#private::read_value(Self::NAME, #answer, #value))
        }
        Outcome::Fallible(parts) => {
            let (value, error) = (side(&parts.0), side(&parts.1));
            quote!(#private::read_result(Self::NAME, #answer, #value, #error))
        }
    };
    let read_any = read(quote!(__answer));
    let read_short = read(quote!(#private::Answer::Value(#private::Message::Borrowed(__value))));
    quote! {
        #[automatically_derived]
        impl #private::Method for #ty {
            const NAME: &'static str = #name;
            const ID: u32 = #id;
            #idempotent
            #older
            type Output = #output;

            #[inline]
            fn read(__answer: #private::Answer<'_>) -> Self::Output {
                #read_any
            }

            #[inline(always)]
            fn read_short(__value: &[u8]) -> Self::Output {
                #read_short
            }
        }
    }
}

/// The service's own description, and the ids of methods that were removed.
pub(super) fn constants(service: &Service) -> TokenStream {
    let Service { private, name, shapes, .. } = service;
    let markers = shapes.markers();
    let reserved = reserved(service);
    let methods = service.entries().map(|(method, version)| {
        let (name, id) = (method.version_name(version), version.id);
        let signature = signature(service, method, version);
        let idempotent = method.idempotent.then(|| quote!(.idempotent()));
        let any_thread = service.any_thread.then(|| quote!(.any_thread()));
        let required = version.required.then(|| quote!(.required()));
        let newest = method.versions.newest.number;
        let is_older = version.number < newest;
        let superseded = is_older.then(|| quote!(.superseded()));
        let older = &method.versions.older;
        let has_older = !is_older && !older.is_empty();
        let older = older.iter().map(|version| older_version(service, method, version));
        let older = has_older.then(|| quote!(.with_older(const { &[#(#older),*] })));
        quote! {
            #private::MethodDescription::of(#name, #id, const { &#signature })
                #idempotent #any_thread #required #superseded #older
        }
    });
    quote! {
        const DESCRIPTION: &'static #private::ServiceDescription = {
            #markers
            &#private::ServiceDescription::new(#name, const { &[#(#methods),*] })
        };
        #reserved
    }
}

fn reserved(service: &Service) -> Option<TokenStream> {
    let private = &service.private;
    let reserved = service.reserved.iter().map(|Reserved { name, id }| match name {
        Some(name) => quote!(#private::Reserved::Name(#name, #id)),
        None => quote!(#private::Reserved::Id(#id)),
    });
    let any = !service.reserved.is_empty();
    any.then(|| {
        quote! {
            const RESERVED: &'static [#private::Reserved] = &[#(#reserved),*];
        }
    })
}

/// How a call is sent in an older version.
fn older_version(service: &Service, method: &Method, version: &Version) -> TokenStream {
    let private = &service.private;
    let (id, signature) = (version.id, signature(service, method, version));
    let is_whole =
        matches!(method.arguments(version).as_slice(), [Argument { form: Form::Whole, .. }]);
    let newer = || method.arguments.iter().enumerate().skip(version.arguments);
    let defaults = newer().map(|(index, argument)| defaulted(argument, &argument_name(index)));
    let parts = newer().map(|(index, Argument { ty, form, .. })| {
        let name = argument_name(index);
        let reference = match PassedAs::of(ty) {
            PassedAs::Read(_) if matches!(peeled(ty), Type::Reference(_)) => quote!(#name),
            PassedAs::Read(_) | PassedAs::Reference(_) => quote!(&#name),
        };
        part(service, ty, form, reference)
    });
    quote! {
        #private::OlderVersion::of(#id, const { &#signature }, #is_whole, || {
            #(#defaults)*
            #private::encoded(&(#(#parts,)*))
        })
    }
}

/// The shapes of the arguments and of the results.
fn signature(service: &Service, method: &Method, version: &Version) -> TokenStream {
    let Service { private, shapes, .. } = service;
    let node = |ty: &Type, form: &Form| match form {
        Form::Whole => quote!(const { &#private::Node::whole() }),
        _ => shapes.of(ty),
    };
    let arguments = method.arguments(version);
    let arguments = arguments.iter().map(|Argument { name, ty, form, opaque, .. }| {
        let node = match opaque {
            Some(opaque) => shapes.opaque(opaque),
            None => node(ty, form),
        };
        quote!(#private::Field::new(#name, #node))
    });
    let part = |part: &Part| node(&part.ty, &part.form);
    let (value, error) = match &method.outcome {
        Outcome::Value(value) => (part(value), quote!(#private::Option::None)),
        Outcome::Fallible(parts) => {
            let error = part(&parts.1);
            (part(&parts.0), quote!(#private::Option::Some(#error)))
        }
    };
    quote!(#private::Signature::new(const { &[#(#arguments),*] }, #value, #error))
}
