//! The trait itself, with its async methods desugared.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{ItemTrait, ReturnType, TraitItem, parse_quote};

use crate::model::Service;

pub(super) fn emit(service: &Service, item: &ItemTrait) -> TokenStream {
    let private = &service.private;
    let mut item = item.clone();
    for item in &mut item.items {
        let TraitItem::Fn(method) = item else { continue };
        if method.sig.asyncness.take().is_some() {
            let output = match &method.sig.output {
                ReturnType::Default => quote!(()),
                ReturnType::Type(_, ty) => ty.to_token_stream(),
            };
            // Without a `Send` bound, on purpose: the future stays on its server thread.
            method.sig.output = parse_quote!(-> impl #private::Future<Output = #output>);
        }
    }
    item.into_token_stream()
}
