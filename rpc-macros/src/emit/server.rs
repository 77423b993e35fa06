//! The server: decodes the arguments, calls a method of the implementation, encodes the answer.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::Ident;

use super::{argument_name, call_placed, defaulted, part};
use crate::forms::PassedAs;
use crate::model::{Argument, Method, Outcome, Part, Service};
use crate::versions::Version;

pub(super) fn emit(service: &Service) -> TokenStream {
    let Service { private, visibility, ident, .. } = service;
    let (server, client) = (service.server(), service.client());
    let implementation = implementation(service);
    let arms = service
        .entries()
        .enumerate()
        .map(|(index, (method, version))| arm(service, index, method, version));
    let doc = format!(
        "Serves an implementation of [`{ident}`].\n\nA clone serves the same implementation; each server thread has a clone."
    );
    let new_doc = format!("A server of this implementation of [`{ident}`].");
    quote! {
        #[doc = #doc]
        #visibility struct #server<#implementation> {
            service: #private::Arc<#implementation>,
        }

        impl<#implementation: #ident + #private::Send + #private::Sync + 'static> #server<#implementation> {
            #[doc = #new_doc]
            pub fn new(service: #implementation) -> Self {
                Self { service: #private::Arc::new(service) }
            }
        }

        #[automatically_derived]
        impl<#implementation> #private::From<#private::Arc<#implementation>> for #server<#implementation> {
            fn from(service: #private::Arc<#implementation>) -> Self {
                Self { service }
            }
        }

        #[automatically_derived]
        impl<#implementation> #private::Clone for #server<#implementation> {
            fn clone(&self) -> Self {
                Self { service: #private::Arc::clone(&self.service) }
            }
        }

        #[automatically_derived]
        impl<#implementation> #private::fmt::Debug for #server<#implementation> {
            fn fmt(&self, __f: &mut #private::fmt::Formatter<'_>) -> #private::fmt::Result {
                __f.debug_struct(::core::stringify!(#server)).finish_non_exhaustive()
            }
        }

        #[automatically_derived]
        #[allow(deprecated, clippy::all, clippy::pedantic)]
        impl<#implementation: #ident + #private::Send + #private::Sync + 'static> #private::Service
            for #server<#implementation>
        {
            fn description(&self) -> &'static #private::ServiceDescription {
                <#client as #private::ServiceClient>::DESCRIPTION
            }

            #[inline]
            fn dispatch(&self, __method: usize, __message: #private::Message<'_>, __reply: #private::Reply<'_>) {
                match __method {
                    #(#arms)*
                    _ => ::core::unreachable!("the description has no method with this index"),
                }
            }
        }
    }
}

/// Handles a call of the method with this index in the description. The indices are dense, so the match is a jump table.
fn arm(service: &Service, index: usize, method: &Method, version: &Version) -> TokenStream {
    let private = &service.private;
    let trait_name = &service.ident;
    let ident = &method.ident;
    let name = format!("{}.{}", service.name, method.version_name(version));
    let arguments = method.arguments(version);
    let reads = arguments
        .iter()
        .enumerate()
        .map(|(index, argument)| read(service, &name, argument, &argument_name(index)));
    let defaults = method.arguments.iter().enumerate().skip(version.arguments);
    let defaults = defaults.map(|(index, argument)| defaulted(argument, &argument_name(index)));
    let passed = method.arguments.iter().enumerate().map(|(index, argument)| {
        let argument_name = argument_name(index);
        match PassedAs::of(&argument.ty) {
            PassedAs::Read(_) => quote!(#argument_name),
            PassedAs::Reference(_) => quote!(&#argument_name),
        }
    });
    let answer = answer(service, method);
    let call = if method.is_async {
        quote! {
            let __service = #private::Arc::clone(&self.service);
            __reply.spawn(
                async move { #trait_name::#ident(&*__service, #(#passed),*).await },
                |__answer, __reply| #answer,
            )
        }
    } else {
        quote! {
            let __answer = #trait_name::#ident(&*self.service, #(#passed),*);
            #answer
        }
    };
    quote! {
        #index => {
            let mut __reader = #private::Reader::of(&__message);
            #(#reads)*
            if __reader.finish().is_err() {
                return __reply.malformed(#name, "the end", __reader.into_error());
            }
            #(#defaults)*
            #call
        }
    }
}

fn read(service: &Service, method: &str, argument: &Argument, into: &Ident) -> TokenStream {
    let private = &service.private;
    let form = argument.form.tokens(private);
    let name = argument.ident.to_string();
    let name = name.trim_start_matches("r#");
    let (PassedAs::Read(ty) | PassedAs::Reference(ty)) = PassedAs::of(&argument.ty);
    let read = quote!(<#form as #private::Decode<'_, _>>::read);
    let read = call_placed(&argument.ty, read, quote!(&mut __reader));
    quote! {
        let #into: #ty = match #read {
            #private::Ok(__value) => __value,
            #private::Err(_) => return __reply.malformed(#method, #name, __reader.into_error()),
        };
    }
}

fn answer(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    let reply = |side: &Part, function: TokenStream| {
        let payload = part(service, &side.ty, &side.form, quote!(&__value));
        call_placed(&side.ty, function, quote!(&#payload))
    };
    match &method.outcome {
        Outcome::Value(value) => {
            let reply = reply(value, quote!(__reply.value));
            quote!({
                let __value = __answer;
                #reply
            })
        }
        Outcome::Fallible(parts) => {
            let value = reply(&parts.0, quote!(__reply.value));
            let error = reply(&parts.1, quote!(__reply.service_error));
            quote! {
                match __answer {
                    #private::Ok(__value) => #value,
                    #private::Err(__value) => #error,
                }
            }
        }
    }
}

/// A name for the generic parameter that no type of the service has.
fn implementation(service: &Service) -> Ident {
    let mentioned = |name: &str| {
        service.ident == name
            || service.methods.iter().any(|method| {
                let mut types = method.arguments.iter().map(|argument| &argument.ty);
                types.any(|ty| mentions(ty.to_token_stream(), name))
            })
    };
    let mut name = "S".to_owned();
    while mentioned(&name) {
        name.insert(0, '_');
    }
    format_ident!("{name}")
}

fn mentions(tokens: TokenStream, name: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        proc_macro2::TokenTree::Ident(ident) => ident == name,
        proc_macro2::TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}
