//! The codec's form for a type, chosen by how the type is written.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::quote;
use syn::spanned::Spanned;
use syn::{GenericArgument, PathArguments, PathSegment, Type, TypePath};

/// How values of one type are encoded; see the codec's forms of the same names.
#[derive(Clone)]
pub(crate) enum Form {
    /// serde.
    Serde,
    /// A byte string with its length.
    Raw,
    /// A byte string that is the whole message.
    Whole,
    /// An array of bytes.
    Fixed,
    /// An option whose value serde does not encode.
    Opt(Box<Form>),
    /// A sequence whose elements serde does not encode.
    Seq(Box<Form>),
    /// A tuple with at least one part that serde does not encode.
    Tuple(Vec<Form>),
}

impl Form {
    pub(crate) fn of(ty: &Type) -> Form {
        match ty {
            Type::Group(group) => Form::of(&group.elem),
            Type::Paren(paren) => Form::of(&paren.elem),
            Type::Reference(reference) => Form::of(&reference.elem),
            Type::Slice(slice) if is_u8(&slice.elem) => Form::Raw,
            Type::Slice(slice) => Form::of(&slice.elem).within(Form::Seq),
            Type::Array(array) if is_u8(&array.elem) => Form::Fixed,
            Type::Tuple(tuple) => {
                let parts: Vec<Form> = tuple.elems.iter().map(Form::of).collect();
                // The codec's own tuples have up to eight parts.
                if parts.len() > 8 || parts.iter().all(|part| matches!(part, Form::Serde)) {
                    Form::Serde
                } else {
                    Form::Tuple(parts)
                }
            }
            Type::Path(path) => Form::of_path(path),
            _ => Form::Serde,
        }
    }

    fn of_path(ty: &TypePath) -> Form {
        let Some((path, last)) = spelled(ty) else { return Form::Serde };
        match (path.as_str(), type_arguments(last).as_slice()) {
            ("Bytes" | "bytes::Bytes" | "farcall::Bytes" | "farcall::bytes::Bytes", [])
            | ("ByteBuf" | "serde_bytes::ByteBuf", []) => Form::Raw,
            ("Vec" | "std::vec::Vec" | "alloc::vec::Vec", [element]) => {
                if is_u8(element) {
                    Form::Raw
                } else {
                    Form::of(element).within(Form::Seq)
                }
            }
            ("Option" | "std::option::Option" | "core::option::Option", [value]) => {
                Form::of(value).within(Form::Opt)
            }
            (
                "Box" | "std::boxed::Box" | "alloc::boxed::Box" | "Cow" | "std::borrow::Cow"
                | "alloc::borrow::Cow",
                [Type::Slice(slice)],
            ) if is_u8(&slice.elem) => Form::Raw,
            _ => Form::Serde,
        }
    }

    /// What has only serde's parts is serde's as a whole: a type that is only named like one of std's then still works.
    fn within(self, around: fn(Box<Form>) -> Form) -> Form {
        match self {
            Form::Serde => Form::Serde,
            form => around(Box::new(form)),
        }
    }

    /// The form of a value that is a whole message.
    pub(crate) fn alone(self) -> Form {
        match self {
            Form::Raw => Form::Whole,
            form => form,
        }
    }

    /// serde encodes at least a part of it.
    pub(crate) fn has_serde(&self) -> bool {
        match self {
            Form::Serde => true,
            Form::Raw | Form::Whole | Form::Fixed => false,
            Form::Opt(form) | Form::Seq(form) => form.has_serde(),
            Form::Tuple(forms) => forms.iter().any(Form::has_serde),
        }
    }

