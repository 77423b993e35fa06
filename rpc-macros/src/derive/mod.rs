//! `#[derive(Shape)]`: the shape of a struct or of an enum, as serde's derives encode it.

pub(crate) mod grow;
mod options;
mod serde;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{
    Data, DataEnum, DataUnion, DeriveInput, Error, Field, Fields, Generics, Result, Type,
    TypeParam, Variant, parse_quote,
};

use self::options::{FieldOptions, TypeOptions, VariantOptions};
use self::serde::{FieldAttributes, TypeAttributes, VariantAttributes};
use crate::shapes::Shapes;

pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(item)?;
    let options = TypeOptions::of(&input.attrs)?;
    let krate = &options.krate;
    let private = quote!(#krate::__private);
    let derive = Derive::new(&input, &options, private, false)?;
    let node = derive.node(&input, &options)?;
    Ok(derive.implementation(&input, &node))
}

struct Derive {
    private: TokenStream,
    shapes: Shapes,
    serde: TypeAttributes,
    /// The type's name in shapes.
    name: String,
    /// Later versions may have more fields or variants.
    grows: bool,
}

impl Derive {
    fn new(
        input: &DeriveInput,
        options: &TypeOptions,
        private: TokenStream,
        grows: bool,
    ) -> Result<Self> {
        let serde = TypeAttributes::of(&input.attrs, options.opaque_name.is_some())?;
        let name = serde.name.clone().unwrap_or_else(|| input.ident.unraw().to_string());
        let shapes = Shapes::new(&private, &options.opaque).within(&input.ident, &name);
        Ok(Self { private, shapes, serde, name, grows })
    }

    fn implementation(&self, input: &DeriveInput, node: &TokenStream) -> TokenStream {
        let Self { private, shapes, .. } = self;
        let ident = &input.ident;
        let markers = shapes.markers();
        let mut generics: Generics = input.generics.clone();
        for TypeParam { bounds, .. } in generics.type_params_mut() {
            bounds.push(parse_quote!(#private::Shape));
        }
        let (implemented, arguments, clause) = generics.split_for_impl();
        quote! {
            const _: () = {
                #markers
                #[automatically_derived]
                impl #implemented #private::Shape for #ident #arguments #clause {
                    const SHAPE: &'static #private::Node = #node;
                }
            };
        }
    }

    /// A reference to the type's shape.
    fn node(&self, input: &DeriveInput, options: &TypeOptions) -> Result<TokenStream> {
        if let Some(name) = &options.opaque_name {
            return Ok(self.shapes.opaque(name));
        }
        if let Some(ty) = &self.serde.travels_as {
            return Ok(self.shapes.of(ty));
        }
        let arguments = input.generics.type_params().map(|TypeParam { ident, .. }| {
            let ty: Type = parse_quote!(#ident);
            self.shapes.of(&ty)
        });
        let arguments = quote!(const { &[#(#arguments),*] });
        match &input.data {
            Data::Struct(data) => self.structure(&data.fields, &arguments),
            Data::Enum(data) => self.enumeration(data, &arguments),
            Data::Union(DataUnion { union_token, .. }) => Err(Error::new_spanned(
                union_token,
                "a union does not say which of its fields it holds: send an enum",
            )),
        }
    }

    fn structure(&self, fields: &Fields, arguments: &TokenStream) -> Result<TokenStream> {
        let Self { private, name, .. } = self;
        let parts = self.parts(fields)?;
        let nodes = parts.iter().map(|part| &part.node);
        Ok(match (fields, parts.as_slice()) {
            (Fields::Named(_), [only]) if self.serde.transparent => only.node.clone(),
            (Fields::Named(_), parts) => {
                let parts = parts.iter().map(|part| part.field(private));
                quote!(&#private::Node::structure(#name, #arguments, const { &[#(#parts),*] }))
            }
            // A tuple struct of one field is encoded as that field.
            (Fields::Unnamed(_), [only]) => only.node.clone(),
            _ => quote!(&#private::Node::tuple(const { &[#(#nodes),*] })),
        })
    }

    fn enumeration(&self, data: &DataEnum, arguments: &TokenStream) -> Result<TokenStream> {
        let Self { private, name, .. } = self;
        let mut variants = Vec::with_capacity(data.variants.len());
        let mut skipped: Option<&Variant> = None;
        for variant in &data.variants {
            let options = VariantOptions::of(&variant.attrs, self.grows)?;
            let attributes = VariantAttributes::of(&variant.attrs)?;
            if options.is_unknown {
                continue;
            }
            if attributes.skip {
                skipped = Some(variant);
                continue;
            }
            if let Some(skipped) = skipped {
                return Err(Error::new_spanned(
                    &skipped.ident,
                    "serde's two derives number the variants after a skipped one differently: put it last",
                ));
            }
            let name = attributes.name.unwrap_or_else(|| variant.ident.unraw().to_string());
            let parts = self.parts(&variant.fields)?;
            let parts = parts.iter().map(|part| part.field(private));
            let since = options.since.map(|since| quote!(.since(#since)));
            variants.push(quote!(#private::Variant::new(#name, const { &[#(#parts),*] })#since));
        }
        Ok(quote! {
            &#private::Node::enumeration(#name, #arguments, const { &[#(#variants),*] })
        })
    }

    /// The fields that are encoded.
    fn parts(&self, fields: &Fields) -> Result<Vec<Part>> {
        let parts = fields.iter().map(|field| self.part(field));
        parts.filter_map(Result::transpose).collect()
    }

    fn part(&self, field: &Field) -> Result<Option<Part>> {
        let FieldOptions { opaque, since, .. } = FieldOptions::of(&field.attrs, self.grows)?;
        let serde = FieldAttributes::of(&field.attrs, opaque.is_some())?;
        if serde.skip {
            return Ok(None);
        }
        let ident = field.ident.as_ref().map(|ident| ident.unraw().to_string());
        let name = serde.name.filter(|_| ident.is_some()).or(ident).unwrap_or_default();
        let node = match &opaque {
            Some(name) => self.shapes.opaque(name),
            None => self.shapes.of(&field.ty),
        };
        Ok(Some(Part { name, node, since }))
    }
}

/// A field that is encoded.
struct Part {
    /// Empty in a tuple.
    name: String,
    /// A reference to its shape.
    node: TokenStream,
    /// The version of the type that added it.
    since: Option<u32>,
}

impl Part {
    fn field(&self, private: &TokenStream) -> TokenStream {
        let Part { name, node, since } = self;
        let since = since.map(|since| quote!(.since(#since)));
        quote!(#private::Field::new(#name, #node)#since)
    }
}
