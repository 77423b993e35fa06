//! `#[derive(Grow)]`: serde's traits and the shape of a type that later versions add fields or variants to.
//!
//! serde's derives do the work, on a copy of the type: fields that a value lacks have a default there, and the variant for
//! unknown ones takes their numbers. The traits of the type itself add the length in front.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, GenericParam, Generics, Ident, Lifetime,
    Result, Variant, Visibility, parse_quote, parse2,
};

use super::Derive;
use super::options::{FieldOptions, TypeOptions, VariantOptions};
use super::serde::FieldAttributes;

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = parse2(item)?;
    let options = TypeOptions::of(&input.attrs)?;
    let krate = &options.krate;
    let private = quote!(#krate::__private);
    let derive = Derive::new(&input, &options, private.clone(), true)?;
    refuse(&input, &options, &derive)?;
    let first = derive.node(&input, &options)?;
    let shape = derive.implementation(&input, &quote!(&#private::Node::growing(const { #first })));
    let codec = codec(&input, &newtype_name(&input)?, &private)?;
    Ok(quote!(#shape #codec))
}

/// Refuses types that cannot grow.
fn refuse(input: &DeriveInput, options: &TypeOptions, derive: &Derive) -> Result<()> {
    if let Some(name) = &options.opaque_name {
        return Err(Error::new_spanned(name, "a type that may grow has a shape of its own"));
    }
    if derive.serde.travels_as.is_some() || derive.serde.transparent {
        return Err(Error::new_spanned(
            &input.ident,
            "a type that may grow is encoded by its own fields: take `from`, `into` and `transparent` away, or derive `Shape`",
        ));
    }
    if let Some(parameter) = input.generics.params.iter().find(|it| !is_lifetime(it)) {
        return Err(Error::new_spanned(
            parameter,
            "a type that may grow has no parameters but lifetimes: put what is generic into a type of a field",
        ));
    }
    match &input.data {
        Data::Struct(data) if !matches!(data.fields, Fields::Named(_)) => Err(Error::new_spanned(
            &input.ident,
            "a struct that may grow has named fields: give them names, or derive `Shape` and serde's traits",
        )),
        Data::Struct(data) => refuse_order(data.fields.iter().map(|field| {
            let options = FieldOptions::of(&field.attrs, true)?;
            Ok((options.since, field.to_token_stream()))
        })),
        Data::Enum(data) => {
            refuse_variants(input, &data.variants.iter().collect::<Vec<_>>())?;
            refuse_order(data.variants.iter().map(|variant| {
                let options = VariantOptions::of(&variant.attrs, true)?;
                let newest = options.is_unknown.then_some(u32::MAX);
                Ok((options.since.or(newest), variant.ident.to_token_stream()))
            }))
        }
        Data::Union(_) => Ok(()),
    }
}

/// Refuses parts that come after newer ones.
fn refuse_order(parts: impl Iterator<Item = Result<(Option<u32>, TokenStream)>>) -> Result<()> {
    let mut newest = 1;
    for part in parts {
        let (since, tokens) = part?;
        let since = since.unwrap_or(1);
        if since < newest {
            return Err(Error::new_spanned(
                tokens,
                "it comes after what a later version added: older ends must have the first ones; put it last, with the \
                 next version as its `since`",
            ));
        }
        newest = since;
    }
    Ok(())
}

/// Refuses an enum that does not have one variant for unknown ones, at its end.
fn refuse_variants(input: &DeriveInput, variants: &[&Variant]) -> Result<()> {
    let mut unknown = Vec::new();
    for variant in variants {
        if VariantOptions::of(&variant.attrs, true)?.is_unknown {
            unknown.push(variant);
        }
        for field in &variant.fields {
            if FieldOptions::of(&field.attrs, true)?.since.is_some() {
                return Err(Error::new_spanned(
                    field,
                    "a variant does not get new fields: put them into a struct that may grow, which the variant holds",
                ));
            }
        }
    }
    let message = match (unknown.as_slice(), variants.last()) {
        ([only], Some(last)) if only.ident == last.ident && last.fields.is_empty() => return Ok(()),
        _ => {
            "an enum that may grow has a variant without fields at its end, which stands for those that this program does \
             not know: `#[rpc(unknown)] Unknown`"
        }
    };
    Err(Error::new_spanned(&input.ident, message))
}

fn is_lifetime(parameter: &GenericParam) -> bool {
    matches!(parameter, GenericParam::Lifetime(_))
}

/// The name of the newtype around values: it tells the codec how many fields the first version had.
fn newtype_name(input: &DeriveInput) -> Result<String> {
    let mut first_fields = 0;
    if let Data::Struct(data) = &input.data {
        for field in &data.fields {
            let FieldOptions { since, opaque, .. } = FieldOptions::of(&field.attrs, true)?;
            if since.is_none() && !FieldAttributes::of(&field.attrs, opaque.is_some())?.skip {
                first_fields += 1;
            }
        }
    }
    Ok(match first_fields {
        0 => "$farcall::Growing".to_owned(),
        fields => format!("$farcall::Growing {fields}"),
    })
}

/// serde's traits, with this name of the newtype around values.
fn codec(input: &DeriveInput, newtype: &str, private: &TokenStream) -> Result<TokenStream> {
    let Copy { item, defaults, unknown } = Copy::new(input, private)?;
    let ident = &input.ident;
    let (implemented, arguments, clause) = input.generics.split_for_impl();
    let mut borrowing: Generics = input.generics.clone();
    let lifetimes: Vec<Lifetime> =
        input.generics.lifetimes().map(|parameter| parameter.lifetime.clone()).collect();
    borrowing.params.insert(0, parse_quote!('__de: #(#lifetimes)+*));
    let (deserialized, ..) = borrowing.split_for_impl();
    let name = ident.to_string();
    let unknown = unknown.map(|variant| {
        let text = variant.to_string();
        quote! {
            if let #ident::#variant = self {
                return __serializer.serialize_unit_variant(#name, #private::growing::UNKNOWN, #text);
            }
        }
    });
    Ok(quote! {
        const _: () = {
            #defaults
            #item

            #[automatically_derived]
            impl #implemented #private::growing::Grow for #ident #arguments #clause {
                const NAME: &'static str = #newtype;

                fn serialize_body<__S: #private::serde::Serializer>(
                    &self,
                    __serializer: __S,
                ) -> #private::Result<__S::Ok, __S::Error> {
                    #unknown
                    __Body::serialize(self, __serializer)
                }
            }

            #[automatically_derived]
            impl #implemented #private::serde::Serialize for #ident #arguments #clause {
                fn serialize<__S: #private::serde::Serializer>(
                    &self,
                    __serializer: __S,
                ) -> #private::Result<__S::Ok, __S::Error> {
                    #private::growing::serialize(self, __serializer)
                }
            }

            #[automatically_derived]
            impl #deserialized #private::growing::GrowFrom<'__de> for #ident #arguments #clause {
                const NAME: &'static str = #newtype;

                fn deserialize_body<__D: #private::serde::Deserializer<'__de>>(
                    __deserializer: __D,
                ) -> #private::Result<Self, __D::Error> {
                    __Body::deserialize(__deserializer)
                }
            }

            #[automatically_derived]
            impl #deserialized #private::serde::Deserialize<'__de> for #ident #arguments #clause {
                fn deserialize<__D: #private::serde::Deserializer<'__de>>(
                    __deserializer: __D,
                ) -> #private::Result<Self, __D::Error> {
                    #private::growing::deserialize(__deserializer)
                }
            }
        };
    })
}