    /// The form as a type.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        match self {
            Form::Serde => quote!(#private::Serde),
            Form::Raw => quote!(#private::Raw),
            Form::Whole => quote!(#private::Whole),
            Form::Fixed => quote!(#private::Fixed),
            Form::Opt(form) => {
                let form = form.tokens(private);
                quote!(#private::Opt<#form>)
            }
            Form::Seq(form) => {
                let form = form.tokens(private);
                quote!(#private::Seq<#form>)
            }
            Form::Tuple(forms) => {
                let forms = forms.iter().map(|form| form.tokens(private));
                quote!((#(#forms,)*))
            }
        }
    }
}

/// How an argument is passed to its handler.
pub(crate) enum PassedAs {
    /// As it was read, with this type: owned, or borrowed from the message.
    Read(TokenStream),
    /// Read as this type, then passed by reference.
    Reference(TokenStream),
}

impl PassedAs {
    pub(crate) fn of(ty: &Type) -> PassedAs {
        let Type::Reference(reference) = peeled(ty) else { return PassedAs::Read(quote!(#ty)) };
        match peeled(&reference.elem) {
            Type::Slice(slice) if is_u8(&slice.elem) => PassedAs::Read(quote!(#ty)),
            Type::Array(array) if is_u8(&array.elem) => PassedAs::Read(quote!(#ty)),
            Type::Path(path) if is_borrowed_by_serde(path) => PassedAs::Read(quote!(#ty)),
            Type::Slice(slice) => {
                let element = &slice.elem;
                PassedAs::Reference(quote!(::std::vec::Vec<#element>))
            }
            owned => PassedAs::Reference(quote!(#owned)),
        }
    }
}

/// serde reads a reference to such a type from the message itself.
pub(crate) fn is_borrowed_by_serde(ty: &TypePath) -> bool {
    spelled(ty).is_some_and(|(path, _)| {
        matches!(path.as_str(), "str" | "Path" | "std::path::Path" | "serde_bytes::Bytes")
    })
}

/// These tokens with the type's position, so that errors about the type point there. Names still resolve as everywhere in
/// generated code, also if the type comes from a macro of the user's.
pub(crate) fn placed(ty: &Type, tokens: TokenStream) -> TokenStream {
    respanned(tokens, span_at(ty))
}

/// The span of tokens that are [`placed`].
pub(crate) fn span_at(ty: &Type) -> Span {
    Span::call_site().located_at(ty.span())
}

fn respanned(tokens: TokenStream, span: Span) -> TokenStream {
    let respan = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            token = Group::new(group.delimiter(), respanned(group.stream(), span)).into();
        }
        token.set_span(span);
        token
    };
    tokens.into_iter().map(respan).collect()
}

/// The type without invisible groups and parentheses.
pub(crate) fn peeled(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => peeled(&group.elem),
        Type::Paren(paren) => peeled(&paren.elem),
        ty => ty,
    }
}

/// The two types of a `Result<T, E>`; `Some(None)` for a `Result` that does not name both.
pub(crate) fn of_result(ty: &Type) -> Option<Option<(Type, Type)>> {
    let Type::Path(path) = peeled(ty) else { return None };
    let last = path.path.segments.last()?;
    if path.qself.is_some() || last.ident != "Result" {
        return None;
    }
    Some(match type_arguments(last).as_slice() {
        [value, error] => Some(((*value).clone(), (*error).clone())),
        _ => None,
    })
}

pub(crate) fn is_u8(ty: &Type) -> bool {
    matches!(peeled(ty), Type::Path(path) if path.qself.is_none() && path.path.is_ident("u8"))
}

/// The path without its arguments, as text, and its last segment.
fn spelled(ty: &TypePath) -> Option<(String, &PathSegment)> {
    if ty.qself.is_some() {
        return None;
    }
    let names: Vec<String> = ty.path.segments.iter().map(|part| part.ident.to_string()).collect();
    Some((names.join("::"), ty.path.segments.last()?))
}

fn type_arguments(segment: &PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(peeled(ty)),
        _ => None,
    });
    types.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(ty: &str) -> String {
        let ty: Type = syn::parse_str(ty).unwrap();
        Form::of(&ty).tokens(&quote!(p)).to_string().replace(' ', "").replace("p::", "")
    }

    #[test]
    fn byte_strings_are_known_by_their_names() {
        for raw in
            ["&[u8]", "Vec<u8>", "&Vec<u8>", "Bytes", "bytes::Bytes", "::bytes::Bytes", "ByteBuf"]
        {
            assert_eq!(form(raw), "Raw", "{raw}");
        }
        assert_eq!(form("Box<[u8]>"), "Raw");
        assert_eq!(form("Cow<'_, [u8]>"), "Raw");
        assert_eq!(form("[u8; 32]"), "Fixed");
        assert_eq!(form("&[u8; LEN]"), "Fixed");
    }

    #[test]
    fn forms_nest_only_around_byte_strings() {
        assert_eq!(form("Option<Bytes>"), "Opt<Raw>");
        assert_eq!(form("Vec<(Bytes, u64)>"), "Seq<(Raw,Serde,)>");
        assert_eq!(form("&[Bytes]"), "Seq<Raw>");
        assert_eq!(form("Option<Vec<String>>"), "Serde");
        assert_eq!(form("(u8, String)"), "Serde");
        assert_eq!(form("HashMap<Vec<u8>, u8>"), "Serde");
    }

    #[test]
    fn other_types_are_left_to_serde() {
        for serde in
            ["my::Bytes", "u8", "&str", "[u16; 4]", "Vec<Row>", "<A as B>::Bytes", "Cow<'_, str>"]
        {
            assert_eq!(form(serde), "Serde", "{serde}");
        }
    }
}
