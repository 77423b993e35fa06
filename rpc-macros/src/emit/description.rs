//! What each method is, as a type: its id, its name, how its answer is read.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;

use syn::Type;

use super::output;
use crate::forms;
use crate::model::{Method, Outcome, Part, Service};

pub(super) fn emit(service: &Service) -> TokenStream {
    let private = &service.private;
    let ty = service.method_type();
    let methods = service.methods.iter().map(|method| of_method(service, method));
    let travels = service
        .methods
        .iter()
        .flat_map(travelling)
        .map(|ty| quote_spanned!(ty.span()=> __travels::<#ty>();));
    quote! {
        #[doc(hidden)]
        enum #ty<const ID: u32> {}
        const _: () = {
            #(#methods)*

            #[allow(dead_code)]
            fn __travels<T: #private::Travels>() {}
            #[allow(dead_code)]
            fn __all_travel() {
                #(#travels)*
            }
        };
    }
}

/// Every type of the method that serde must know: asked for here, at the type's own place, so that the compiler's first
/// word about a missing derive is the right one.
fn travelling(method: &Method) -> Vec<&Type> {
    let arguments = method.arguments.iter().map(|argument| &argument.ty);
    let outcome = match &method.outcome {
        Outcome::Value(value) => vec![&value.ty],
        Outcome::Fallible(parts) => vec![&parts.0.ty, &parts.1.ty],
    };
    arguments.chain(outcome).flat_map(forms::of_serde).collect()
}

fn of_method(service: &Service, method: &Method) -> TokenStream {
    let private = &service.private;
    let ty = super::method_type(service, method);
    let id = method.id;
    let name = format!("{}.{}", service.name, method.name);
    let output = output(service, method);
    let read = match &method.outcome {
        Outcome::Value(value) => {
            let value = reader(service, value);
            quote!(#private::read_value::<#value>(Self::NAME, __answer))
        }
        Outcome::Fallible(parts) => {
            let (value, error) = (reader(service, &parts.0), reader(service, &parts.1));
            quote!(#private::read_result::<#value, #error>(Self::NAME, __answer))
        }
    };
    quote! {
        #[automatically_derived]
        impl #private::Method for #ty {
            const NAME: &'static str = #name;
            const ID: u32 = #id;
            type Output = #output;

            #[inline]
            fn read(__answer: #private::Answer<'_>) -> Self::Output {
                #read
            }
        }
    }
}

/// `Form, Type`
fn reader(service: &Service, part: &Part) -> TokenStream {
    let form = part.form.tokens(&service.private);
    let ty = &part.ty;
    quote_spanned!(ty.span()=> #form, #ty)
}

/// The service's own description.
pub(super) fn constant(service: &Service) -> TokenStream {
    let private = &service.private;
    let (name, fingerprint) = (&service.name, service.fingerprint);
    let methods = service.methods.iter().map(|method| {
        let (name, id) = (&method.name, method.id);
        let idempotent = method.idempotent.then(|| quote!(.idempotent()));
        quote!(#private::MethodDescription::new(#name, #id)#idempotent)
    });
    quote! {
        const DESCRIPTION: &'static #private::ServiceDescription = &#private::ServiceDescription {
            name: #name,
            fingerprint: #fingerprint,
            methods: &[#(#methods),*],
        };
    }
}
