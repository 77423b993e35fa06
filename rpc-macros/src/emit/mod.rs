//! The code that a service becomes.

mod client;
mod declaration;
mod description;
mod server;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::{Ident, ItemTrait, Type};

use crate::forms::{Form, PassedAs, peeled, placed, span_at};
use crate::model::{Argument, Method, Outcome, Service};

pub(crate) fn all(service: &Service, item: &ItemTrait) -> TokenStream {
    let declaration = declaration::emit(service, item);
    let description = description::emit(service);
    let server = server::emit(service);
    let client = client::channel(service);
    let poll_client = client::poll(service);
    quote! {
        #declaration
        #description
        #server
        #client
        #poll_client
    }
}

/// The type of a call's result.
fn output(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    match &method.outcome {
        Outcome::Value(value) => {
            let ty = &value.ty;
            quote!(#private::Result<#ty, #private::RpcError>)
        }
        Outcome::Fallible(parts) => {
            let (value, error) = (&parts.0.ty, &parts.1.ty);
            quote!(#private::Result<#value, #private::CallError<#error>>)
        }
    }
}

/// `key: &[u8], value: Bytes`
fn parameters(method: &Method) -> TokenStream {
    let parameters = method.arguments.iter().map(|Argument { ident, ty, .. }| quote!(#ident: #ty));
    quote!(#(#parameters),*)
}

/// The arguments as one payload.
fn payload(service: &Service, method: &Method) -> TokenStream {
    let arguments = method.arguments(&method.versions.newest);
    let parts = arguments.iter().map(|Argument { ident, ty, form, .. }| {
        let reference = match peeled(ty) {
            Type::Reference(_) => quote!(#ident),
            _ => quote!(&#ident),
        };
        part(service, ty, form, reference)
    });
    quote!((#(#parts,)*))
}

/// The payload of a reference to a value of such a type.
fn part(service: &Service, ty: &Type, form: &Form, reference: TokenStream) -> TokenStream {
    let private = &service.private;
    let form = form.tokens(private);
    call_placed(ty, quote!(#private::part::<#form, _>), reference)
}

/// A call of `function` with the method's arguments as one payload.
fn calling(service: &Service, method: &Method, function: TokenStream) -> TokenStream {
    let payload = payload(service, method);
    // The compiler reports a type that cannot be encoded here once more; at the same position, it is one error.
    let by_serde = method.arguments.iter().find(|argument| argument.form.has_serde());
    let telling = by_serde.or(method.arguments.first());
    match telling {
        Some(argument) => call_placed(&argument.ty, function, quote!(&#payload)),
        None => quote!(#function(&#payload)),
    }
}

/// A call of this function, at the position of the type.
fn call_placed(ty: &Type, function: TokenStream, arguments: TokenStream) -> TokenStream {
    let mut arguments = Group::new(Delimiter::Parenthesis, arguments);
    arguments.set_span(span_at(ty));
    let mut call = placed(ty, function);
    call.extend([TokenTree::Group(arguments)]);
    call
}

/// The method's type.
fn method_type(service: &Service, method: &Method) -> TokenStream {
    let (ty, id) = (service.method_type(), method.versions.newest.id);
    quote!(#ty<#id>)
}

/// Declares an argument that a call of an older version lacks, with its default.
fn defaulted(argument: &Argument, into: &Ident) -> TokenStream {
    let (PassedAs::Read(ty) | PassedAs::Reference(ty)) = PassedAs::of(&argument.ty);
    let default = match &argument.default {
        Some(default) => quote!(#default),
        None => placed(&argument.ty, quote!(::core::default::Default::default())),
    };
    quote!(let #into: #ty = #default;)
}

/// A link to the trait's method, for documentation.
fn linked(service: &Service, method: &Method) -> String {
    format!("[`{0}::{1}`]({0}::{1})", service.ident, method.ident)
}

fn argument_name(index: usize) -> Ident {
    format_ident!("__argument_{}", index)
}
