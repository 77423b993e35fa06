//! A type for each method: its id, its name, how its answer is read.

use proc_macro2::TokenStream;
use quote::quote;

use super::output;
use crate::forms::placed;
use crate::model::{Method, Outcome, Part, Service};

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

/// The service's own description.
pub(super) fn constant(service: &Service) -> TokenStream {
    let private = &service.private;
    let (name, fingerprint) = (&service.name, service.fingerprint);
    let methods = service.methods.iter().map(|method| {
        let (name, id, shape) = (&method.name, method.id, method.shape);
        let idempotent = method.idempotent.then(|| quote!(.idempotent()));
        let any_thread = service.any_thread.then(|| quote!(.any_thread()));
        quote!(#private::MethodDescription::new(#name, #id, #shape)#idempotent #any_thread)
    });
    quote! {
        const DESCRIPTION: &'static #private::ServiceDescription = &#private::ServiceDescription {
            name: #name,
            fingerprint: #fingerprint,
            methods: &[#(#methods),*],
        };
    }
}