/// The copy of a type for serde's derives.
struct Copy {
    item: TokenStream,
    /// A function for each default.
    defaults: TokenStream,
    /// The variant for unknown ones.
    unknown: Option<Ident>,
}

impl Copy {
    fn new(input: &DeriveInput, private: &TokenStream) -> Result<Self> {
        let mut copy =
            Copy { item: TokenStream::new(), defaults: TokenStream::new(), unknown: None };
        let mut item = input.clone();
        let (_, arguments, _) = input.generics.split_for_impl();
        let ident = &input.ident;
        let original = quote!(#ident #arguments);
        let (remote, krate) = (ident.to_string(), quote!(#private::serde).to_string());
        (item.ident, item.vis) = (format_ident!("__Body"), Visibility::Inherited);
        keep_serde(&mut item.attrs);
        match &mut item.data {
            Data::Struct(data) => {
                for (index, field) in data.fields.iter_mut().enumerate() {
                    copy.add_field(index, field, &input.generics, &original)?;
                }
            }
            Data::Enum(data) => {
                for variant in &mut data.variants {
                    if VariantOptions::of(&variant.attrs, true)?.is_unknown {
                        variant.attrs.push(parse_quote!(#[serde(other)]));
                        copy.unknown = Some(variant.ident.clone());
                    }
                    keep_serde(&mut variant.attrs);
                    for field in &mut variant.fields {
                        copy.add_field(0, field, &input.generics, &original)?;
                    }
                }
            }
            Data::Union(_) => {}
        }
        copy.item = quote! {
            #[allow(dead_code, clippy::all, clippy::pedantic)]
            #[derive(#private::serde::Serialize, #private::serde::Deserialize)]
            #[serde(remote = #remote, crate = #krate)]
            #item
        };
        Ok(copy)
    }

    /// Gives serde the field's default.
    fn add_field(
        &mut self,
        index: usize,
        field: &mut Field,
        generics: &Generics,
        original: &TokenStream,
    ) -> Result<()> {
        let options = FieldOptions::of(&field.attrs, true)?;
        keep_serde(&mut field.attrs);
        field.ty = parse2(without_self(field.ty.to_token_stream(), original))?;
        match (options.since, options.default) {
            (None, _) => {}
            (Some(_), None) => field.attrs.push(parse_quote!(#[serde(default)])),
            (Some(_), Some(default)) => {
                let (function, ty) = (format_ident!("__default_{}", index), &field.ty);
                let path = function.to_string();
                field.attrs.push(parse_quote!(#[serde(default = #path)]));
                self.defaults.extend(quote! {
                    fn #function #generics () -> #ty {
                        #default
                    }
                });
            }
        }
        Ok(())
    }
}

fn keep_serde(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| attribute.path().is_ident("serde"));
}

/// `Self` of the copy would be the copy.
fn without_self(tokens: TokenStream, original: &TokenStream) -> TokenStream {
    let replace = |token: TokenTree| match token {
        TokenTree::Ident(ident) if ident == "Self" => original.clone(),
        TokenTree::Group(group) => {
            let inner = without_self(group.stream(), original);
            let mut replaced = Group::new(group.delimiter(), inner);
            replaced.set_span(group.span());
            TokenTree::Group(replaced).into()
        }
        token => token.into(),
    };
    tokens.into_iter().map(replace).collect::<Vec<TokenStream>>().into_iter().collect()
}
