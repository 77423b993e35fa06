//! The code that a service becomes.

mod client;
mod declaration;
mod description;
mod server;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Ident, ItemTrait, Type};

use crate::forms::{Form, peeled, placed};
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

/// What a call of the method ends in, for its caller.
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
    let parts = method.arguments.iter().map(|Argument { ident, ty, form }| {
        let part = part(service, ty, form);
        match peeled(ty) {
            Type::Reference(_) => quote!(#part(#ident)),
            _ => quote!(#part(&#ident)),
        }
    });
    quote!((#(#parts,)*))
}

/// The function that makes a payload of a reference to such a value.
fn part(service: &Service, ty: &Type, form: &Form) -> TokenStream {
    let private = &service.private;
    let form = form.tokens(private);
    placed(ty, quote!(#private::part::<#form, _>))
}

/// The type that stands for the method.
fn method_type(service: &Service, method: &Method) -> TokenStream {
    let (ty, id) = (service.method_type(), method.id);
    quote!(#ty<#id>)
}

/// `a` or `an` with the code's name, for documentation.
fn linked(service: &Service, method: &Method) -> String {
    format!("[`{0}::{1}`]({0}::{1})", service.ident, method.ident)
}

fn argument_name(index: usize) -> Ident {
    format_ident!("__argument_{}", index)
}
