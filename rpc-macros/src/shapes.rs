//! The shape of a type, as an expression in generated code.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    AngleBracketedGenericArguments, GenericArgument, Ident, LitStr, Path, PathArguments, Result,
    Token, Type, parse_quote,
};

use crate::forms::placed;
use crate::hash;

/// Types that have another shape than their own.
pub(crate) struct Shapes {
    private: TokenStream,
    replaced: Vec<Replaced>,
}

/// A type, and one without values that has the shape that it is given.
struct Replaced {
    matches: Matches,
    marker: Ident,
    node: TokenStream,
}

enum Matches {
    /// A type that is written like this.
    Written(String),
    /// The type with this name, whatever its parameters, and `Self`.
    Enclosing(Ident),
}

impl Shapes {
    pub(crate) fn new(private: &TokenStream, opaque: &[Opaque]) -> Self {
        let replaced = opaque.iter().enumerate().map(|(index, Opaque { ty, name })| Replaced {
            matches: Matches::Written(written(ty)),
            marker: format_ident!("__Opaque{}", index),
            node: quote!(#private::Node::opaque(#name)),
        });
        Self { private: private.clone(), replaced: replaced.collect() }
    }

    /// These are the shapes within a type with this name; `called` is its name in shapes.
    pub(crate) fn within(mut self, ident: &Ident, called: &str) -> Self {
        let private = &self.private;
        self.replaced.push(Replaced {
            matches: Matches::Enclosing(ident.clone()),
            marker: format_ident!("__Enclosing"),
            node: quote!(#private::Node::enclosing(#called)),
        });
        self
    }

    /// The types that [`of`](Self::of) names in place of others. They have to be declared where it is used.
    pub(crate) fn markers(&self) -> TokenStream {
        let private = &self.private;
        let markers = self.replaced.iter().map(|Replaced { marker, node, .. }| {
            quote! {
                #[allow(dead_code)]
                enum #marker {}
                #[automatically_derived]
                impl #private::Shape for #marker {
                    const SHAPE: &'static #private::Node = &#node;
                }
            }
        });
        quote!(#(#markers)*)
    }

    /// The shape of this type, with the type's position.
    pub(crate) fn of(&self, ty: &Type) -> TokenStream {
        let private = &self.private;
        let replaced = self.replace(ty);
        placed(ty, quote!(<#replaced as #private::Shape>::SHAPE))
    }

    /// A shape that is only a name.
    pub(crate) fn opaque(&self, name: &LitStr) -> TokenStream {
        let private = &self.private;
        quote!(const { &#private::Node::opaque(#name) })
    }

    fn replace(&self, ty: &Type) -> Type {
        if let Some(found) = self.replaced.iter().find(|replaced| replaced.matches.type_is(ty)) {
            let marker = &found.marker;
            return parse_quote!(#marker);
        }
        let mut ty = ty.clone();
        match &mut ty {
            Type::Group(group) => *group.elem = self.replace(&group.elem),
            Type::Paren(paren) => *paren.elem = self.replace(&paren.elem),
            Type::Reference(reference) => *reference.elem = self.replace(&reference.elem),
            Type::Slice(slice) => *slice.elem = self.replace(&slice.elem),
            Type::Array(array) => *array.elem = self.replace(&array.elem),
            Type::Tuple(tuple) => {
                for part in &mut tuple.elems {
                    *part = self.replace(part);
                }
            }
            Type::Path(path) => {
                for segment in &mut path.path.segments {
                    if let PathArguments::AngleBracketed(arguments) = &mut segment.arguments {
                        self.replace_arguments(arguments);
                    }
                }
            }
            _ => {}
        }
        ty
    }

    fn replace_arguments(&self, arguments: &mut AngleBracketedGenericArguments) {
        for argument in &mut arguments.args {
            if let GenericArgument::Type(ty) = argument {
                *ty = self.replace(ty);
            }
        }
    }
}

impl Matches {
    fn type_is(&self, ty: &Type) -> bool {
        match (self, ty) {
            (Matches::Written(text), ty) => *text == written(ty),
            (Matches::Enclosing(ident), Type::Path(path)) if path.qself.is_none() => {
                let named = path.path.segments.last().filter(|_| path.path.segments.len() == 1);
                named.is_some_and(|last| last.ident == *ident || last.ident == "Self")
            }
            (Matches::Enclosing(_), _) => false,
        }
    }
}

fn written(ty: &Type) -> String {
    hash::normalised(ty.to_token_stream())
}

/// A type whose shape is only a name: `uuid::Uuid = "uuid 1"`.
pub(crate) struct Opaque {
    pub(crate) ty: Type,
    pub(crate) name: LitStr,
}

impl Parse for Opaque {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let ty = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Opaque { ty, name: named(input)? })
    }
}

impl Opaque {
    /// The types in parentheses after `opaque`.
    pub(crate) fn several(input: ParseStream<'_>) -> Result<impl Iterator<Item = Opaque> + use<>> {
        let content;
        syn::parenthesized!(content in input);
        Ok(Punctuated::<Opaque, Token![,]>::parse_terminated(&content)?.into_iter())
    }
}

/// A name in quotes, which is not empty.
pub(crate) fn named(input: ParseStream<'_>) -> Result<LitStr> {
    let name: LitStr = input.parse()?;
    if name.value().is_empty() {
        return Err(syn::Error::new(name.span(), "the name cannot be empty"));
    }
    Ok(name)
}

/// The path of the facade, if it has not been renamed.
pub(crate) fn facade() -> Path {
    let farcall = Ident::new("farcall", Span::call_site());
    parse_quote!(::#farcall)
}
