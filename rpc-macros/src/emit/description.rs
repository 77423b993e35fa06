//! A type for each method: its id, its name, how its answer is read.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Type;

use super::output;
use crate::forms::{Form, placed};
use crate::model::{Argument, Method, Outcome, Part, Service};
use crate::options::Reserved;

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
    let id = method.id;
    let name = format!("{}.{}", service.name, method.name);
    let output = output(service, method);
    let idempotent = method.idempotent.then(|| {
        quote!(
            const IDEMPOTENT: bool = true;
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
    let methods = service.methods.iter().map(|method| {
        let (name, id) = (&method.name, method.id);
        let signature = signature(service, method);
        let idempotent = method.idempotent.then(|| quote!(.idempotent()));
        let any_thread = service.any_thread.then(|| quote!(.any_thread()));
        let required = method.required.then(|| quote!(.required()));
        quote! {
            #private::MethodDescription::of(#name, #id, const { &#signature })#idempotent #any_thread #required
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

/// The shapes of the arguments and of the results.
fn signature(service: &Service, method: &Method) -> TokenStream {
    let Service { private, shapes, .. } = service;
    let node = |ty: &Type, form: &Form| match form {
        Form::Whole => quote!(const { &#private::Node::whole() }),
        _ => shapes.of(ty),
    };
    let arguments = method.arguments.iter().map(|Argument { name, ty, form, opaque, .. }| {
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
